"""Measurements too long for a chapter's run, stored with the command that makes them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data" / "measured"


def stored(name: str) -> dict[str, Any]:
    """Return a stored measurement: plain numbers and lists, and under ``"command"`` its origin.

    Args:
        name: A file's name in ``data/measured`` without ``.json``.

    Returns:
        What the command of ``tools/`` wrote.

    Raises:
        ValueError: No measurement has that name.

    Example:
        >>> stored("ensembles_deletion")["command"]
        'python tools/measure_ensembles.py deletion'
    """
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        names = sorted(p.stem for p in FOLDER.glob("*.json"))
        raise ValueError(f"stored: no measurement {name!r}; there are {', '.join(names)}")
    return json.loads(path.read_text(encoding="utf-8"))
