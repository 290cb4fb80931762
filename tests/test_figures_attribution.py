"""The figures of attribution and heads: labelled axes, no titles, drawn from results."""

from __future__ import annotations

import matplotlib as mpl
import pytest
import torch

from handmade import induction_model, random_model
from residual_stream.ablation import self_repair
from residual_stream.attribution import logit_attribution
from residual_stream.composition import composition_baseline, composition_scores
from residual_stream.figures import attribution as drawn
from residual_stream.figures import composition as heads
from residual_stream.heads import copying_scores, head_scores, ov_eigenvalues
from residual_stream.lens import lens_by_depth
from residual_stream.stream import record

TOKENS = torch.tensor([[1, 5, 9, 2, 4], [7, 7, 3, 11, 0]])


def split(unit, **options):
    return logit_attribution(record(random_model("llama"), TOKENS), 6, unit=unit, **options)


def eigenvalues():
    values = ov_eigenvalues(random_model("llama"))
    scores = copying_scores(values)[0, :2].tolist()
    return heads.eigenvalues(values[0, :2], ["L0H0", "L0H1"], copying=scores)


def composition():
    model = induction_model()
    scores, chance = composition_scores(model, "K"), composition_baseline(model, "K", draws=1)
    return heads.composition(scores, baseline=chance, marked=[((0, 0), (1, 0))])


def repair():
    stream = record(random_model("llama"), TOKENS)
    return drawn.direct_and_effect(self_repair(stream, [(0, 0), (1, 2)], 6), named=2)


def patterns():
    scores = head_scores(induction_model(), length=6)
    return heads.patterns({"previous": scores.previous, "induction": scores.induction})


DRAWINGS = {
    "waterfall": lambda: drawn.waterfall(split("sublayer")),
    "shares": lambda: drawn.shares(split("layer"), split("layer", center=False)),
    "last third": lambda: drawn.share_of_the_last_third(torch.rand(30), published=0.88),
    "lens": lambda: drawn.lens(lens_by_depth(random_model("llama"), TOKENS)),
    "repair": repair,
    "composition": composition,
    "eigenvalues": eigenvalues,
    "patterns": patterns,
    "omissions": lambda: drawn.omissions(
        torch.rand(30) + 9, torch.rand(30) + 9, {"a": torch.randn(30), "b": torch.rand(30) + 50}
    ),
    "grain": lambda: drawn.grain({"layer": 3.0, "head": 9.0}, {"layer": -1.0, "head": -7.0}),
    "lens and shares": lambda: drawn.lens_and_shares(torch.rand(5, 9), torch.rand(5, 9)),
    "phase": lambda: heads.phase(
        [0, 5, 20], {"a": [3.0, 2.0, 1.0]}, {"b": [0.1, 0.2, 0.9], "c": [0.0, 0.1, 0.5]}, chance=0.1
    ),
    "detectors": lambda: heads.detectors(
        torch.rand(2, 3), {"row": torch.rand(2, 3), "stream": torch.rand(2, 3)}, marked=[(0, 1)]
    ),
    "routes": lambda: heads.routes({"clean": 3.8, "keys": 9.5, "values": 4.4}, reference="clean"),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_has_labelled_axes_an_opaque_ground_and_no_title(name):
    figure = DRAWINGS[name]()
    assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    assert all(not ax.get_title() for ax in figure.axes)
    assert all(ax.get_xlabel() or ax.get_ylabel() for ax in figure.axes)
    figure.canvas.draw()


def test_the_waterfall_ends_at_the_models_own_logit():
    attribution = split("sublayer")
    bars = drawn.waterfall(attribution).axes[0].patches
    ends = [bar.get_y() + bar.get_height() for bar in bars[: len(attribution.labels)]]
    assert ends[-1] == pytest.approx(float(attribution.logit[0]), abs=1e-4)


def test_the_grain_of_a_split_keeps_its_net():
    drawing = drawn.grain({"layer": 3.0, "neuron": 90.0}, {"layer": -1.0, "neuron": -88.0})
    assert [text.get_text() for text in drawing.axes[0].texts] == ["net 2.0", "net 2.0"]


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawing_leaves_the_readers_style_alone(name):
    before = dict(mpl.rcParams)
    DRAWINGS[name]()
    assert dict(mpl.rcParams) == before
