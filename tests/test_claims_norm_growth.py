"""Chapter 5: every claim's experiment runs alone, and goes red when what it shows is broken."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

import residual_stream as rs
from chapter_cells import ClaimTests, patching, replacing
from residual_stream import blocks, clinic, connections, runs

pytestmark = [pytest.mark.real, pytest.mark.slow]


@contextmanager
def nothing_was_learned(namespace):
    namespace["by_layer"] = namespace["start_layers"][0]
    yield


@contextmanager
def random_weights_were_trained(namespace):
    namespace["start_layers"] = [namespace["by_layer"]] * 3
    yield


def a_layer_that_writes_about_its_token(stream):
    """The write that all tokens have in common becomes noise of the same length."""
    index = stream.index("24_attn_out")
    writes = stream.writes.clone()
    noise = torch.randn(writes[index].shape, generator=torch.Generator().manual_seed(0))
    noise = noise.to(writes) * (writes[index].norm() / noise.norm())
    writes[index] = noise
    changed = replace(stream, writes=writes)
    return replace(changed, top=changed.final)  # a ledger that closes, of another model


def without_the_depth(standard_deviation):
    """GPT-2's scheme forgets to divide by the root of the number of branches."""

    def unscaled(scheme, *args, **kwargs):
        return standard_deviation("xavier" if scheme == "gpt2" else scheme, *args, **kwargs)

    return unscaled


def shallow_and_deep_exchanged(stored):
    def exchanged(name):
        frame = stored(name)
        narrow = frame.d_model == 12
        frame.loc[narrow, "n_layers"] = frame[narrow].n_layers.replace({2: 32, 32: 2})
        return frame

    return exchanged


def a_fixed_point(rounding_loss):
    """Numbers with a fixed step: what is lost depends on the scale."""

    def fixed(x, update, *, dtype):
        arrived = (x + update).round() - x.round()
        return (arrived - update).norm(dim=-1) / update.norm(dim=-1)

    return fixed


def a_patient_that_is_sound(case):
    """Patient D is trained without its fault, and still said to have it."""

    def healthy(name):
        return replace(case("C"), diagnosis=case("D").diagnosis) if name == "D" else case(name)

    return healthy


MUTATIONS = {
    "the model has learned nothing": ("N1", {"mutation": nothing_was_learned}),
    "the random weights are trained ones": ("N1", {"mutation": random_weights_were_trained}),
    "attention writes no constant": (
        "N2",
        {"mutation": replacing("stream", a_layer_that_writes_about_its_token)},
    ),
    "the ratio is that of random weights": ("N3", {"mutation": nothing_was_learned}),
    "DeepNorm has no norm behind the sum": (
        "N4",
        {
            "mutation": patching(
                connections.DeepNorm, "forward", lambda _: connections.PreLN.forward
            )
        },
    ),
    "the last layer's gradient is not scaled": (
        "N5",
        {"mutation": patching(blocks, "standard_deviation", without_the_depth)},
    ),
    "GPT-2 forgets the depth": (
        "N6",
        {"mutation": patching(blocks, "standard_deviation", without_the_depth)},
    ),
    "shallow and deep are exchanged": (
        "N7",
        {"mutation": patching(runs, "stored", shallow_and_deep_exchanged)},
    ),
    "the removal spares position 0": (
        "N9",
        {"rewrite": ("value[:, places] = 0", "value[:, 1:][:, places] = 0")},
    ),
    "nothing was planted in patient D": (
        "N8",
        {"mutation": patching(clinic, "_case", a_patient_that_is_sound)},
    ),
    "numbers have a fixed point": (
        "N10",
        {"mutation": patching(rs.rounding, "rounding_loss", a_fixed_point)},
    ),
}


class TestClaims(ClaimTests):
    name = "05_norm_growth"
    claims = tuple(f"N{n}" for n in range(1, 11))
    mutations = MUTATIONS
