"""The figures of growth and of the variants: labelled axes, no titles, drawn from results."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
import pytest
import torch

import residual_stream as rs
from handmade import random_model
from residual_stream.figures import growth as drawn
from residual_stream.figures import variants
from residual_stream.growth import fit_growth

TOKENS = torch.tensor([[1, 5, 9, 2, 4], [7, 7, 3, 11, 0]])


def norms(unit="layer", *, layers=2):
    """Norms of a random model, its updates repeated to the wanted number of layers."""
    found = rs.stream_norms(rs.record(random_model("llama"), TOKENS), unit=unit)
    per_layer = 1 if unit == "layer" else 2
    pick = [i % len(found.labels) for i in range(layers * per_layer)]
    return rs.StreamNorms(
        labels=[found.labels[i] for i in pick],
        layers=[i // per_layer for i in range(len(pick))],
        kinds=[found.kinds[i] for i in pick],
        positions=found.positions,
        before=found.before[pick],
        size=found.size[pick],
        cosine=found.cosine[pick],
    )


def growth():
    y = torch.linspace(1, 9, 31).exp()
    fit = fit_growth(y[1:])
    laws = {"linear": fit.linear(30), "exponential": fit.exponential(30)}
    return drawn.growth([torch.arange(31.0) + 1] * 2, y, 100 * y, laws)


def updates():
    stream = rs.record(random_model("llama"), TOKENS)
    by_write = rs.stream_norms(stream, unit="sublayer").later
    return drawn.updates([by_write], by_write, rs.common_share(stream), stream.kinds, stream.layers)


RUNS = pd.DataFrame(
    [
        {"variant": v, "n_layers": n, "rate": r, "last": None if r > 2e-3 else 1.0 + n / 10}
        for v in ("pre-LN", "residual")
        for n in (2, 8)
        for r in (1e-3, 3e-3)
    ]
)
FIT = fit_growth(torch.arange(1.0, 9.0))

DRAWINGS = {
    "growth": growth,
    "updates": updates,
    "ratios": lambda: drawn.ratios([norms(layers=12)], norms(layers=12)),
    "over training": lambda: drawn.over_training({0: norms("sublayer"), 5: norms("sublayer")}),
    "rounding": lambda: drawn.rounding({"a": torch.rand(40, 2, 5), "b": torch.rand(40, 2, 5)}),
    "removals": lambda: drawn.removals(
        {f"{i}_mlp_out": 0.1 + i for i in range(6)}, ["attn", "mlp"] * 3,
        {"5_mlp_out": (1.0, 0.1), "4_mlp_out": (0.1, 1.0)},
    ),
    "laws": lambda: drawn.laws({"one": FIT, "two": FIT}),
    "by depth": lambda: variants.by_depth(
        {"pre-LN": torch.rand(2, 3) + 1, "GPT-2": torch.rand(2, 3) + 1}, (2, 4, 8), what="growth"
    ),
    "cures": lambda: variants.cures(RUNS, best=0.6, top=2.5),
    "factors": lambda: variants.factors(
        [2, 8, 32], [1.4, 2.0, 2.8], [0.5, 0.35, 0.25], {"a": [0.1, -0.2], "b": [0.1, 0.0]}
    ),
    "shapes": lambda: variants.shapes(
        {"lookup": {"2 of 48": [[2.0, 1.0]]}, "repeats": {"2 of 48": [[2.0, 1.5], [2.0, 1.4]]}},
        best={"lookup": 0.6, "repeats": 1.3}, stride=10,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_has_labelled_axes_an_opaque_ground_and_no_title(name):
    figure = DRAWINGS[name]()
    assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    assert all(not ax.get_title() for ax in figure.axes)
    assert all(ax.get_xlabel() or ax.get_ylabel() for ax in figure.axes)
    figure.canvas.draw()


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawing_leaves_the_readers_style_alone(name):
    before = dict(mpl.rcParams)
    DRAWINGS[name]()
    assert dict(mpl.rcParams) == before


def test_a_run_that_did_not_end_stands_at_the_upper_edge():
    lines = variants.cures(RUNS, best=0.6, top=2.5).axes[0].lines
    assert lines[0].get_ydata().tolist() == [1.2, 2.5]


def test_position_0_has_its_own_colour_wherever_it_is_drawn():
    orange = mpl.colors.to_hex(rs.figures.PALETTE["position 0"])
    for name in ("growth", "ratios", "rounding", "removals"):
        artists = [a for ax in DRAWINGS[name]().axes for a in (*ax.lines, *ax.patches)]
        colors = [
            mpl.colors.to_hex(a.get_color() if hasattr(a, "get_color") else a.get_facecolor())
            for a in artists
        ]
        assert orange.lower() in [color.lower() for color in colors], name
