"""Features packing into a plane as they get sparser: drag the sparsity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .. import figures
from ..report import number, percent
from ..superposition import ToyModels
from .base import MovableFigure

_COUNTED = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_PHRASES = {
    "orthogonal": "at a right angle",
    "pair and one": "one antipodal pair and one feature across it",
    "antipodal pairs": "in two antipodal pairs",
    "pentagon": "as a pentagon",
    "other": "in an arrangement without a name",
}


def packing(
    toys: ToyModels, *, size: int, pictured: Sequence[float | int], tolerance: float = 0.02
) -> MovableFigure:
    """Return a figure of toy models in a plane whose sparsity one can drag.

    Of every group one model is shown: within ``tolerance`` of the group's lowest loss, the one for
    which the features move least from group to group
    (:meth:`~residual_stream.superposition.ToyModels.in_step`).

    Args:
        toys: Models with two hidden dimensions and one importance, in groups of one sparsity,
            in the order of the slider.
        size: Models in a group: one sparsity, several seeds.
        pictured: Sparsities that the still picture shows.
        tolerance: How much worse than the best of its group a shown model may be.

    Returns:
        The figure.

    Raises:
        ValueError: Not two hidden dimensions, groups of several sparsities, several importances,
            or a pictured sparsity that no model has.

    Example:
        >>> from residual_stream.superposition import ToyRecipe, train_toys
        >>> toys = train_toys(
        ...     features=5, hidden=2, sparsity=[0.0, 0.0, 0.9, 0.9], recipe=ToyRecipe(steps=5)
        ... )
        >>> packing(toys, size=2, pictured=[0.9]).data["importance"]
        [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    _require(toys, size, pictured)
    shown = toys.in_step(size, tolerance=tolerance)
    names = toys.geometries()
    frames = [_frame(shown, i, names[size * i : size * (i + 1)]) for i in range(len(shown.W))]
    levels = [_close(float(s)) for s in shown.sparsity]
    still = shown.pick([levels.index(_close(s)) for s in pictured])
    return MovableFigure(
        kind="packing",
        label="Features in a plane, over sparsity",
        sentence=" ".join(frames[levels.index(_close(s))]["sentence"] for s in pictured),
        data={
            "slider": "Sparsity S",
            "columns": ["feature", "importance", "dimensions it has to itself"],
            "importance": [round(x, 3) for x in shown.importance[0].tolist()],
            "frames": frames,
        },
        still=figures.superposition.toy_features(still, columns=3),
    )


def _close(sparsity: float | int) -> float:
    return round(float(sparsity), 4)


def _frame(shown: ToyModels, index: int, group: Sequence[str]) -> dict[str, Any]:
    kept = shown.represented()[index].tolist()
    sparsity, features = float(shown.sparsity[index]), len(kept)
    name = shown.geometries()[index]
    same = Counter(group)[name]
    return {
        "label": f"{sparsity:.3f}".rstrip("0").ljust(4, "0"),
        "at": [[round(x, 3) + 0.0 for x in column] for column in shown.W[index].T.tolist()],
        "kept": kept,
        "share": [round(x, 2) + 0.0 for x in shown.dimensionality()[index].tolist()],
        "sentence": (
            f"At sparsity {number(sparsity, 3)}, each feature on {percent(1 - sparsity, 3)} of the "
            f"time, {_counted(sum(kept))} of {_counted(features)} are kept, {_PHRASES[name]} "
            f"({same} of {len(group)} seeds)."
        ),
    }


def _counted(count: int) -> str:
    return _COUNTED[count] if count < len(_COUNTED) else str(count)


def _require(toys: ToyModels, size: int, pictured: Sequence[float | int]) -> None:
    if toys.W.shape[1] != 2:
        raise ValueError(f"packing: the models have {toys.W.shape[1]} hidden dimensions, not 2")
    grouped = toys.sparsity.split(size)
    if not all(bool((group == group[0]).all()) for group in grouped):
        raise ValueError(f"packing: a group of size = {size} has several sparsities")
    if not bool((toys.importance == toys.importance[:1]).all()):
        raise ValueError("packing: the models differ in importance; pass models of one importance")
    levels = sorted({_close(float(s)) for s in toys.sparsity})
    if missing := [s for s in pictured if _close(s) not in levels]:
        raise ValueError(f"packing: no model has the sparsity {missing[0]}; they have {levels}")
