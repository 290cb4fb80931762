"""Figures of the probe: what is drawn is what was measured."""

from __future__ import annotations

import pytest
import torch
from matplotlib.colors import to_hex

from residual_stream.figures import PALETTE, bus, probe


def heights(axes):
    return [bar.get_height() for bar in axes.patches]


def test_updates_are_drawn_as_given_on_a_log_axis():
    (axes,) = probe.updates(torch.tensor([9.0, 2.0]), torch.tensor([9.0, 0.5])).axes
    assert axes.get_yscale() == "log"
    assert [list(line.get_ydata()) for line in axes.lines[:2]] == [[9.0, 2.0], [9.0, 0.5]]


def test_a_deletion_that_loses_the_prediction_is_coloured_and_named():
    figure = probe.deletions(
        torch.tensor([-2.0, 1.0, 3.0]), intact=2.5, becomes=[" a|$x", "b", "c"]
    )
    (axes,) = figure.axes
    assert heights(axes) == [-2.0, 1.0, 3.0]
    assert [to_hex(bar.get_facecolor()).upper() for bar in axes.patches] == [
        PALETTE["mlp"], PALETTE["stream"], PALETTE["stream"],
    ]  # fmt: skip
    assert [text.get_text() for text in axes.texts] == ["nothing deleted", r"␣a|\$x"]


def test_the_lens_names_a_word_where_it_changes():
    figure = probe.lens_of_one(
        torch.tensor([5.0, 4.0, 0.5, 0.0]), reads=["x", "x", "yes", "yes"], predicted="yes"
    )
    (axes,) = figure.axes
    assert heights(axes) == [5.0, 4.0, 0.5, 0.0]
    assert [text.get_text() for text in axes.texts] == ["x", "yes"]
    assert to_hex(axes.patches[2].get_facecolor()).upper() == PALETTE["attn"]


def test_survival_has_a_row_for_each_prompt():
    (axes,) = probe.survival(torch.tensor([[True, False], [False, False]]), prompts=["a", "b"]).axes
    assert axes.collections[0].get_array().reshape(2, 2).tolist() == [[1, 0], [0, 0]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]


def test_survival_by_lead_draws_every_place_and_the_groups_medians():
    lead, survived = torch.tensor([0.1, 0.2, 2.0, 4.0]), torch.tensor([0.2, 0.4, 0.8, 1.0])
    figure = probe.survival_by_lead(
        lead, survived, groups=torch.tensor([0, 0, 1, 1]), published=0.9
    )
    (axes,) = figure.axes
    assert len(axes.collections[0].get_offsets()) == 4
    assert list(axes.lines[0].get_ydata()) == pytest.approx([0.3, 0.9])
    assert axes.lines[1].get_ydata()[0] == 0.9


def test_a_coordinates_story_knows_every_kind_of_write():
    kinds = ["embed", "linear_attn", "mlp", "mixer", "parallel"]
    (axes,) = bus.coordinate_story(torch.ones(5).cumsum(0), torch.ones(5), kinds).axes
    assert len(axes.patches) == 5


@pytest.mark.filterwarnings("error")
def test_a_word_without_glyphs_can_be_drawn():
    figure = probe.deletions(torch.tensor([-1.0]), intact=1.0, becomes=["\u96e8\n\x07"])
    figure.canvas.draw()
    assert [text.get_text() for text in figure.axes[0].texts][1] == "·⏎·"
