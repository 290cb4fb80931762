"""The hooks that fill a ledger during one forward pass, and close every stage as it ends."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .audit import BlockAudit, LedgerError
from .wiring import Boundary, Read, Wiring


class Ledger:
    """Collects the writes during a forward pass and closes each block as it ends.

    Args:
        wiring: What is written and read where.
        positions: The positions to keep, all if None.
        device: Where to keep the writes; where the model puts them if None.
        dtype: The stream's dtype, where branches write in a coarser one; the writes' own if None.

    Attributes:
        writes: The writes in order, after the pass.
        top: The stream at the last boundary, where the pass ends.
    """

    writes: Float[Tensor, "write batch pos d_model"]
    top: Float[Tensor, "batch pos d_model"]

    def __init__(
        self,
        wiring: Wiring,
        positions: Int[Tensor, " pos"] | None,
        device: str | torch.device | None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Prepare an empty ledger for one forward pass."""
        self.wiring = wiring
        self.positions = positions
        self.device = device
        self.dtype = dtype
        self.partial: dict[int, Tensor] = {}
        self.start: Tensor | None = None  # the stream at the last boundary
        self.expected: Tensor | None = None  # the stream after the last write
        self.n_started = self.n_written = 0
        self.scale: Tensor | float = 0.0
        self.unread = {read.hook: read for read in wiring.reads}
        self.unnormed = {f"{norm.module}.hook_out": norm for norm in wiring.norms}
        self.measured: list[tuple[Boundary | Read, Tensor, Tensor | float]] = []

    def hooks(self) -> list[tuple[str, object]]:
        """Return the hooks of one forward pass."""
        writes = [
            (point, lambda value, hook, index=index: self._on_write(index, value))
            for index, write in enumerate(self.wiring.writes)
            for point in write.hooks
        ]
        reads = [
            (read.hook, lambda value, hook, at=read: self._on_read(value, at))
            for read in self.wiring.reads
        ]
        norms = [
            (point, lambda value, hook, point=point: self._on_norm(value, point))
            for point in self.unnormed
        ]
        boundaries = [
            (boundary.hook, lambda value, hook, at=boundary: self._on_stream(value, at))
            for boundary in self.wiring.boundaries
        ]
        return [*writes, *reads, *norms, *boundaries]

    def _kept(self, value: Tensor) -> Tensor:
        if self.positions is None:
            return value.detach()
        return value.detach().index_select(1, self.positions.to(value.device))

    def _on_write(self, index: int, value: Tensor) -> None:
        write, made = self._kept(value), self.wiring.writes[index]
        write = write.to(self.dtype or write.dtype)
        if len(made.hooks) > 1:
            if index not in self.partial:
                self.partial[index] = write
                return
            write = self.partial.pop(index) + write
        if index != self.n_written:
            where = "the embedding" if made.layer < 0 else f"block {made.layer}"
            raise LedgerError(
                f"record: in {where}, {made.label!r} was written in place {self.n_written}, not "
                f"{index}; the forward pass does not follow the wiring"
            )
        if self.n_written == 0:
            shape = (len(self.wiring.writes), *write.shape)
            self.writes = write.new_empty(shape, device=self.device or write.device)
        self.writes[index] = write  # broadcasts a positional row over the batch
        self.n_written += 1
        self.expected = write if self.expected is None else self.expected.to(write.device) + write
        self.scale = torch.as_tensor(self.scale, device=write.device).maximum(write.abs().max())

    def _on_read(self, value: Tensor, read: Read) -> None:
        self.unread.pop(read.hook, None)
        # In a parallel block a branch may read after the other has written.
        held = self.start if read.writes_before == self.n_started else self.expected
        assert held is not None
        seen = self._kept(value)
        self._measure(read, held.to(seen.dtype), seen)  # Mamba's norms read a float32 stream cast

    def _on_norm(self, value: Tensor, point: str) -> None:
        norm = self.unnormed.pop(point)
        if self.n_written != norm.writes_before:
            raise LedgerError(
                f"record: in block {norm.layer}, {norm.module!r} ran after {self.n_written} writes "
                f"in all, not {norm.writes_before}; the forward pass does not follow the wiring"
            )
        self.expected = self._kept(value)

    def _on_stream(self, value: Tensor, boundary: Boundary) -> None:
        if self.n_written != boundary.writes_before:
            missing = self.wiring.labels[self.n_written : boundary.writes_before]
            raise LedgerError(
                f"record: {boundary.closes} ended after {self.n_written} writes in all, not "
                f"{boundary.writes_before}"
                + (f": {missing[0]!r} was not written" if missing else "")
            )
        here = boundary.layer
        if left := [norm.module for norm in self.unnormed.values() if norm.layer == here]:
            raise LedgerError(f"record: {boundary.closes} ended, and {left[0]!r} was never run")
        skipped = [read for read in self.unread.values() if read.layer == here]
        if skipped:
            raise LedgerError(
                f"record: {boundary.closes} ended, and {skipped[0].hook!r} was never run: "
                f"{skipped[0].reader} does not read the stream as its wiring says"
            )
        stream = self._kept(value)
        self._measure(boundary, self.expected, stream)
        self.start = self.expected = stream
        self.n_started, self.scale = self.n_written, 0.0
        if boundary is self.wiring.boundaries[-1]:
            self.top = stream.to(
                self.device or stream.device, self.dtype or stream.dtype, copy=True
            )
            # TransformerLens's own way to end a forward pass early; nobody asked for logits.
            from transformer_lens.model_bridge.exceptions import StopAtLayerException

            raise StopAtLayerException(self.top)

    def _measure(self, at: Boundary | Read, held: Tensor | None, seen: Tensor) -> None:
        assert held is not None
        self.measured.append((at, (held.to(seen.device) - seen).abs().max(), self.scale))

    def blocks(self) -> tuple[BlockAudit, ...]:
        """Return every stage's closure and every reading, after the pass."""
        return tuple(
            BlockAudit(
                name=at.reader if isinstance(at, Read) else at.closes,
                layer=at.layer,
                error=float(error),
                scale=float(scale),
                reads=isinstance(at, Read),
            )
            for at, error, scale in self.measured
        )
