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
    checks,
    clinic,
    coordinates,
    directions,
    divisor,
    figures,
    growth,
    packing,
    pairs,
    report,
    rotation,
    rounding,
    subspaces,
    superposition,
    texts,
    widgets,
)
from .ablation import ablate_heads, self_repair
from .attribution import Attribution, logit_attribution
from .audit import Audit, LedgerError
from .composition import composes, composition_baseline, composition_pairs, composition_scores
from .deletion import Departure, delete_layers, reorder_layers
from .gradients import StreamGradients, stream_gradients
from .heads import copying_scores, head_scores, ov_eigenvalues, repeated_random_tokens
from .jacobian import BlockJacobian, block_jacobian
from .lens import lens_by_depth
from .long_corpora import CorpusShares, corpus_shares, over_corpus
from .models import available, checkpoints, load
from .monitor import StreamMonitor
from .norms import StreamNorms, common_share, stream_norms
from .path_gradients import PathGradients, gradient_by_path_length, gradient_of_every_path
from .paths import PathExpansion, expand_paths
from .probe import probe
from .probe_story import Probe
from .readout import Readout, ReadoutError, own_logits, read_readout
from .rerun import rerun_from, run_blocks, run_to_top, skipped_blocks
from .stream import ResidualStream, record
from .switches import Switches, switch_off
from .untrained import untrained
from .wiring import Wiring, WiringError, read_wiring

__all__ = [
    "Attribution",
    "Audit",
    "BlockJacobian",
    "CorpusShares",
    "Departure",
    "LedgerError",
    "PathExpansion",
    "PathGradients",
    "Probe",
    "Readout",
    "ReadoutError",
    "ResidualStream",
    "StreamGradients",
    "StreamMonitor",
    "StreamNorms",
    "Switches",
    "Wiring",
    "WiringError",
    "ablate_heads",
    "arrangements",
    "available",
    "block_jacobian",
    "cancellation",
    "checkpoints",
    "checks",
    "clinic",
    "common_share",
    "composes",
    "composition_baseline",
    "composition_pairs",
    "composition_scores",
    "coordinates",
    "copying_scores",
    "corpus_shares",
    "delete_layers",
    "directions",
    "divisor",
    "expand_paths",
    "figures",
    "gradient_by_path_length",
    "gradient_of_every_path",
    "growth",
    "head_scores",
    "lens_by_depth",
    "load",
    "logit_attribution",
    "ov_eigenvalues",
    "over_corpus",
    "own_logits",
    "packing",
    "pairs",
    "probe",
    "read_readout",
    "read_wiring",
    "record",
    "reorder_layers",
    "repeated_random_tokens",
    "report",
    "rerun_from",
    "rotation",
    "rounding",
    "run_blocks",
    "run_to_top",
    "self_repair",
    "skipped_blocks",
    "stream_gradients",
    "stream_norms",
    "subspaces",
    "superposition",
    "switch_off",
    "texts",
    "untrained",
    "widgets",
]
__version__ = "0.1.0"
