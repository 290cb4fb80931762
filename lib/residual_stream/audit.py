r"""Does the ledger add up? Replay, float64 sum with a rounding bound, and every block on its own.

The model adds its writes one after another in its own dtype, so each of its :math:`n` additions
rounds once. With unit roundoff :math:`u` (half a machine epsilon) and computed partial sums
:math:`\hat s_k`, the computed sum satisfies, in every coordinate,

.. math:: |\hat s_n - \sum_k w_k| \le u \sum_{k=1}^{n} |\hat s_k|,

because :math:`\mathrm{fl}(a+b) = (a+b)/(1+\delta)` with :math:`|\delta| \le u` (Higham 2002,
*Accuracy and Stability of Numerical Algorithms*, sections 2.2 and 4.2). In a post-LN model the
stream passes through norms on its way. With its divisor taken from the run a norm is linear: the
sum goes through it, its own rounding is added to the bound, and so goes the bound so far
(:class:`residual_stream.frozen.FrozenNorm`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from .frozen import FrozenNorm

CHANGED = (
    "the model no longer runs as it did when the stream was recorded (weights or hooks have "
    "changed); record it again"
)


class LedgerError(RuntimeError):
    """The recorded writes do not add up to the model's own stream."""


@dataclass(frozen=True)
class BlockAudit:
    """One stage of the model, or one reading of the stream, against what the writes say.

    A stage: its own input plus its recorded writes, against its own output. A reading: the stream
    after the writes that come before it, against what the branch was given.

    Attributes:
        name: The stage or the reader in words, for example ``"block 3 (LlamaDecoderLayer)"``.
        layer: The block, −1 for the embedding stage.
        error: Largest difference, in the units of the stream.
        scale: Largest entry of the writes before it in its block, for comparison.
        reads: Whether it is a reading.
    """

    name: str
    layer: int
    error: float
    scale: float
    reads: bool = False

    @property
    def ok(self) -> bool:
        """Whether the stage closes, or the reading agrees, to the bit."""
        return self.error == 0.0

    @property
    def verdict(self) -> str:
        """What is wrong here, in words; empty if nothing is."""
        if self.ok:
            return ""
        size = f"by up to {self.error:.3g} (largest write there {self.scale:.3g})"
        if not math.isfinite(self.error):
            return f"{self.name}, where the stream or a write holds NaN or infinity"
        if self.reads:
            return (
                f"{self.name}, which reads a stream that differs {size} from the writes before it; "
                "the block is wired differently than this library reads it"
            )
        return (
            f"{self.name}: its output differs from its input plus its recorded writes {size}; "
            "something else writes to the stream, or the block is wired differently than this "
            "library reads it"
        )


@dataclass(frozen=True)
class Audit:
    """The result of :meth:`residual_stream.ResidualStream.audit`.

    Attributes:
        replay_error: Largest difference between the model's own top of the stream and the writes
            added in the model's order and dtype. 0.0 means equal to the bit.
        sum_error: Largest difference between the model's own top and the float64 sum of the writes.
        bound: Largest rounding bound over the coordinates (see the module's formula).
        within_bound: Whether the float64 sum is inside the bound in every coordinate.
        blocks: Every stage on its own, as measured while the stream was recorded.
        reads: Every branch's reading of the stream, likewise.
        dtype: The dtype the model adds in.
    """

    replay_error: float
    sum_error: float
    bound: float
    within_bound: bool
    blocks: tuple[BlockAudit, ...]
    reads: tuple[BlockAudit, ...]
    dtype: torch.dtype

    @property
    def open_blocks(self) -> tuple[BlockAudit, ...]:
        """The stages that do not close, and the readings that do not agree."""
        return tuple(block for block in (*self.blocks, *self.reads) if not block.ok)

    @property
    def ok(self) -> bool:
        """Replay exact, sum within its bound, and every block closed."""
        return self.replay_error == 0.0 and self.within_bound and not self.open_blocks

    @property
    def verdict(self) -> str:
        """One sentence: that the ledger closes, or where it does not."""
        if self.ok:
            return f"the ledger closes: {len(self.blocks)} stages, each to the bit"
        if self.open_blocks:
            more = len(self.open_blocks) - 1
            also = f"; and {more} more" if more else ""
            return f"the ledger does not close at {self.open_blocks[0].verdict}{also}"
        return (
            "every block closed when it was recorded, but the writes held now do not add up to "
            f"the model's top (off by up to {self.replay_error:.3g}): a write was changed or lost"
        )

    def to_frame(self) -> pd.DataFrame:
        """Every stage and every reading as a row: name, layer, error, scale."""
        return pd.DataFrame(
            [(b.name, b.layer, b.error, b.scale) for b in (*self.blocks, *self.reads)],
            columns=["stage", "layer", "error", "largest write"],
        )

    def to_dict(self) -> dict[str, Any]:
        """The three checks and the open stages, as strings, numbers and lists for JSON."""
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "dtype": str(self.dtype).removeprefix("torch."),
            "replay_error": self.replay_error,
            "sum_error": self.sum_error,
            "bound": self.bound,
            "within_bound": self.within_bound,
            "stages": len(self.blocks),
            "stages_closed": sum(block.ok for block in self.blocks),
            "readings": len(self.reads),
            "readings_as_recorded": sum(block.ok for block in self.reads),
            "open": [asdict(block) | {"verdict": block.verdict} for block in self.open_blocks],
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the checks of the table: what, measured, required."""
        closed, agree = (sum(b.ok for b in them) for them in (self.blocks, self.reads))
        dtype = str(self.dtype).removeprefix("torch.")
        return [
            (f"replay in {dtype}, in order", f"{self.replay_error:.3g}", "0, to the bit"),
            ("sum in float64", f"{self.sum_error:.3g}", f"≤ {self.bound:.3g}, the rounding bound"),
            ("stages closed on their own", f"{closed} of {len(self.blocks)}", "all"),
            ("readings of the stream", f"{agree} of {len(self.reads)} as recorded", "all"),
        ]

    def __str__(self) -> str:
        """The three checks as a table, and the verdict."""
        rows = [("check", "measured", "required"), *self.rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
                 for row in rows]  # fmt: skip
        return "\n".join([*lines, self.verdict])

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        rows = "\n".join(f"| {a} | {b} | {c} |" for a, b, c in self.rows())
        return f"| check | measured | required |\n|---|---|---|\n{rows}\n\n{self.verdict}"


def audit_ledger(
    writes: Float[Tensor, "write batch pos d_model"],
    top: Float[Tensor, "batch pos d_model"],
    blocks: Sequence[BlockAudit],
    *,
    norms: Mapping[int, FrozenNorm] = MappingProxyType({}),
) -> Audit:
    """Audit a ledger of writes against the model's own top of the stream.

    Args:
        writes: The writes in the order made, in the model's dtype.
        top: The model's own stream at the input of its final norm.
        blocks: Every stage's own closure and every reading, measured during the forward pass.
        norms: The norms that the stream passes through, by the write they come after.

    Returns:
        The audit.

    Example:
        >>> writes = torch.tensor([1.0, 1e-8]).reshape(2, 1, 1, 1)
        >>> audit = audit_ledger(writes, torch.ones(1, 1, 1), [])
        >>> audit.replay_error, audit.sum_error <= audit.bound, audit.ok
        (0.0, True, True)
    """
    unit_roundoff = torch.finfo(writes.dtype).eps / 2
    replayed = writes[0].clone()
    exact = writes[0].to(torch.float64, copy=True)
    bound = torch.zeros_like(exact)
    for index, write in enumerate(writes[1:], start=1):
        replayed += write
        exact += write.double()
        bound += unit_roundoff * replayed.double().abs()
        if (norm := norms.get(index)) is not None:
            frozen = norm.at(replayed)
            exact, bound = frozen.through(exact), frozen.bound(bound, replayed, unit_roundoff)
            replayed = norm(replayed)
    error = (exact - top.double()).abs()
    return Audit(
        replay_error=(replayed.double() - top.double()).abs().max().item(),
        sum_error=error.max().item(),
        bound=bound.max().item(),
        within_bound=bool((error <= bound).all()),
        blocks=tuple(block for block in blocks if not block.reads),
        reads=tuple(block for block in blocks if block.reads),
        dtype=writes.dtype,
    )


def ledger_state(
    writes: Float[Tensor, "write batch pos d_model"],
    top: Float[Tensor, "batch pos d_model"],
    blocks: Sequence[BlockAudit],
) -> tuple[object, ...] | None:
    """Return what is equal for two ledgers only if an audit of one holds for the other.

    PyTorch counts in-place changes of a tensor, those made through its views included.

    Args:
        writes: As for :func:`audit_ledger`.
        top: As for :func:`audit_ledger`.
        blocks: As for :func:`audit_ledger`.

    Returns:
        Addresses, shapes and counters; None for tensors of inference mode, which are not counted.

    Example:
        >>> writes, top = torch.zeros(2, 1, 1, 4), torch.zeros(1, 1, 4)
        >>> before = ledger_state(writes, top, [])
        >>> writes[1].add_(1.0).shape, ledger_state(writes, top, []) == before
        (torch.Size([1, 1, 4]), False)
    """
    state = tensor_state([writes, top])
    return None if state is None else (*state, tuple(blocks))


def tensor_state(tensors: Sequence[Tensor | None]) -> tuple[object, ...] | None:
    """Return what is equal while tensors are the same and unchanged, as far as PyTorch counts.

    Args:
        tensors: The tensors, None for one that is not there.

    Returns:
        Addresses, kinds, shapes and counters; None where a tensor of inference mode, whose changes
        are not counted, is among them.

    Example:
        >>> x = torch.zeros(3)
        >>> before = tensor_state([x, None])
        >>> before == tensor_state([x, None]), before == tensor_state([x.add_(1.0), None])
        (True, False)
    """
    if any(t is not None and t.is_inference() for t in tensors):
        return None
    return tuple(
        t if t is None else (t.data_ptr(), t.dtype, t.shape, t.stride(), t._version)
        for t in tensors
    )
