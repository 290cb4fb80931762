"""The audited ledger of the residual stream.

>>> import residual_stream as rs
>>> model = rs.load("bench")
>>> stream = rs.record(model, "In the beginning God created")
>>> stream.audit().ok
True
"""

from . import figures, report, texts
from .audit import Audit, LedgerError
from .models import available, checkpoints, load
from .stream import ResidualStream, record
from .wiring import Wiring, WiringError, read_wiring

__all__ = [
    "Audit",
    "LedgerError",
    "ResidualStream",
    "Wiring",
    "WiringError",
    "available",
    "checkpoints",
    "figures",
    "load",
    "read_wiring",
    "record",
    "report",
    "texts",
]
__version__ = "0.1.0"
