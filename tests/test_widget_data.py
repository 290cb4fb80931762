"""The shipped figures: small, complete, and what the model says today."""

from __future__ import annotations

import json
import re

import looking_back
import nbformat
import pytest
import torch

import residual_stream as rs
from residual_stream.widgets.base import MAX_BYTES, MovableFigure, module_of
from widget_data import FIGURES, PROMPTS, SENTENCE, SWITCHES, TARGET

CHAPTERS = sorted((TARGET.parents[3] / "chapters").glob("*.ipynb"))
STATE = "application/vnd.jupyter.widget-state+json"


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_a_shipped_figure_is_small_and_says_what_it_shows(name):
    figure = rs.widgets.stored(name)
    assert (TARGET / f"{name}.json").stat().st_size < MAX_BYTES
    assert figure.kind == name
    assert len(repr(figure)) > 60
    assert "image/png" in figure._repr_mimebundle_()[0]


def test_what_is_not_shipped_is_refused():
    assert rs.widgets.shelved() == sorted(FIGURES)
    with pytest.raises(ValueError, match=r"'globe'.*'climb', 'ledger'"):
        rs.widgets.stored("globe")


@pytest.mark.real
def test_the_climb_is_what_the_model_does(smollm2):
    fresh = rs.widgets.climb(rs.record(smollm2, SENTENCE))
    kept = rs.widgets.stored("climb").data
    for name in ("tokens", "depths"):
        assert fresh.data[name] == kept[name]
    for name in ("norms", "cosines"):
        assert torch.tensor(fresh.data[name]).allclose(
            torch.tensor(kept[name]), rtol=0.02, atol=0.02
        )
    first = [[place[0][0] for place in row] for row in fresh.data["read"]]
    stored = [[place[0][0] for place in row] for row in kept["read"]]
    assert first == stored
    assert stored[-1][-1] == " Paris"


@pytest.mark.real
def test_a_sample_of_the_ledger_is_what_the_model_says_when_it_runs_again(smollm2):
    for prompt, case in zip(PROMPTS, rs.widgets.stored("ledger").data["cases"], strict=True):
        assert case["prompt"] == prompt
        assert len(case["real"]) == len(case["linear"]) == len(case["top"]) == 2**SWITCHES
        stream = rs.record(smollm2, prompt)
        ids = [smollm2.to_single_token(text) for text in case["tokens"]]
        assert case["tokens"][1:] == PROMPTS[prompt]

        def leave_out(value, hook):
            value = value.clone()
            value[0, -1] = 0
            return value

        for combination in (0, 5, 128, 255):
            off = [w for i, w in enumerate(case["switches"]) if (combination >> i) & 1]
            hooks = [(name, leave_out) for w in off for name in stream.wiring.writes[w].hooks]
            with torch.no_grad(), smollm2.hooks(fwd_hooks=hooks):
                logits = smollm2(stream.tokens)[0, -1]
            real = (logits - logits.mean())[ids]
            assert real.allclose(torch.tensor(case["real"][combination]), atol=0.02)
            guess = torch.tensor(case["linear"][0])
            guess = guess - torch.tensor(case["shares"])[:, off].sum(1)
            assert guess.allclose(torch.tensor(case["linear"][combination]), atol=0.06)


def test_the_files_are_as_the_tool_writes_them():
    for name in FIGURES:
        text = (TARGET / f"{name}.json").read_text(encoding="utf-8")
        compact = json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
        assert text == compact + "\n"


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_prediction_of_a_chapter_has_a_box_and_its_last_list_names_them_all(path):
    cells = nbformat.read(path, as_version=4).cells
    asked = sum(cell.source.count("> **Prediction.**") for cell in cells)
    boxes = [
        found
        for cell in cells
        for found in re.findall(r'rs\.widgets\.predict\(\s*"([^"]+)"', cell.source)
    ]
    assert len(boxes) == asked
    title, listed = looking_back.boxes(path)
    assert listed == boxes
    assert title.startswith(f"{int(path.stem[:2])} · ")


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_figures_on_a_chapters_page_are_drawn_by_the_librarys_own_script_and_style(path):
    stored = nbformat.read(path, as_version=4).metadata.get("widgets", {}).get(STATE, {})
    states = [each["state"] for each in stored.get("state", {}).values()]
    for state in states:
        if "_esm" in state:
            assert state["_esm"] == module_of(state["kind"]), "execute the chapter again"
            assert state["_css"] == MovableFigure._css, "execute the chapter again"
