"""The gradient by path length, before and after training: pick a model and a length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import figures
from ..path_gradients import PathGradients
from ..report import number
from .base import MovableFigure

#: Below this share of the whole gradient nothing is drawn or told apart.
FLOOR = 1e-4
_WORDS = {
    "model": "Model",
    "length": "Branches on the path",
    "axis": "size over the whole gradient (log axis), by branches on the path",
    "parts": "the paths of one length together",
    "first": "the same at position 0",
    "error": "error of all paths up to a length",
    "says": "{model}: the paths through {length} are together {size} times as long as the whole "
    "gradient ({first} at position 0). All paths up to this length, added up, miss it by "
    "{error} times its length. The sizes for all lengths add up to {ratio} times the whole; the "
    "mean path enters {mean} branches.",
    "none": "no branch",
    "one": "1 branch",
    "many": "{count} branches",
    "least": "less than {floor}",
}


def path_lengths(
    parts: Mapping[str, PathGradients], *, pictured: Sequence[str], start: tuple[str, int]
) -> MovableFigure:
    """Return the row's gradient by path length, for models of which one can pick one.

    Sizes are medians over places; position 0 is left out of them and shown apart.

    Args:
        parts: By the model's name, as :func:`residual_stream.gradient_by_path_length` returns them.
        pictured: The models in the still picture, at most three.
        start: The model and the path length that are shown first.

    Returns:
        The figure.

    Raises:
        ValueError: No models, or a model or length that is not there.

    Example:
        >>> import residual_stream as rs
        >>> parts = rs.gradient_by_path_length(rs.load("bench"), "In the beginning")
        >>> figure = path_lengths({"bench": parts}, pictured=["bench"], start=("bench", 2))
        >>> figure.value, len(figure.data["frames"][0]["size"])
        (2, 9)
    """
    _require(parts, pictured, start)
    frames = [_frame(name, one) for name, one in parts.items()]
    stride = max(len(frame["size"]) for frame in frames)
    shown = list(parts).index(start[0])
    length = min(start[1], len(frames[shown]["size"]) - 1)
    return MovableFigure(
        kind="path_lengths",
        label="The gradient by path length",
        sentence=" ".join(_sentence(frame) for frame in frames if frame["name"] in pictured),
        data={"words": _WORDS, "floor": FLOOR, "stride": stride, "frames": frames},
        still=figures.gradients.by_length({name: parts[name] for name in pictured}),
        value=shown * stride + length,
    )


def _frame(name: str, one: PathGradients) -> dict[str, Any]:
    whole = one.direct.double().norm(dim=-1)  # [batch, pos]
    size = one.norms.double() / whole
    running = (one.values.double().cumsum(0) - one.direct.double()).norm(dim=-1) / whole
    later = [x[:, :, 1:].flatten(1).median(1).values for x in (size, running)]
    first = size[:, :, 0].median(1).values
    seen = (later[0].maximum(later[1]).maximum(first) >= FLOOR).nonzero()
    end = int(seen.max()) + 1  # longer paths bring nothing that one could see
    ratio, mean = (x[:, 1:].double().median() for x in (one.cancellation, one.mean_length))
    return {
        "name": name,
        "size": _rounded(later[0][:end]),
        "error": _rounded(later[1][:end]),
        "first": _rounded(first[:end]),
        "ratio": float(f"{float(ratio):.2g}"),
        "mean": round(float(mean), 1),
    }


def _rounded(values: Any) -> list[float]:
    """Two digits, and no difference between what is too small to see."""
    return [float(f"{x:.2g}") if x >= FLOOR else 0.0 for x in values.tolist()]


def _sentence(frame: dict[str, Any]) -> str:
    size = frame["size"]
    longest = max(range(len(size)), key=size.__getitem__)
    branches = "1 branch" if longest == 1 else f"{longest} branches"
    return (
        f"{frame['name']}: the largest part of the gradient comes by paths of {branches} and is "
        f"{number(size[longest], 2)} times as long as the whole; the sizes for all lengths add up "
        f"to {number(frame['ratio'], 2)} times the whole."
    )


def _require(
    parts: Mapping[str, PathGradients], pictured: Sequence[str], start: tuple[str, int]
) -> None:
    if not parts:
        raise ValueError("path_lengths: no models are given; pass names and their path gradients")
    if missing := [name for name in (*pictured, start[0]) if name not in parts]:
        raise ValueError(f"path_lengths: no model {missing[0]!r}; there are {list(parts)}")
    if not 1 <= len(pictured) <= 3:
        raise ValueError(f"path_lengths: {len(pictured)} models pictured; the picture has 1 to 3")
    if not 0 <= start[1] < len(parts[start[0]].values):
        raise ValueError(
            f"path_lengths: no paths of {start[1]} branches; {start[0]!r} has up to "
            f"{len(parts[start[0]].values) - 1}"
        )
