"""Figures: functions that take results and return a matplotlib figure.

One palette for the whole book (:mod:`.style`): what a colour stands for never changes.
"""

from . import (
    attribution,
    bus,
    climb,
    composition,
    ensembles,
    geometry,
    gradients,
    growth,
    monitor,
    probe,
    style,
    superposition,
    switches,
    variants,
)
from .style import PALETTE

__all__ = [
    "PALETTE",
    "attribution",
    "bus",
    "climb",
    "composition",
    "ensembles",
    "geometry",
    "gradients",
    "growth",
    "monitor",
    "probe",
    "style",
    "superposition",
    "switches",
    "variants",
]
