"""All pairs of heads that could compose, beside what chance gives: pick a writing head."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from .. import figures
from ..composition import composes
from ..report import number
from .base import MovableFigure

STEPS = 255
_WORDS = {
    "head": "Writing head",
    "hide": "Show only what stands more than {limit} standard deviations above chance",
    "reads": "reading head, by layer",
    "writes": "writing head, by layer",
    "says": "{head} writes. Of the {count} heads above it, {best} hears it most through its "
    "{reader}: {score}, {far} standard deviations from chance ({chance}). {above} of them stand "
    "more than {limit} standard deviations above it.",
    "none": "{head} is in the last layer: no head of the stack reads it.",
}
_READERS = {"Q": "queries", "K": "keys", "V": "values"}
LIMIT = 3


def composition(
    scores: Float[Tensor, "layer head layer head"],
    *,
    kind: str,
    baseline: tuple[float, float],
    start: tuple[int, int] = (0, 0),
    marked: Sequence[tuple[tuple[int, int], tuple[int, int]]] = (),
) -> MovableFigure:
    """Return a map of all composition scores on which one can pick a writing head.

    Scores travel as bytes, in steps of a 255th of the largest.

    Args:
        scores: As :func:`residual_stream.composition_scores` returns them.
        kind: ``"Q"``, ``"K"`` or ``"V"``: what of the reading head the scores are of.
        baseline: Mean and standard deviation by chance, of
            :func:`residual_stream.composition_baseline`.
        start: The writing head that is picked first.
        marked: Pairs (source, reader) that the still picture points out.

    Returns:
        The figure.

    Raises:
        ValueError: An unknown kind, or a head that does not exist.

    Example:
        >>> import residual_stream as rs
        >>> model = rs.load("induction")
        >>> scores = rs.composition_scores(model, "K")
        >>> figure = composition(scores, kind="K", baseline=(0.1, 0.01), start=(0, 3))
        >>> figure.value, figure.data["heads"]
        (3, 4)
    """
    if kind not in _READERS:
        raise ValueError(f"composition: kind {kind!r} is not known; pass one of {list(_READERS)}")
    layers, heads = scores.shape[:2]
    if not (0 <= start[0] < layers and 0 <= start[1] < heads):
        raise ValueError(
            f"composition: head {start} does not exist; there are {layers} layers of {heads} heads"
        )
    size = layers * heads
    flat = scores.reshape(size, size).float().cpu()
    legal = composes(scores.cpu()).expand_as(scores).reshape(size, size)
    largest = float(flat[legal].max())
    steps = (flat.clamp(min=0) / largest * STEPS).round().to(torch.uint8)
    row = start[0] * heads + start[1]
    best = int(flat[row].masked_fill(~legal[row], -1).argmax())
    mean, deviation = baseline
    pair = f"L{start[0]}H{start[1]}", f"L{best // heads}H{best % heads}"
    return MovableFigure(
        kind="composition",
        label=f"{kind}-composition of all pairs of heads",
        sentence=f"{pair[0]} writes, and {pair[1]} hears it most through its {_READERS[kind]}: "
        f"{number(flat[row, best], 2)}, beside {number(mean, 2)} by chance "
        f"(standard deviation {number(deviation, 1)}).",
        data={
            "words": {**_WORDS, "reader": _READERS[kind]},
            "layers": layers,
            "heads": heads,
            "largest": round(largest, 5),
            "baseline": [round(mean, 5), round(deviation, 6)],
            "limit": LIMIT,
            # Pairs in rows of the writing head, only those with a reading head above it.
            "scores": base64.b64encode(steps[legal].numpy().tobytes()).decode(),
        },
        still=figures.composition.composition(scores, baseline=baseline, marked=marked),
        value=row,
    )
