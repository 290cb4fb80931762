"""Compute what the shipped figures show: the climbing sentence and the ledger with its switches.

    python tools/widget_data.py             # writes lib/residual_stream/data/widgets/*.json
    python tools/widget_data.py climb

A sample is computed again by tests/test_widget_data.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import residual_stream as rs

TARGET = Path(__file__).parents[1] / "lib" / "residual_stream" / "data" / "widgets"
SENTENCE = "The capital of France is"
#: A prompt, and tokens to hold beside the model's own answer.
PROMPTS = {
    "The capital of France is": [" Lyon", " the"],
    "The opposite of hot is": [" warm", " the"],
    "Monday, Tuesday, Wednesday,": [" Thursday", " Friday"],
}
SWITCHES = 8


def climb(model) -> rs.widgets.MovableFigure:
    """Return the landing page's figure."""
    return rs.widgets.climb(rs.record(model, SENTENCE))


def ledger(model) -> rs.widgets.MovableFigure:
    """Return the ledger of a few predictions, every combination of their largest writes run."""
    cases = []
    for prompt, others in PROMPTS.items():
        stream = rs.record(model, prompt)
        cases.append((stream, rs.switch_off(stream, others, writes=SWITCHES)))
    return rs.widgets.ledger(cases)


FIGURES = {"climb": climb, "ledger": ledger}


def kept(figure: rs.widgets.MovableFigure) -> dict:
    """Return what is written of a figure: all of it but its picture."""
    return {
        "kind": figure.kind,
        "label": figure.label,
        "sentence": figure.sentence,
        "data": figure.data,
        "value": figure.value,
    }


def main(arguments: list[str] | None = None) -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(FIGURES)}; default: all")
    names = parser.parse_args(arguments).names or list(FIGURES)
    if unknown := set(names) - set(FIGURES):
        parser.error(f"no figure {sorted(unknown)}; there are {list(FIGURES)}")
    model = rs.load("smollm2-135m", device="cpu")
    TARGET.mkdir(exist_ok=True)
    for name in names:
        text = json.dumps(kept(FIGURES[name](model)), ensure_ascii=False, separators=(",", ":"))
        (TARGET / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {len(text.encode()):,} bytes")


if __name__ == "__main__":
    main()
