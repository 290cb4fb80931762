"""Chapter 3: every claim's experiment runs alone, and goes red when what it shows is broken."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

import residual_stream as rs
from chapter_cells import ClaimTests, patching, replacing, without_write

pytestmark = [pytest.mark.real, pytest.mark.slow]


def a_model_in_which_nobody_repairs(self_repair):
    def unrepaired(*args, **kwargs):
        split = self_repair(*args, **kwargs)
        nothing = torch.zeros_like(split.direct)
        return replace(split, effect=split.direct, later=nothing, norm=nothing)

    return unrepaired


def an_origin_at_zero(logit_attribution):
    return lambda *args, **kwargs: logit_attribution(*args, **(kwargs | {"center": False}))


@contextmanager
def a_young_model(namespace):
    kept = namespace["small"]
    namespace["small"] = young = rs.load("induction", checkpoint=0)
    namespace["small_run"] = rs.record(young, namespace["small_run"].tokens)
    yield
    namespace["small"] = kept


MUTATIONS = {
    "the gain is dropped": ("A1", {"rewrite": ("gain * columns", "columns")}),
    "a write is lost": ("A1", {"mutation": replacing("stream", without_write(9))}),
    "logits are not centred": (
        "A2",
        {"mutation": patching(rs, "logit_attribution", an_origin_at_zero)},
    ),
    "the last twenty layers are taken for ten": ("A2", {"rewrite": (">= 20", ">= 10")}),
    "the lens divides at the top": (
        "A6",
        {"rewrite": ("lens_logit = along / sigma", "lens_logit = cumulative")},
    ),
    "another head is taken out": (
        "A4",
        {"rewrite": ("source = pairs.source[0]", "source = (11, 1)")},
    ),
    "the small model has learned nothing": ("A4", {"mutation": a_young_model}),
    "values and keys are confused": (
        "A5",
        {"rewrite": ("hook_{route}", "hook_{dict(q='q', k='v', v='k')[route]}")},
    ),
    "the heads are fed the row": ("A7", {"rewrite": ('"0_mlp_out"', '"embed"')}),
    "the small model has no copying heads": ("A7", {"mutation": a_young_model}),
    "nobody repairs": (
        "A3",
        {"mutation": patching(rs, "self_repair", a_model_in_which_nobody_repairs)},
    ),
}


class TestClaims(ClaimTests):
    name = "03_attribution"
    claims = tuple(f"A{n}" for n in range(1, 8))
    mutations = MUTATIONS
