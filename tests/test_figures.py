"""Figures: one palette, labelled axes, opaque paper; nothing leaks into the reader's own style."""

import matplotlib as mpl
import pytest
import torch

from residual_stream import figures
from residual_stream.figures import bus, style

NORMS = torch.rand(9, 2, 6) + 1
KINDS = ["embed", *["attn", "mlp"] * 4]
LAYERS = [-1, 0, 0, 1, 1, 2, 2, 3, 3]
SAMPLE = torch.rand(9, 20)

DRAWINGS = {
    "climb": lambda: bus.climb(NORMS, layers=LAYERS),
    "write_ratio": lambda: bus.write_ratio(
        {"attn": SAMPLE, "mlp": SAMPLE}, {"attn": SAMPLE[:, 0], "mlp": SAMPLE[:, 0]}
    ),
    "row_at_depth": lambda: bus.row_at_depth(SAMPLE, SAMPLE),
    "coordinate_story": lambda: bus.coordinate_story(SAMPLE[:, 0], SAMPLE[:, 1], KINDS),
    "changed_writes": lambda: bus.changed_writes(SAMPLE, KINDS, 3),
    "normalised_reads": lambda: bus.normalised_reads({"q": SAMPLE, "k": SAMPLE, "v": SAMPLE}),
    "block_sizes": lambda: bus.block_sizes({"a": (4.0, 8.0, 0.1), "b": (2.7, 8.0, 0.0)}),
    "two_stacks": lambda: bus.two_stacks(
        [0, 1],
        {
            "left": {"plain": SAMPLE[:, :2], "residual": SAMPLE[:, 2:4]},
            "right": {"plain": SAMPLE[:, 4:6]},
        },
    ),
    "ledger": lambda: bus.ledger([str(i) for i in range(9)], KINDS, SAMPLE[:, 0] - 0.5),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_has_labelled_axes_an_opaque_ground_and_no_title(name):
    figure = DRAWINGS[name]()
    assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    for ax in figure.axes:
        assert ax.get_xlabel() and not ax.get_title()
        assert any(other.get_ylabel() for other in figure.axes) or ax.get_yticklabels()
    figure.canvas.draw()


def test_drawing_leaves_the_readers_style_alone():
    before = dict(mpl.rcParams)
    DRAWINGS["climb"]()
    assert dict(mpl.rcParams) == before


def test_no_two_things_share_a_colour():
    colours = [colour.lower() for colour in style.PALETTE.values()]
    assert len(set(colours)) == len(colours)
    assert {"embed", "attn", "mlp", "stream", "norm", "position 0"} <= set(figures.PALETTE)
