"""Figures that one can move, and a box to predict in; both answer with no kernel behind them.

>>> import residual_stream as rs
>>> box = rs.widgets.predict("subspaces/S2", ["all of it", "half"], answer="b")
>>> box.picked
''
"""

from .base import MovableFigure
from .prediction import Prediction, predict, predictions
from .sparsity import packing

__all__ = ["MovableFigure", "Prediction", "packing", "predict", "predictions"]
