"""Measure every architecture's closure, here and in TransformerLens; write the book's page.

    python tools/architecture_table.py             # write book/architectures.md
    python tools/architecture_table.py llama olmo2 # print these rows

Both libraries get the same small random model and the same question: the difference of two tokens'
logits, split into the parts of the model. What the plain transformers model says is the truth.
"""

from __future__ import annotations

import logging
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import residual_stream as rs
from residual_stream.architectures import CONFIGS, EXPERTS, TOKENS, random_hf, random_model

PAGE = Path(__file__).resolve().parent.parent / "book" / "architectures.md"
TARGET, VERSUS = 5, 7
ROUNDING = 1e-5
COLUMNS = ("model", "block", "writes", "stream", "logit", "heads", "neurons or experts",
           "TransformerLens: logit", "TransformerLens: heads")  # fmt: skip

HEAD = """# Every wiring, measured

Each row is a small random model of an architecture, built from its `transformers` configuration,
with gains, biases and gates moved off zero and one (`from residual_stream import architectures`).
Every entry was measured, by `tools/architecture_table.py`; a test measures some of them again.

- **writes**: how many additions a block makes to the stream.
- **stream**: the largest difference between the model's own top and the recorded writes added in
  the model's order.
- **logit**: how far the shares of all writes are from the plain model's difference of two logits,
  over the spread of its logits. **heads**, **neurons or experts**: the same for the finer parts.
- **TransformerLens**: version {version}, `enable_compatibility_mode()` and then
  `direct_logit_attribution`, on the same model and tokens. *logit*: how far its components are from
  the plain model. *heads*: how far its heads' shares are from this library's, over the largest
  share; what they add to every text alike is left out, since TransformerLens books the bias of a
  head's values elsewhere. Its own sum of heads closes by a remainder term and would not show it.

*exact* is equal to the bit, *rounding* is below {rounding:g}, *refused* is an error that says so, a
dash means that there is nothing of the kind. Any other entry is a number that a reader gets without
a warning.

"""


def shown(error: float | None) -> str:
    """An error in the page's words."""
    if error is None:
        return "refused"
    return "exact" if error == 0 else "rounding" if error < ROUNDING else f"**{error:.1g}**"


def truth(name: str) -> tuple[torch.Tensor, float]:
    """The plain model's difference of two logits before any cap, and the spread of its logits."""
    model = random_hf(name, dtype=torch.float64)
    with torch.no_grad():
        logits = model(TOKENS).logits[:, -1]
    if cap := getattr(model.config, "final_logit_softcapping", None):
        logits = cap * torch.atanh(logits / cap)
    return logits[:, TARGET] - logits[:, VERSUS], float(logits.std())


def ours(stream: rs.ResidualStream, unit: str) -> rs.Attribution | None:
    """This library's split, or None where it refuses."""
    try:
        return rs.logit_attribution(stream, TARGET, versus=VERSUS, unit=unit)
    except (rs.LedgerError, rs.ReadoutError):
        return None


def theirs(name: str, unit: str) -> Any | None:
    """TransformerLens's split, with its constants' share added, or None where it refuses."""
    from transformer_lens.tools.analysis.direct_logit_attribution import direct_logit_attribution

    model = random_model(name)
    try:
        model.enable_compatibility_mode()
        return direct_logit_attribution(
            model, TOKENS, torch.tensor([TARGET] * 2), torch.tensor([VERSUS] * 2), unit=unit
        ), model.b_U[TARGET] - model.b_U[VERSUS]
    except (ValueError, NotImplementedError, KeyError):
        return None


def gap(parts: torch.Tensor, exact: torch.Tensor, spread: float) -> float:
    """How far parts are from the truth."""
    return float((parts.double() - exact).abs().max()) / spread


def heads_of(labels: list[str], values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """How the heads' shares differ between the two texts, the divisor multiplied out.

    TransformerLens folds the bias of a head's values into the block's bias, which is a choice of
    name and no error: a constant, which the difference of two texts does not see.
    """
    chosen = [i for i, label in enumerate(labels) if label.startswith("L") and "H" in label]
    shares = values.reshape(len(labels), -1)[chosen].double() * scale.reshape(-1).double()
    return shares[:, 0] - shares[:, 1]


def row(name: str) -> tuple[str, ...]:
    """Measure one architecture."""
    stream = rs.record(random_model(name), TOKENS)
    exact, spread = truth(name)
    block = type(stream.model.blocks[0].original_component).__name__
    n_writes = len(stream.wiring.block_writes) / len(stream.model.blocks)
    has_attention = "attn" in stream.kinds or "parallel" in stream.kinds
    has_mlp = "mlp" in stream.kinds or "parallel" in stream.kinds
    units = {
        "sublayer": "sublayer",
        "head": "head" if has_attention else "",
        "fine": ("expert" if name in EXPERTS else "neuron") if has_mlp else "",
    }
    cells, heads = [], None
    for column, unit in units.items():
        split = ours(stream, unit) if unit else None
        heads = split if column == "head" else heads
        error = None if split is None else gap(split.values.double().sum(0), exact, spread)
        cells.append(shown(error) if unit else "–")
    found = theirs(name, "component")
    if found is not None:
        found = gap(found[0].attribution.sum(0) + found[1], exact, spread)
    cells.append(shown(found))
    found = theirs(name, "head") if has_attention else None
    if heads is None or found is None:
        cells.append("refused" if has_attention else "–")
    else:
        own = heads_of(heads.labels, heads.values, heads.scale)
        other = heads_of(found[0].labels, found[0].attribution, heads.scale)
        cells.append(shown(float((own - other).abs().max() / own.abs().max())))
    return (name, f"`{block}`", f"{n_writes:g}", shown(stream.audit().replay_error), *cells)


def page() -> str:
    """The whole page."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *map(row, CONFIGS)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    head = HEAD.format(version=version("transformer-lens"), rounding=ROUNDING)
    return f"{head}{table}\n"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if sys.argv[1:]:
        print("\n".join(" | ".join(row(name)) for name in sys.argv[1:]))
    else:
        PAGE.write_text(page(), encoding="utf-8")
