"""The figures of ensembles and gradients: labelled axes, no titles, drawn from results."""

from __future__ import annotations

import matplotlib as mpl
import pytest
import torch

import residual_stream as rs
from handmade import random_model
from residual_stream.deletion import delete_layers
from residual_stream.figures import ensembles, gradients
from residual_stream.gradients import stream_gradients
from residual_stream.jacobian import block_jacobian
from residual_stream.path_gradients import gradient_by_path_length
from residual_stream.paths import expand_paths

TOKENS = torch.tensor([[1, 5, 9, 2, 4], [7, 7, 3, 11, 0]])
LOSS = {"plain, LN": [[1.0, 1.2], [2.0, 2.1]], "residual, pre-LN": [[1.0, 1.1], [0.9, 1.0]]}
LINES = {"plain, LN": torch.rand(5), "highway": torch.rand(5)}


def deletions():
    model = random_model("llama")
    runs = {name: delete_layers(model, TOKENS) for name in ("everywhere", "only at position 0")}
    return ensembles.deletions(runs)


def expansion():
    held = expand_paths(rs.load("induction"), TOKENS)
    return ensembles.expansion(held, held.logits(TOKENS).mean((1, 2)), named=5)


def spectra():
    x = torch.randn(4, 16)
    some = [block_jacobian(random_model("llama"), x, layer) for layer in (0, 1)]
    return gradients.spectra(some, some)


def parts():
    return {"untrained": gradient_by_path_length(random_model("llama"), TOKENS)}


DRAWINGS = {
    "path lengths": lambda: ensembles.path_lengths([0.25, 0.5, 0.25]),
    "formulas": lambda: ensembles.formulas(
        {"four terms": torch.rand(3, 7) + 1, "three": torch.rand(3, 7)}, [0, 1, 2]
    ),
    "deletions": deletions,
    "costs": lambda: ensembles.costs({"a": 2.0, "b": 0.1}, at_start=["b"]),
    "sink": lambda: ensembles.sink({"intact": torch.rand(3)}, {"intact": torch.rand(3)}, range(3)),
    "orders": lambda: ensembles.orders(
        {"without attention": [0.5, 0.9]}, [2, 4], {"any": [[0.5, 0.6], [0.1, 0.2]]}
    ),
    "expansion": expansion,
    "spectra": spectra,
    "highway": lambda: gradients.highway(stream_gradients(random_model("llama"), TOKENS)),
    "by length": lambda: gradients.by_length(parts()),
    "descent": lambda: gradients.descent(parts()),
    "depth": lambda: gradients.depth([2, 8], LOSS, chance=2.3),
    "shattering": lambda: gradients.shattering(LINES, LINES),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_has_labelled_axes_an_opaque_ground_and_no_title(name):
    figure = DRAWINGS[name]()
    assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    assert all(not ax.get_title() for ax in figure.axes)
    assert any(ax.get_xlabel() for ax in figure.axes)
    figure.canvas.draw()


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawing_leaves_the_readers_style_alone(name):
    before = dict(mpl.rcParams)
    DRAWINGS[name]()
    assert dict(mpl.rcParams) == before


def test_the_costs_are_the_values_handed_in():
    bars = ensembles.costs({"a": 2.0, "b": 0.1}).axes[0].patches
    assert sorted(bar.get_width() for bar in bars) == [0.1, 2.0]


def test_position_0_has_its_own_colour():
    color = mpl.colors.to_rgba(rs.figures.PALETTE["position 0"])
    figure = DRAWINGS["deletions"]()
    assert [ax.patches[0].get_facecolor() == color for ax in figure.axes] == [False, True]
