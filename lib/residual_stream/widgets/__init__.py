"""Figures that one can move, and a box to predict in; both answer with no kernel behind them.

>>> import residual_stream as rs
>>> box = rs.widgets.predict("subspaces/S2", ["all of it", "half"], answer="b")
>>> box.picked
''
"""

from .base import MovableFigure
from .climb import climb
from .composition import composition
from .ledger import ledger
from .path_lengths import path_lengths
from .prediction import Prediction, look_back, predict, predictions
from .shelf import shelved, stored
from .sparsity import packing
from .variants import variants

__all__ = [
    "MovableFigure",
    "Prediction",
    "climb",
    "composition",
    "ledger",
    "look_back",
    "packing",
    "path_lengths",
    "predict",
    "predictions",
    "shelved",
    "stored",
    "variants",
]
