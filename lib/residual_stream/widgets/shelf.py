"""Figures whose data took longer to compute than a page or a cell may: computed before, shipped."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from .base import MovableFigure
from .climb import still as still_of_climb
from .ledger import still as still_of_ledger

_STILLS = {"climb": still_of_climb, "ledger": still_of_ledger}


def _folder() -> Any:  # a Traversable, whose home moved in Python 3.11
    return files("residual_stream") / "data" / "widgets"


def shelved() -> list[str]:
    """Return the names of the shipped figures.

    Example:
        >>> shelved()
        ['climb', 'ledger']
    """
    names = [path.name for path in _folder().iterdir()]
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def stored(name: str) -> MovableFigure:
    """Return a shipped figure; ``tools/widget_data.py`` computed its data.

    Args:
        name: One of :func:`shelved`.

    Raises:
        ValueError: No figure of that name is shipped.

    Example:
        >>> stored("climb").data["depths"][0]
        'The row, before block 0'
    """
    if name not in shelved():
        raise ValueError(f"stored: no figure {name!r} is shipped; there are {shelved()}")
    kept = json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))
    return MovableFigure(**kept, still=_STILLS[kept["kind"]](kept["data"]))
