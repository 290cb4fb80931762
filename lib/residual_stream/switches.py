r"""Switch writes off, in every combination, and hold the ledger's guess against the model's word.

With the divisor :math:`\sigma` kept, a ledger says what a logit would be without some of its
writes: it subtracts their shares. The model, run again from the first of them up, says something
else: later writes answer, and the divisor changes.

Source: the question is that of McGrath et al. 2023, *The Hydra Effect*, asked of whole writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .attribution import logit_attribution
from .audit import LedgerError
from .readout import read_readout
from .rerun import rerun_from

if TYPE_CHECKING:
    from .stream import ResidualStream

MOST = 10


@dataclass(frozen=True, eq=False, repr=False)
class Switches:
    """What is said of a few tokens with every combination of some writes switched off.

    Logits are measured from the vocabulary's mean. A combination is a number: its bit ``i`` is set
    where the ``i``-th switch is off.

    Attributes:
        labels: All writes, in the order written.
        kinds: The kind of each.
        tokens: The token ids whose logits are followed; the model's own answer first.
        shares: Every write's share of every token's logit.
        switches: The writes that can be switched off, as indices, in the order written.
        linear: The ledger's guess: the logit less the shares of what is off.
        real: The logit when the model runs again without them.
        top_ids: What the model then says first.
        top_probability: How probable that is to it.
    """

    labels: list[str]
    kinds: list[str]
    tokens: list[int]
    shares: Float[Tensor, "token write"]
    switches: list[int]
    linear: Float[Tensor, "combination token"]
    real: Float[Tensor, "combination token"]
    top_ids: Int[Tensor, " combination"]
    top_probability: Float[Tensor, " combination"]

    def to_frame(self) -> pd.DataFrame:
        """Every switch as a row: what its write gave the first token, and what the model loses."""
        rows = [
            (
                self.labels[write],
                float(self.linear[0, 0] - self.linear[1 << i, 0]),
                float(self.real[0, 0] - self.real[1 << i, 0]),
            )
            for i, write in enumerate(self.switches)
        ]
        return pd.DataFrame(rows, columns=["write", "share", "lost when run again"])

    def __repr__(self) -> str:
        """One line: switches, combinations, tokens."""
        return (
            f"Switches({len(self.switches)} of {len(self.labels)} writes, {len(self.real)} "
            f"combinations run, {len(self.tokens)} tokens)"
        )

    def _repr_markdown_(self) -> str:
        rows = [f"| {w} | {s:+.3f} | {r:+.3f} |" for w, s, r in self.to_frame().itertuples(False)]
        head = "| write | its share | lost when the model runs again |\n|---|---|---|\n"
        return head + "\n".join(rows)


def switch_off(
    stream: ResidualStream, targets: Sequence[int | str], *, writes: int = 8
) -> Switches:
    """Run the model again with every combination of its largest writes left out.

    A write is left out at the last position, whose logits are followed; everything above it runs
    again. The switches are the writes with the largest shares of the first target's logit.

    Args:
        stream: A recorded text, one row, with all its positions.
        targets: Tokens whose logits are followed; the model's own answer is put first.
        writes: How many switches, at most 10: there are ``2**writes`` runs.

    Returns:
        Shares, and the guess and the model's word for every combination.

    Raises:
        ValueError: Several rows, positions that were not kept, or too many switches.
        LedgerError: The stream does not close, the model no longer runs as it was recorded, or its
            block's writes pass a norm on the stream.

    Example:
        >>> import residual_stream as rs
        >>> stream = rs.record(rs.load("bench"), "In the beginning")
        >>> off = rs.switch_off(stream, [5], writes=2)
        >>> off
        Switches(2 of 10 writes, 4 combinations run, 2 tokens)
        >>> bool((off.real[0] - off.linear[0]).abs().max() < 1e-3)  # nothing off: no guess to make
        True
    """
    _require(stream, writes)
    model, readout = stream.model, read_readout(stream.model)
    with torch.no_grad():
        answer = int(readout.logits(stream.top[0, -1]).argmax())
        splits = [logit_attribution(stream, target) for target in [answer, *targets]]
        tokens = [answer, *(_id(model, target) for target in targets)]
        shares = torch.stack([s.values[: len(stream.labels), 0] for s in splits])
        logit = torch.stack([s.logit[0] for s in splits])
        switches = sorted(shares[0].abs().topk(writes).indices.tolist())
        stream.require_same_run(_first_block(stream, switches), caller="switch_off")
        off = _combinations(len(switches)).to(shares.device)
        linear = logit - off.to(shares.dtype) @ shares[:, switches].T
        chosen = [[w for w, out in zip(switches, row, strict=True) if out] for row in off.tolist()]
        said = [_run(stream, writes) for writes in chosen]
        logits = torch.stack([readout.logits(top) for top in said]).float()
        best = readout.capped(logits).softmax(-1).max(-1)
    real = logits[:, tokens] - logits.mean(-1, keepdim=True)
    return Switches(
        labels=list(stream.labels),
        kinds=list(stream.kinds),
        tokens=tokens,
        shares=shares.float().cpu(),
        switches=switches,
        linear=linear.float().cpu(),
        real=real.cpu(),
        top_ids=best.indices.cpu(),
        top_probability=best.values.cpu(),
    )


def _id(model: Any, target: int | str) -> int:
    return model.to_single_token(target) if isinstance(target, str) else int(target)


def _combinations(switches: int) -> Bool[Tensor, "combination switch"]:
    number = torch.arange(2**switches)
    return (number[:, None] >> torch.arange(switches)) % 2 == 1


def _run(stream: ResidualStream, off: list[int]) -> Float[Tensor, " d_model"]:
    """Return the top at the last position when the writes ``off`` are left out there."""
    if not off:
        return stream.top[0, -1]
    written = [stream.wiring.writes[i] for i in off]
    first = _first_block(stream, off)
    residual = stream.entering(first)
    for index, write in zip(off, written, strict=True):
        if write.layer < 0:  # an embedding's row: no block writes it
            residual[0, -1] -= stream.writes[index][0, -1]

    def leave_out(value: Tensor, hook: Any) -> Tensor:
        value = value.clone()
        value[0, -1] = 0.0
        return value

    hooks = [(name, leave_out) for w in written if w.layer >= 0 for name in w.hooks]
    return rerun_from(stream.model, residual, first, fwd_hooks=hooks)[0, -1]


def _first_block(stream: ResidualStream, off: list[int]) -> int:
    return max(0, min(stream.layers[index] for index in off))


def _require(stream: ResidualStream, writes: int) -> None:
    stream.require_closed(caller="switch_off")
    if stream.tokens.shape[0] != 1:
        raise ValueError(f"switch_off: the stream has {stream.tokens.shape[0]} rows; pass one text")
    if len(stream.positions) != stream.tokens.shape[1]:
        raise ValueError(
            f"switch_off: the stream has kept {len(stream.positions)} of {stream.tokens.shape[1]} "
            "positions; record it with all, a re-run needs them"
        )
    most = min(MOST, len(stream.labels))
    if not 1 <= writes <= most:
        raise ValueError(f"switch_off: writes = {writes}; pass 1 to {most}: 2**writes runs")
    if stream.wiring.norms:
        raise LedgerError("switch_off: a norm stands on the stream, so no write can be left out")
