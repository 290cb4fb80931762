"""Figures: functions that take results and return a matplotlib figure.

One palette for the whole book (:mod:`.style`): what a colour stands for never changes.
"""

from . import attribution, bus, climb, composition, geometry, style, superposition, switches
from .style import PALETTE

__all__ = [
    "PALETTE",
    "attribution",
    "bus",
    "climb",
    "composition",
    "geometry",
    "style",
    "superposition",
    "switches",
]
