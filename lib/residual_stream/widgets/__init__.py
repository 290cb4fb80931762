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
from .prediction import Prediction, predict, predictions
from .shelf import shelved, stored
from .sparsity import packing

__all__ = [
    "MovableFigure",
    "Prediction",
    "climb",
    "composition",
    "ledger",
    "packing",
    "predict",
    "predictions",
    "shelved",
    "stored",
]
