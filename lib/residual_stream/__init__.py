"""The audited ledger of the residual stream, and what is read off it.

>>> import residual_stream as rs
>>> model = rs.load("bench")
>>> stream = rs.record(model, "In the beginning God created")
>>> stream.audit().ok
True
"""

from . import (
    arrangements,
    cancellation,
    coordinates,
    directions,
    divisor,
    figures,
    packing,
    pairs,
    report,
    rotation,
    subspaces,
    superposition,
    texts,
    widgets,
)
from .ablation import ablate_heads, self_repair
from .attribution import Attribution, logit_attribution
from .audit import Audit, LedgerError
from .composition import composes, composition_baseline, composition_pairs, composition_scores
from .heads import copying_scores, head_scores, ov_eigenvalues, repeated_random_tokens
from .lens import lens_by_depth
from .models import available, checkpoints, load
from .readout import Readout, ReadoutError, own_logits, read_readout
from .rerun import rerun_from, run_to_top, skipped_blocks
from .stream import ResidualStream, record
from .switches import Switches, switch_off
from .wiring import Wiring, WiringError, read_wiring

__all__ = [
    "Attribution",
    "Audit",
    "LedgerError",
    "Readout",
    "ReadoutError",
    "ResidualStream",
    "Switches",
    "Wiring",
    "WiringError",
    "ablate_heads",
    "arrangements",
    "available",
    "cancellation",
    "checkpoints",
    "composes",
    "composition_baseline",
    "composition_pairs",
    "composition_scores",
    "coordinates",
    "copying_scores",
    "directions",
    "divisor",
    "figures",
    "head_scores",
    "lens_by_depth",
    "load",
    "logit_attribution",
    "ov_eigenvalues",
    "own_logits",
    "packing",
    "pairs",
    "read_readout",
    "read_wiring",
    "record",
    "repeated_random_tokens",
    "report",
    "rerun_from",
    "rotation",
    "run_to_top",
    "self_repair",
    "skipped_blocks",
    "subspaces",
    "superposition",
    "switch_off",
    "texts",
    "widgets",
]
__version__ = "0.1.0"
