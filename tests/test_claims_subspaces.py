"""Chapter 2: every claim's experiment runs alone, and goes red when what it shows is broken."""

from dataclasses import replace

import pytest
import torch

import residual_stream as rs
from chapter_cells import ClaimTests, hooking, patching

pytestmark = [pytest.mark.real, pytest.mark.slow]


def directions_with_a_common_part(original):
    return lambda *args, **kwargs: original(*args, **kwargs) + 0.02


def a_write_along_the_stream(original):
    def write(norm, reader, x, *, relative, **kwargs):
        return relative * x

    return write


def a_channel_for_every_block(original):
    def own_channel(port):
        mask = torch.zeros_like(port.matrix)
        mask[19 * port.layer : 19 * (port.layer + 1)] = 1
        return replace(port, matrix=port.matrix * mask)

    return lambda *args, **kwargs: [own_channel(port) for port in original(*args, **kwargs)]


def features_that_are_always_on(original):
    return lambda draws, sparsity, *shape: original(draws, 0 * sparsity, *shape)


def a_rotation_that_forgets_a_weight(original):
    def rotate(model, **kwargs):
        turned = original(model, **kwargs)
        with torch.no_grad():
            turned.model.original_model.model.layers[12].self_attn.o_proj.weight.mul_(1.1)
        return turned

    return rotate


def cosines_of_random_directions(original):
    def cosines(vectors, **kwargs):
        draw = torch.Generator().manual_seed(0)
        return original(torch.randn(2000, vectors.shape[1], generator=draw), **kwargs)

    return cosines


def writes_that_never_oppose(original):
    return lambda stream: ((before.abs(), write.abs()) for before, write in original(stream))


def nothing_written_above_block_10():
    return hooking(
        "model",
        *(
            (f"blocks.{layer}.hook_{kind}_out", lambda value, hook: 0 * value)
            for layer in range(10, 30)
            for kind in ("attn", "mlp")
        ),
    )


MUTATIONS = {
    "S1": (
        "S1",
        {"mutation": patching(rs.directions, "random_directions", directions_with_a_common_part)},
    ),
    "S2": ("S2", {"mutation": patching(rs.divisor, "orthogonal_write", a_write_along_the_stream)}),
    "S3": ("S3", {"mutation": patching(rs.subspaces, "ports", a_channel_for_every_block)}),
    "S4": ("S4", {"mutation": patching(rs.superposition, "_draw", features_that_are_always_on)}),
    "S5": (
        "S5",
        {"mutation": patching(rs.rotation, "rotate_model", a_rotation_that_forgets_a_weight)},
    ),
    "S6": ("S6", {"mutation": patching(rs.subspaces, "cosines", cosines_of_random_directions)}),
    "S7": ("S7", {"mutation": patching(rs.cancellation, "_steps", writes_that_never_oppose)}),
    "S8": ("S8", {"mutation": nothing_written_above_block_10()}),
}


class TestClaims(ClaimTests):
    name = "02_subspaces"
    claims = tuple(f"S{n}" for n in range(1, 9))
    mutations = MUTATIONS
