"""The figures of training runs: labelled axes, no titles, and one that redraws as a run goes on."""

from __future__ import annotations

import sys
import types

import matplotlib as mpl
import pytest
import torch
import transformers

import residual_stream as rs
from residual_stream.figures import monitor as drawn


def watched(*, steps=3):
    torch.manual_seed(0)
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 11, "n_positions": 8}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape))
    monitor = rs.StreamMonitor(model, every=2)
    for _ in range(steps):
        yield monitor
        model(torch.randint(11, (3, 8))).logits.square().mean().backward()
        monitor.step()
    monitor.remove()
    yield monitor


def done():
    return list(watched())[-1]


DRAWINGS = {
    "losses": lambda: drawn.losses({"A": [3.0, 2.0, 1.0] * 4, "B": [3.0, 2.1, 1.1] * 5}),
    "one run": lambda: drawn.vital_signs(done()),
    "two runs": lambda: drawn.vital_signs({"A": done(), "B": done()}),
    "by depth": lambda: drawn.by_depth(done()),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_has_labels_an_opaque_ground_and_no_title(name):
    figure = DRAWINGS[name]()
    assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    assert all(not ax.get_title() for ax in figure.axes)
    assert figure.axes[0].get_ylabel()
    assert figure.axes[0].get_xlabel() or figure.get_supxlabel()
    figure.canvas.draw()


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawing_leaves_the_readers_style_alone(name):
    before = dict(mpl.rcParams)
    DRAWINGS[name]()
    assert dict(mpl.rcParams) == before


def test_a_map_shows_what_the_frame_holds():
    monitor = done()
    frame = monitor.to_frame().query("part != 'stream'")
    shown = drawn.vital_signs(monitor).axes[0].images[0].get_array()
    assert shown.shape == (4, 2)  # two branches of two blocks, steps 1 and 2
    row = frame.query("layer == 1 and part == 'attn' and step == 2")
    assert shown[2, 1] == pytest.approx((row["varies"] / row["before"]).item())


def test_a_monitor_that_has_seen_nothing_cannot_be_drawn():
    with pytest.raises(ValueError, match="monitor 'A' has sampled no step yet"):
        drawn.vital_signs({"A": next(watched())})


def test_live_draws_on_new_samples_only_and_needs_no_front_end():
    run = watched(steps=4)
    live, figures = drawn.Live(next(run)), []
    figures.append(live.draw())
    for _ in run:
        figures.append(live.draw())
    # nothing; step 1; step 2; step 3 (not sampled); step 4
    assert figures[0] is None and figures[1] is not None
    assert figures[2] is not figures[1] and figures[3] is figures[2]
    assert figures[4] is not figures[3] and figures[4] is live.figure


def test_live_replaces_its_figure_where_it_stands_in_a_notebook(monkeypatch):
    shown, replaced = [], []

    class Handle:
        def update(self, figure):
            replaced.append(figure)

    def display(figure, *, display_id):
        assert display_id
        shown.append(figure)
        return Handle()

    fake = types.ModuleType("IPython.display")
    fake.display = display
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    monkeypatch.setattr(drawn, "_shell", lambda: object())
    run = watched(steps=4)
    live = drawn.Live(next(run))
    for _ in run:
        live.draw()
    assert len(shown) == 1 and len(replaced) == 2 and replaced[-1] is live.figure
