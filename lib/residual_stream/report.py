"""Sentences written by code: no measured number in the book is typed.

A chapter measures, and hands the values to :class:`Result`, which shows the sentence and carries
the claim's id and verdict along, for the claims page to collect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Shaped
from torch import Tensor

Verdict = Literal["true", "true with a caveat", "wrong as stated"]
CLAIM_MIME = "application/vnd.residual-stream.claim+json"
_MARKS = {"true": "✓", "true with a caveat": "◐", "wrong as stated": "✗"}


@dataclass(frozen=True)
class Result:
    """What the experiment of one claim found; shows itself in a notebook.

    Attributes:
        claim: The claim's id, for example ``"B1"``.
        verdict: ``"true"``, ``"true with a caveat"`` or ``"wrong as stated"``.
        sentence: What was measured, with values formatted by this module's functions.
    """

    claim: str
    verdict: Verdict
    sentence: str

    def __post_init__(self) -> None:
        """Refuse a verdict that the book does not know."""
        if self.verdict not in _MARKS:
            raise ValueError(
                f"Result: verdict {self.verdict!r} for claim {self.claim}; it may be "
                + ", ".join(map(repr, _MARKS))
            )

    def __str__(self) -> str:
        """The sentence with its claim and verdict, as plain text."""
        return f"Result ({self.claim}: {self.verdict}). {self.sentence}"

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        head = f"**Result · {self.claim} · {_MARKS[self.verdict]} {self.verdict}.**"
        return {
            "text/plain": str(self),
            "text/markdown": f"> {head} {self.sentence}",
            CLAIM_MIME: {
                "claim": self.claim,
                "verdict": self.verdict,
                "sentence": self.sentence,
            },
        }


@dataclass(frozen=True)
class Finding:
    """What a cell measured, where no claim is decided; shows itself in a notebook.

    Attributes:
        sentence: What was measured, with values formatted by this module's functions.

    Example:
        >>> Finding(f"All {number(30)} updates are there.")
        Finding. All 30 updates are there.
    """

    sentence: str

    def __str__(self) -> str:
        """The sentence, as plain text."""
        return f"Finding. {self.sentence}"

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return f"> **Finding.** {self.sentence}"


@dataclass(frozen=True)
class Table:
    """A table written by code; shows itself in a notebook and as text.

    Attributes:
        columns: The heads of the columns.
        rows: The rows, as many cells in each as there are columns.

    Example:
        >>> Table(["layer", "kept"], [["0", "no"], ["11", "yes"]])
        layer  kept
        0      no
        11     yes
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        """Refuse rows that do not fit the columns."""
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"Table: a row has {len(row)} cells ({row!r}), there are {len(self.columns)} "
                    "columns"
                )

    def __str__(self) -> str:
        """The table in fixed-width text."""
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        cells = [[cell.replace("|", "\\|").replace("\n", "⏎") for cell in line] for line in lines]
        return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def number(value: int | float | Tensor, digits: int = 3) -> str:
    """Format a value to ``digits`` significant digits, thousands set off by a narrow space.

    Example:
        >>> number(0.012345), number(25123.4, 2), number(-3.0, 2)
        ('0.0123', '25\u202f000', '−3')
    """
    value = float(torch.as_tensor(value).detach())
    if value == 0 or value != value or abs(value) == float("inf"):
        return f"{value:g}".replace("-", "−")
    rounded = float(f"{value:.{digits - 1}e}")
    if abs(rounded) >= 1e7 or abs(rounded) < 1e-4:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"{mantissa}·10{power}".replace("-", "−")
    decimals = 0
    while decimals < 8 and round(rounded, decimals) != rounded:
        decimals += 1
    return f"{rounded:,.{decimals}f}".replace(",", "\u202f").replace("-", "−")


def percent(share: int | float | Tensor, digits: int = 2) -> str:
    """Format a share as a percentage.

    Example:
        >>> percent(0.8812), percent(0.004)
        ('88 %', '0.4 %')
    """
    return f"{number(100 * torch.as_tensor(share).detach(), digits)} %"


def spread(values: Shaped[Tensor, "..."] | Sequence[int | float], digits: int = 2) -> str:
    """Format a sample: its median, and the range of its middle 90 %.

    Example:
        >>> spread([1.0, 2.0, 3.0])
        '2 (middle 90 %: 1.1 to 2.9)'
    """
    flat = torch.as_tensor(values).detach().flatten().double()
    low, mid, high = (float(torch.quantile(flat, q)) for q in (0.05, 0.5, 0.95))
    return f"{number(mid, digits)} (middle 90 %: {number(low, digits)} to {number(high, digits)})"


def listing(items: Sequence[object]) -> str:
    """Join items as a sentence does.

    Example:
        >>> listing([3, 14, 29])
        '3, 14 and 29'
    """
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
