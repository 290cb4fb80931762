"""Training runs of residual variants: pick depth and learning rate, see who learns."""

from __future__ import annotations

from typing import Any

import pandas as pd

from .. import figures
from ..report import listing, number
from ..runs import STRIDE
from .base import MovableFigure

#: A run that ends above this share of what guessing costs has learned nothing.
LEARNED = 0.95
_NAMES = {colour: name for name, colour in figures.style.PALETTE.items()}
_DASHES = {"-": "", "--": "6 3", ":": "1.5 3"}
_WORDS = {
    "variants": "Residual connections:",
    "depth": "Layers:",
    "rate": "Learning rate",
    "steps": "training step",
    "rates": "learning rate",
    "loss": "loss (nats)",
    "last": "loss at the end",
    "guess": "guessing",
    "best": "best possible",
    "where": "{depth} layers, learning rate {rate}. ",
    "learned": "Best first: {names}. ",
    "guessing": "No better than guessing ({guess} nats): {names}. ",
    "blown": "Blew up: {names}.",
    "step": "{name} (at step {step})",
    "one": "{name} ({last} nats)",
    "none": "Tick a connection to see its run.",
}


def variants(
    runs: pd.DataFrame, *, best: float, guess: float, start: tuple[int, float], top: float | int
) -> MovableFigure:
    """Return training runs by residual connection, depth and learning rate, to pick from.

    Args:
        runs: As :func:`residual_stream.runs.stored` returns them: one task, one run for every
            variant, depth and rate.
        best: The loss that nobody can go below, in nats.
        guess: The loss of one who guesses.
        start: The depth and the rate that are shown first.
        top: Losses above it, and runs that did not end, are drawn at the upper edge.

    Returns:
        The figure; its still picture is :func:`residual_stream.figures.variants.cures`.

    Raises:
        ValueError: Runs of several tasks, a run that is missing or there twice, or a depth or rate
            that no run has.

    Example:
        >>> from residual_stream import runs, tasks
        >>> grid, task = runs.stored("cures"), tasks.lookup()
        >>> figure = variants(grid, best=task.best, guess=2.48, start=(24, 0.01), top=2.8)
        >>> figure.data["depths"], figure.value
        ([2, 8, 24], 10)
    """
    depths = [int(depth) for depth in sorted(runs.n_layers.unique())]
    rates = [float(rate) for rate in sorted(runs.rate.unique())]
    names = [name for name in figures.variants.LOOKS if name in set(runs.variant)]
    _require(runs, names, depths, rates, start)
    by_place = runs.set_index(["variant", "n_layers", "rate"])
    shown = []
    for name in names:
        colour, line = figures.variants.LOOKS[name]
        placed = [[_run(by_place.loc[(name, d, r)]) for r in rates] for d in depths]
        look = {"colour": _NAMES[colour], "dash": _DASHES[line]}
        shown.append({"name": name, **look, "runs": placed})
    depth, rate = depths.index(start[0]), rates.index(start[1])
    return MovableFigure(
        kind="variants",
        label="Training runs by residual connection, depth and learning rate",
        sentence=_sentence(runs, depths, guess),
        data={
            "words": _WORDS,
            "depths": depths,
            "rates": [f"{r:g}" for r in rates],
            "stride": STRIDE,
            "best": round(best, 3),
            "guess": round(guess, 3),
            "learned": round(LEARNED * guess, 3),
            "top": top,
            "variants": shown,
        },
        still=figures.variants.cures(runs, best=best, top=top),
        value=depth * len(rates) + rate,
    )


def _run(row: pd.Series) -> dict[str, Any]:
    diverged = None if pd.isna(row.diverged) else int(row.diverged)
    last = None if diverged is not None else round(float(row["last"]), 2)
    return {"losses": [round(x, 2) for x in row.losses], "last": last, "diverged": diverged}


def _sentence(runs: pd.DataFrame, depths: list[int], guess: float) -> str:
    deep = runs[runs.n_layers == depths[-1]]
    last = deep.groupby("variant", sort=False)["last"].min().astype(float)
    learned = last[last < LEARNED * guess].sort_values()
    failed = [name for name in last.index if name not in learned.index]
    text = f"With {depths[-1]} layers, each at its best rate: "
    text += listing([f"{name} ({float(value):.2f} nats)" for name, value in learned.items()])
    if failed:
        text += f"; at no rate better than guessing ({number(guess, 3)} nats): {listing(failed)}"
    return f"{text}."


def _require(
    runs: pd.DataFrame,
    names: list[str],
    depths: list[int],
    rates: list[float],
    start: tuple[int, float],
) -> None:
    if runs.task.nunique() != 1:
        raise ValueError(f"variants: runs of the tasks {sorted(runs.task.unique())}; pass one task")
    counted = runs.groupby(["variant", "n_layers", "rate"]).size()
    for place in ((name, d, r) for name in names for d in depths for r in rates):
        if (found := int(counted.get(place, 0))) != 1:
            raise ValueError(f"variants: {found} runs of {place}; there must be one of each")
    if start[0] not in depths or start[1] not in rates:
        raise ValueError(
            f"variants: start = {start} is no run; depths are {depths}, learning rates {rates}"
        )
