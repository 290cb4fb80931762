"""Record what every sublayer writes to the residual stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .audit import CHANGED, Audit, BlockAudit, LedgerError, audit_ledger, ledger_state
from .branches import keep_activations
from .frozen import FrozenNorm
from .inputs import to_positions, to_tokens
from .ledger import Ledger
from .rerun import Hook, rerun_from
from .wiring import Wiring, read_wiring

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


@dataclass(frozen=True, eq=False, repr=False)
class ResidualStream:
    """Everything that was written to the stream in one forward pass, in order.

    Attributes:
        model: The model that was recorded.
        tokens: The token ids, all positions.
        positions: The positions whose stream was kept.
        writes: What was added, in the stream's dtype (the model's, but float32 in a Mamba that
            keeps its stream so); ``writes[0]`` is the embedding row.
        top: The model's own stream at the input of the final norm (of the last norm, in a post-LN
            model): the audit holds the writes against it.
        wiring: Which hook points the writes were read at.
        blocks: Every stage's closure, and every branch's reading, measured while recording.
        activations: What heads or neurons handed to their output weights, by hook point; empty
            unless :func:`record` was asked for ``units``.
    """

    model: TransformerBridge
    tokens: Int[Tensor, "batch seq"]
    positions: Int[Tensor, " pos"]
    writes: Float[Tensor, "write batch pos d_model"]
    top: Float[Tensor, "batch pos d_model"]
    wiring: Wiring
    blocks: tuple[BlockAudit, ...] = field(default=())
    activations: dict[str, Float[Tensor, "batch pos ..."]] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """Names of the writes: ``["embed", "0_attn_out", "0_mlp_out", ...]``."""
        return self.wiring.labels

    @property
    def layers(self) -> list[int]:
        """The block that made each write, −1 for the embedding's."""
        return [write.layer for write in self.wiring.writes]

    @property
    def kinds(self) -> list[str]:
        """The kind of each write; see :class:`~residual_stream.wiring.Write`."""
        return [write.kind for write in self.wiring.writes]

    @property
    def str_tokens(self) -> list[list[str]]:
        """The tokens as text, ``[batch][seq]``; their ids where the model has no tokenizer."""
        if self.model.tokenizer is None:
            return [[str(token) for token in row] for row in self.tokens.tolist()]
        return [self.model.to_str_tokens(row, prepend_bos=False) for row in self.tokens]

    def index(self, label: str) -> int:
        """Return the index of the write called ``label``.

        Raises:
            KeyError: No write has that label.
        """
        if label not in self.labels:
            raise KeyError(
                f"ResidualStream: no write {label!r}; there are {len(self.labels)}, from "
                f"{self.labels[0]!r} to {self.labels[-1]!r}"
            )
        return self.labels.index(label)

    def write(self, label: str) -> Float[Tensor, "batch pos d_model"]:
        """Return the write called ``label``."""
        return self.writes[self.index(label)]

    def partial_sums(self) -> Iterator[Float[Tensor, "batch pos d_model"]]:
        """Yield the stream after each write, added in the model's order and dtype.

        Where a post-LN model sends the stream through a norm after a write, what comes out of the
        norm is yielded. Each tensor is valid until the next is asked for; clone what you keep.
        """
        norms = self.stream_norms()
        running = self.writes[0].clone()
        yield running
        for index, write in enumerate(self.writes[1:], start=1):
            running.add_(write)
            if index in norms:
                running = norms[index](running)
            yield running

    def stream_norms(self) -> dict[int, FrozenNorm]:
        """The norms that the stream passes through, by the write they come after; mostly none."""
        return {norm.writes_before - 1: FrozenNorm.of(self.model, norm.module)
                for norm in self.wiring.norms}  # fmt: skip

    def accumulated(self) -> Float[Tensor, "write batch pos d_model"]:
        """Return the stream after each write, stacked: as much memory again as the writes."""
        return torch.stack([partial.clone() for partial in self.partial_sums()])

    def after(self, k: int | str) -> Float[Tensor, "batch pos d_model"]:
        """Return the stream after the first ``k + 1`` writes, or after the write called ``k``.

        Args:
            k: 0 for the embedding row alone, up to ``len(labels) - 1``; or a label.

        Returns:
            The sum in the model's order and dtype: equal to the bit to what the model held there.

        Raises:
            IndexError: ``k`` is out of range.
            KeyError: No write is called ``k``.
        """
        index = self.index(k) if isinstance(k, str) else k
        if not 0 <= index < len(self.writes):
            raise IndexError(
                f"ResidualStream.after: k = {k} is out of range; there are {len(self.writes)} "
                f"writes, so 0 ≤ k ≤ {len(self.writes) - 1}"
            )
        return next(islice(self.partial_sums(), index, None))

    def entering(self, layer: int) -> Float[Tensor, "batch pos d_model"]:
        """Return the stream that enters block ``layer``, equal to the bit to the model's own.

        Raises:
            IndexError: The model has no such block.
        """
        if layer not in range(len(self.model.blocks)):
            raise IndexError(
                f"ResidualStream.entering: block {layer} does not exist; the model has "
                f"{len(self.model.blocks)}, counted from 0"
            )
        return self.after(sum(written < layer for written in self.layers) - 1)

    @property
    def final(self) -> Float[Tensor, "batch pos d_model"]:
        """The stream after the last write: the replayed top."""
        return self.after(len(self.writes) - 1)

    def audit(self) -> Audit:
        """Check the ledger three ways; see :mod:`residual_stream.audit`.

        Returns:
            The audit: replay in the model's order and dtype (exact), float64 sum against its
            rounding bound, and every block on its own. Print it for a table. Measured anew at
            each call.
        """
        return audit_ledger(self.writes, self.top, self.blocks, norms=self.stream_norms())

    def require_closed(self, *, caller: str = "ResidualStream") -> None:
        """Raise an error with the audit's verdict unless the ledger closes.

        Every analysis calls this. An audit that closed is remembered for as long as PyTorch's
        version counters say that writes and top have not been changed in place. Changes made
        through ``.data`` or a NumPy view are not counted there; :meth:`audit` sees them.

        Args:
            caller: The function named in the error.

        Raises:
            LedgerError: The writes do not add up to the model's own stream.
        """
        # A stream that goes through norms closes by weights of the model, which may change.
        norms = self.wiring.norms
        state = None if norms else ledger_state(self.writes, self.top, self.blocks)
        if state is not None and vars(self).get("_closed") == state:
            return
        audit = self.audit()
        if not audit.ok:
            raise LedgerError(f"{caller}: {audit.verdict}")
        vars(self)["_closed"] = state

    def require_same_run(
        self, layer: int, *, caller: str = "ResidualStream", fwd_hooks: Sequence[Hook] = ()
    ) -> None:
        """Raise an error unless the model still goes on from block ``layer`` as it did.

        For what compares this stream with a further run: a change of weights or hooks in between
        would be counted as an effect of what that run takes out.

        Args:
            layer: The first block to run again; all positions must have been kept.
            caller: The function named in the error.
            fwd_hooks: Hooks that look at this run.

        Raises:
            LedgerError: The run ends at another top.
        """
        top = rerun_from(self.model, self.entering(layer), layer, fwd_hooks=fwd_hooks)
        if not torch.equal(top.to(self.top.device), self.top):
            raise LedgerError(f"{caller}: {CHANGED}")

    def __repr__(self) -> str:
        """One line: the model, the writes and the shape."""
        n_write, batch, pos, width = self.writes.shape
        name = getattr(self.model.cfg, "model_name", "model")
        dtype = str(self.writes.dtype).removeprefix("torch.")
        opened = next((f"; OPEN at {block.name}" for block in self.blocks if not block.ok), "")
        return (
            f"ResidualStream({name}: {n_write} writes × {batch} × {pos} positions × {width}, "
            f"{dtype}, {self.writes.device}{opened})"
        )


def record(
    model: TransformerBridge,
    text: str | Sequence[object] | np.ndarray | Tensor,
    *,
    positions: int | slice | Sequence[int] | np.ndarray | Tensor | None = None,
    prepend_bos: bool | None = None,
    device: str | torch.device | None = None,
    units: Sequence[str] = (),
) -> ResidualStream:
    """Run ``model`` once and return everything written to its residual stream.

    Hooks already on the model stay active, so a stream can be recorded under an intervention. A
    ledger that does not close is recorded too, so that its audit can say where it is open; its
    ``repr`` says so, and every analysis of this library refuses it.

    Args:
        model: A ``TransformerBridge``, as :func:`residual_stream.load` returns it.
        text: One text, several texts of equal token length, or token ids.
        positions: Which positions to keep: an index, a slice, a list, or a mask with one bool per
            token; all if None. The model always reads the whole text.
        prepend_bos: Whether to put the beginning-of-text token first when ``text`` is text; the
            model's own default if None.
        device: Where to keep the writes, for example ``"cpu"`` for a model that fills its GPU: it
            then holds one block's writes at a time. Where the model puts them if None.
        units: ``"head"`` and ``"neuron"``: keep their activations too, so that
            :func:`residual_stream.logit_attribution` needs no second run. Heads take about half as
            much memory again as the writes, neurons a little more than the writes.

    Returns:
        The stream, in the model's dtype, with no autograd graph.

    Raises:
        WiringError: A block whose writes the library does not know.
        LedgerError: A block that skips or repeats a write of its wiring, or a model in train mode
            whose dropout stands between a write and the stream.
        ValueError: Empty or over-long text, token ids outside the vocabulary, texts of unequal
            length, text given to a model without tokenizer.
        IndexError: A position outside the text.

    Example:
        >>> import residual_stream as rs
        >>> stream = rs.record(rs.load("bench"), "In the beginning")
        >>> stream.labels[-1], stream.audit().ok
        ('3_mlp_out', True)
    """
    wiring = read_wiring(model)
    tokens = to_tokens(model, text, prepend_bos=prepend_bos)
    kept = to_positions(positions, tokens.shape[1])
    ledger = Ledger(wiring, None if positions is None else kept, device, _stream_dtype(model))
    hooks, activations = keep_activations(model, wiring, units, kept)
    with torch.no_grad(), model.hooks(fwd_hooks=[*hooks, *ledger.hooks()]):
        model(tokens, return_type=None)
    blocks = ledger.blocks()
    if not all(block.ok for block in blocks):
        _require_no_dropout(model)
    return ResidualStream(
        model=model,
        tokens=tokens,
        positions=kept,
        writes=ledger.writes,
        top=ledger.top,
        wiring=wiring,
        blocks=blocks,
        activations=activations,
    )


def _stream_dtype(model: TransformerBridge) -> torch.dtype | None:
    """The dtype of a stream that is kept finer than what is written to it (Mamba), else None."""
    config = getattr(getattr(model, "original_model", None), "config", None)
    fine = getattr(config, "residual_in_fp32", False) and model.cfg.dtype.itemsize < 4
    return torch.float32 if fine else None


def _require_no_dropout(model: TransformerBridge) -> None:
    """Name what most likely keeps a ledger open: nobody means to record a model in train mode."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout) and module.training and module.p > 0:
            raise LedgerError(
                f"record: the model is in train mode, and its dropout ({name}) changes what is "
                "written on the way to the stream; call model.eval()"
            )
