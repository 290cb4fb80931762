"""A branch's write as its heads' or neurons' shares along a direction, reduced inside the hooks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .audit import LedgerError
from .rerun import Hook, run_to_top

if TYPE_CHECKING:
    from .stream import ResidualStream


@dataclass
class BranchParts:
    """Parts as they are found: labels, blocks, kinds and values in one order.

    Attributes:
        labels: Names of the parts.
        layers: The block of each part.
        kinds: The kind of each part.
        values: Tensors ``[part, batch, pos]``, each covering one or several labels.
    """

    labels: list[str] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def add(self, label: str | list[str], layer: int, kind: str, value: Tensor) -> None:
        """Append one part, or several of one kind and block."""
        labels = [label] if isinstance(label, str) else label
        self.labels += labels
        self.layers += [layer] * len(labels)
        self.kinds += [kind] * len(labels)
        self.values.append(value)


def rounding_allowance(dtype: torch.dtype) -> float:
    """Return the relative gap that rounding in ``dtype`` may leave in a sum of parts."""
    return max(1e-4, 8 * torch.finfo(dtype).eps)


def output_matrix(model: Any, layer: int, branch: str) -> Float[Tensor, "part width d_model"]:
    """Return a branch's output weights, split by part.

    Args:
        model: A ``TransformerBridge``.
        layer: The block.
        branch: ``"attn"`` for ``[head, d_head, d_model]``, ``"mlp"`` for ``[neuron, 1, d_model]``.

    Returns:
        A view of the model's own weights.
    """
    block = model.blocks[layer]
    if branch == "attn":
        return block.attn.W_O.detach()
    return block.mlp.W_out.detach()[:, None, :]


def branch_shares(
    stream: ResidualStream,
    kept: Int[Tensor, " pos"],
    along: Float[Tensor, "batch pos d_model"],
    whole: list[Float[Tensor, "1 batch pos"]],
    *,
    unit: str,
) -> BranchParts:
    """Run the model once more and return every head's (neuron's) share along a direction.

    Args:
        stream: The recorded stream.
        kept: The places wanted, as indices into ``stream.positions``.
        along: The direction at each place, already over σ.
        whole: Each write's share along it, in the order written.
        unit: ``"head"`` or ``"neuron"``.

    Returns:
        The parts in the order written: heads (neurons), the branch's output bias where it has one,
        and the branches that stay whole.

    Raises:
        LedgerError: A branch whose parts do not add up to its write, by block; or a model that
            no longer runs as it was recorded.
    """
    collector = _Collector(stream, kept, along, branch="attn" if unit == "head" else "mlp")
    top = run_to_top(stream.model, stream.tokens, fwd_hooks=collector.hooks())
    if not torch.equal(top[:, stream.positions.to(top.device)], stream.top):
        raise LedgerError(
            "logit_attribution: the model no longer runs as it did when the stream was recorded "
            "(weights or hooks have changed); record it again"
        )
    parts = BranchParts()
    for write, value in zip(stream.wiring.writes, whole, strict=True):
        if write.kind not in (collector.branch, "parallel"):
            parts.add(write.label, write.layer, write.kind, value)
            continue
        own, bias = collector.shares[write.layer], collector.bias[write.layer]
        letter = "H" if unit == "head" else "N"
        names = [f"L{write.layer}{letter}{i}" for i in range(len(own))]
        parts.add(names, write.layer, unit, own)
        if bias is not None:
            parts.add(f"L{write.layer}_{collector.branch}_bias", write.layer, "bias", bias)
        if write.kind == "parallel":
            other = "mlp" if collector.branch == "attn" else "attn"
            rest = value - collector.written[write.layer]
            parts.add(f"{write.layer}_{other}_out", write.layer, other, rest)
    return parts


class _Collector:
    """Hooks that turn a branch's activations into shares as soon as they appear."""

    def __init__(self, stream: ResidualStream, kept: Tensor, along: Tensor, *, branch: str) -> None:
        self.model, self.branch = stream.model, branch
        self.kept = stream.positions[kept]
        # The weights' own precision, but no less than float32.
        self.dtype = torch.float64 if stream.writes.dtype == torch.float64 else torch.float32
        self.along = along.to(self.dtype)
        self.layers = [w.layer for w in stream.wiring.writes if w.kind in (branch, "parallel")]
        self.shares: dict[int, Tensor] = {}
        self.bias: dict[int, Tensor | None] = {}
        self.written: dict[int, Tensor] = {}

    def hooks(self) -> list[Hook]:
        name = "attn.hook_z" if self.branch == "attn" else "mlp.hook_post"
        found: list[Hook] = []
        for layer in self.layers:
            points = (f"blocks.{layer}.{name}", f"blocks.{layer}.hook_{self.branch}_out")
            missing = [point for point in points if self.model.get_hook_point(point) is None]
            if missing:
                raise LedgerError(
                    f"logit_attribution: block {layer} has no hook point {missing[0]!r}, so its "
                    f"{self.branch} branch cannot be split; use unit='sublayer'"
                )
            found.append((points[0], lambda a, hook, i=layer: self._on_activation(i, a)))
            found.append((points[1], lambda a, hook, i=layer: self._on_write(i, a)))
        return found

    def _on_activation(self, layer: int, value: Tensor) -> None:
        weight = output_matrix(self.model, layer, self.branch).to(self.dtype)
        n_part, width, _ = weight.shape
        active = value.detach().index_select(1, self.kept.to(value.device)).to(self.dtype)
        batch, pos = active.shape[:2]
        active = active.reshape(batch * pos, n_part, width)  # hooks carry heads split or joined
        along = self.along.reshape(batch * pos, -1)
        pulled = (weight.reshape(n_part * width, -1) @ along.T).reshape(n_part, width, -1)
        shares = torch.einsum("rnw,nwr->nr", active, pulled)
        self.shares[layer] = shares.reshape(n_part, batch, pos)

    def _on_write(self, layer: int, value: Tensor) -> None:
        write = value.detach().index_select(1, self.kept.to(value.device)).double()
        along = self.along.double()
        written = torch.einsum("bpd,bpd->bp", write, along)[None]
        block = self.model.blocks[layer]
        bias = block.attn.b_O if self.branch == "attn" else block.mlp.b_out
        self.bias[layer] = None if bias is None else (along @ bias.detach().double())[None]
        self.written[layer] = written
        size = (write.norm(dim=-1) * along.norm(dim=-1))[None]
        self._require_closed(layer, written, size, rounding_allowance(value.dtype))

    def _require_closed(self, layer: int, written: Tensor, size: Tensor, allowed: float) -> None:
        shares, bias = self.shares[layer], self.bias[layer]
        total = shares.sum(0, keepdim=True, dtype=torch.float64)
        size = size + shares.abs().sum(0, keepdim=True, dtype=torch.float64)
        if bias is not None:
            total = total + bias
        gap = (total - written).abs()
        if bool((gap > allowed * size).any()):
            inner = type(self.model.blocks[layer].original_component).__name__
            raise LedgerError(
                f"logit_attribution: in block {layer} ({inner}) the parts of the {self.branch} "
                f"branch add up to {float(total.flatten()[gap.argmax()]):.4g}, but it wrote "
                f"{float(written.flatten()[gap.argmax()]):.4g} along the target; what it writes "
                "is not its parts through its output weights alone. Use unit='sublayer'"
            )
