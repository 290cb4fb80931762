r"""Tell right answers from wrong ones without holding the right ones.

Of an answer :math:`x` with :math:`n` numbers a check keeps

.. math:: f_i = \frac{1}{\sqrt n} \sum_j s_{ij} \, \mathrm{asinh}(x_j / c), \qquad i = 1 … 12,

with signs :math:`s_{ij}` that are the same for everybody and :math:`c` the median size of the right
answer's numbers. Twelve numbers cannot be turned back into thousands; yet two answers that differ
have different ones, and those of an answer computed on another processor differ by rounding only.
The arcsinh keeps large entries, such as those of position 0, from drowning the rest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

_COUNT = 12
_FOLDER = Path(__file__).parents[1] / "data" / "checks"


@dataclass(frozen=True, repr=False)
class Check:
    """What the check of one answer found.

    Attributes:
        question: The answer's name.
        ok: Whether it is right.
        text: What is wrong, and of which kind.
        mistake: The name of the usual mistake that it is; empty if it is none.
        page: Where the book corrects it.
    """

    question: str
    ok: bool
    text: str = ""
    mistake: str = ""
    page: str = ""

    def __bool__(self) -> bool:
        """Whether the answer is right."""
        return self.ok

    def __repr__(self) -> str:
        """One line."""
        if self.ok:
            return f"{self.question}: right."
        more = f" See {self.page}." if self.page else ""
        return f"{self.question}: not right. {self.text}{more}"


@dataclass(frozen=True, repr=False)
class Checks:
    """What the check of several answers found; true if all are right.

    Attributes:
        found: One finding per answer.
    """

    found: tuple[Check, ...]

    def __bool__(self) -> bool:
        """Whether all are right."""
        return all(self.found)

    def __repr__(self) -> str:
        """One line per answer."""
        return "\n".join(map(repr, self.found))


def agree(
    given: Any, expected: Shaped[Tensor, "..."], *, rtol: float = 1e-3, atol: float = 1e-5
) -> bool:
    """Return whether a tensor has the expected shape and, to a tolerance, the expected values.

    Args:
        given: What came back; anything.
        expected: What is right.
        rtol: Tolerance relative to each expected value.
        atol: Tolerance relative to the largest expected value.

    Example:
        >>> agree(torch.ones(3), torch.ones(3) + 1e-6), agree(torch.ones(1), torch.ones(3))
        (True, False)
    """
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        given = torch.tensor(float(given))
    if not isinstance(given, Tensor) or given.shape != expected.shape or given.is_complex():
        return False
    right = expected.detach().cpu().double()
    size = float(right.abs().max()) if right.numel() else 0.0
    return torch.allclose(given.detach().cpu().double(), right, rtol=rtol, atol=atol * size)


def to_numbers(value: Any) -> Tensor | None:
    """Return an answer as a tensor of float64 on the CPU, or None if it isn't numbers."""
    if isinstance(value, (np.ndarray, np.generic, list, tuple, int, float)):
        try:
            value = torch.as_tensor(np.asarray(value))
        except (TypeError, ValueError, RuntimeError):
            return None
    if not isinstance(value, Tensor) or value.is_complex() or value.layout != torch.strided:
        return None
    return value.detach().cpu().double()


@lru_cache(maxsize=64)
def _signs(n: int) -> np.ndarray:
    # RandomState's stream is frozen for good: the same signs on every machine and version.
    return np.random.RandomState(0).randint(0, 2, (_COUNT, n)).astype(np.float64) * 2 - 1


def fingerprint(x: Shaped[Tensor, "..."], scale: float) -> np.ndarray:
    """Return the twelve numbers that a check keeps of `x`."""
    flat = x.flatten().numpy()
    return _signs(flat.size) @ np.arcsinh(flat / scale) / np.sqrt(max(flat.size, 1))


def describe(x: Shaped[Tensor, "..."]) -> dict[str, Any]:
    """Return what a check keeps of the right answer: shape, scale, and both fingerprints."""
    size = x.abs()
    scale = float(size[size > 0].median()) if bool((size > 0).any()) else 1.0
    flat = x.flatten().numpy()
    return {
        "shape": list(x.shape),
        "scale": float(f"{scale:.6g}"),
        "size": float(f"{np.sqrt(np.mean(np.arcsinh(flat / scale) ** 2)):.6g}"),
        "right": _short(fingerprint(x, float(f"{scale:.6g}"))),
        "linear": _short(_signs(flat.size) @ flat / np.sqrt(flat.size)),
    }


def describe_mistake(x: Shaped[Tensor, "..."], scale: float) -> dict[str, Any]:
    """Return what a check keeps of a wrong answer."""
    return {"shape": list(x.shape), "values": _short(fingerprint(x, scale))}


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.7g}") for value in values]


@lru_cache
def kept(sheet: str) -> dict[str, Any]:
    """Return what the checks of a sheet keep, by question."""
    return json.loads((_FOLDER / f"{sheet}.json").read_text(encoding="utf-8"))


def compare(name: str, value: Any, known: dict[str, Any], asks: str, tolerance: float) -> Check:
    """Return what an answer is: right, a usual mistake, or wrong in its form.

    Args:
        name: The question.
        value: The answer.
        known: What is kept of the right answer and of the usual mistakes.
        asks: The shape that is asked, in words.
        tolerance: How far fingerprints may be apart, relative to the right answer's size.
    """
    if value is None or value is ...:
        return Check(name, False, "It returns nothing yet.", "nothing")
    x = to_numbers(value)
    if x is None:
        return Check(name, False, f"It returns a {type(value).__name__}, not a tensor.", "type")
    shape, asked = list(x.shape), known["shape"]
    if not bool(torch.isfinite(x).all()):
        return Check(name, False, "Some of its values are NaN or infinite.", "not finite")
    far = tolerance * max(known["size"], 1e-12)
    print_of = fingerprint(x, known["scale"])
    if shape == asked and np.abs(print_of - known["right"]).max() <= far:
        return Check(name, True)
    for mistake in known["mistakes"]:
        if shape == mistake["shape"] and np.abs(print_of - mistake["values"]).max() <= far:
            return Check(name, False, mistake["says"], mistake["name"], mistake["page"])
    if shape != asked:
        return _of_shape(name, shape, asked, asks)
    return _of_factor(name, x, known, tolerance)


def _of_shape(name: str, shape: list[int], asked: list[int], asks: str) -> Check:
    text = f"It has shape {shape}; asked is {asks}, here {asked}."
    if len(shape) == len(asked) <= 5 and tuple(asked) in set(permutations(shape)):
        return Check(name, False, text + " The axes are in another order.", "axes in another order")
    return Check(name, False, text, "shape")


def _of_factor(name: str, x: Tensor, known: dict[str, Any], tolerance: float) -> Check:
    flat = x.flatten().numpy()
    linear = _signs(flat.size) @ flat / np.sqrt(flat.size)
    right = np.asarray(known["linear"])
    factor = float(linear @ right / max(right @ right, 1e-300))
    if factor and np.abs(linear - factor * right).max() <= tolerance * np.abs(factor * right).max():
        what = "the other sign" if abs(factor + 1) < 1e-3 else f"a factor of {factor:.4g}"
        return Check(name, False, f"Every value is right but for {what}.", "factor")
    text = "Its shape is as asked, and its values are none of the usual mistakes."
    return Check(name, False, text)
