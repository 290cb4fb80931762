"""A branch's write as its heads' or neurons' shares along a direction, reduced inside the hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .audit import LedgerError
from .rerun import Hook, run_to_top
from .targets import Projection

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

    from .stream import ResidualStream
    from .wiring import Wiring

BRANCHES = {"head": "attn", "neuron": "mlp"}
_ACTIVATION = {"attn": "attn.hook_z", "mlp": "mlp.hook_post"}


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


def activation_points(
    model: TransformerBridge, wiring: Wiring, unit: str, *, caller: str
) -> dict[int, str]:
    """Return, for every block with the branch, where what its parts hand to W can be seen.

    Args:
        model: A ``TransformerBridge``.
        wiring: Its wiring.
        unit: ``"head"`` or ``"neuron"``.
        caller: The function named in errors.

    Returns:
        Names of hook points by block.

    Raises:
        LedgerError: A branch that cannot be split, by block, with the units that are allowed.
    """
    branch = BRANCHES[unit]
    layers = [w.layer for w in wiring.writes if w.kind in (branch, "parallel")]
    points = {layer: f"blocks.{layer}.{_ACTIVATION[branch]}" for layer in layers}
    for layer, point in points.items():
        if model.get_hook_point(point) is None or not _splits(model.blocks[layer], branch):
            inner = type(getattr(model.blocks[layer], branch).original_component).__name__
            raise LedgerError(
                f"{caller}: block {layer}'s {branch} branch ({inner}) has no {unit}s that its "
                f"output is a sum of; allowed for this model are {_others(unit)}"
            )
    return points


def _splits(block: Any, branch: str) -> bool:
    weight = "W_O" if branch == "attn" else "W_out"
    return isinstance(getattr(getattr(block, branch), weight, None), Tensor)


def _others(unit: str) -> str:
    allowed = [name for name in ("layer", "sublayer", *BRANCHES) if name != unit]
    return ", ".join(f"unit='{name}'" for name in allowed)


def keep_activations(
    model: TransformerBridge,
    wiring: Wiring,
    units: Sequence[str],
    positions: Int[Tensor, " pos"],
) -> tuple[list[Hook], dict[str, Tensor]]:
    """Return hooks that keep what heads or neurons hand to their output weights, and their store.

    Args:
        model: A ``TransformerBridge``.
        wiring: Its wiring.
        units: ``"head"``, ``"neuron"`` or both.
        positions: The positions to keep.

    Returns:
        Hooks for one forward pass, and the dictionary that they fill, by hook point.

    Raises:
        ValueError: An unknown unit.
        LedgerError: A branch that cannot be split.
    """
    wrong = [unit for unit in units if unit not in BRANCHES]
    if isinstance(units, str) or wrong:
        raise ValueError(
            f"record: units = {units!r}; pass a list of the units whose activations to keep, of "
            "'head' and 'neuron'"
        )
    store: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: Any, point: str) -> None:
        store[point] = value.detach().index_select(1, positions.to(value.device))

    points = [
        point
        for unit in units
        for point in activation_points(model, wiring, unit, caller="record").values()
    ]
    hooks = [(at, lambda value, hook, point=at: keep(value, hook, point)) for at in points]
    return hooks, store


def branch_shares(
    stream: ResidualStream,
    kept: Int[Tensor, " pos"],
    projection: Projection,
    whole: list[Float[Tensor, "1 batch pos"]],
    *,
    unit: str,
) -> BranchParts:
    """Return every head's (neuron's) share, from kept activations or from one more run.

    Args:
        stream: The recorded stream.
        kept: The places wanted, as indices into ``stream.positions``.
        projection: What is projected on at each place.
        whole: Each write's share along it, in the order written.
        unit: ``"head"`` or ``"neuron"``.

    Returns:
        The parts in the order written: heads (neurons), the branch's output bias where it has one,
        and the branches that stay whole.

    Raises:
        LedgerError: A branch whose parts do not add up to its write, by block; or a model that
            no longer runs as it was recorded.
    """
    points = activation_points(stream.model, stream.wiring, unit, caller="logit_attribution")
    splitter = _Splitter(stream, kept, projection, unit)
    # A parallel block's write is the sum of two branches: only a run shows them apart.
    parallel = any(write.kind == "parallel" for write in stream.wiring.writes)
    if not parallel and all(point in stream.activations for point in points.values()):
        splitter.from_kept(points, stream.activations, whole)
    else:
        splitter.from_a_run(points)
    parts = BranchParts()
    for write, value in zip(stream.wiring.writes, whole, strict=True):
        if write.kind not in (splitter.branch, "parallel"):
            parts.add(write.label, write.layer, write.kind, value)
            continue
        own, bias = splitter.shares[write.layer], splitter.bias[write.layer]
        letter = "H" if unit == "head" else "N"
        names = [f"L{write.layer}{letter}{i}" for i in range(len(own))]
        parts.add(names, write.layer, unit, own)
        if bias is not None:
            parts.add(f"L{write.layer}_{splitter.branch}_bias", write.layer, "bias", bias)
        if write.kind == "parallel":
            other = "mlp" if splitter.branch == "attn" else "attn"
            rest = value - splitter.written[write.layer]
            parts.add(f"{write.layer}_{other}_out", write.layer, other, rest)
    return parts


class _Splitter:
    """Turns a branch's activations into shares and holds them against what the branch wrote."""

    def __init__(
        self, stream: ResidualStream, kept: Tensor, projection: Projection, unit: str
    ) -> None:
        self.stream, self.kept, self.unit = stream, kept, unit
        self.model, self.branch = stream.model, BRANCHES[unit]
        self.projection = projection
        self.length = projection.rows.norm(dim=-1)
        # The weights' own precision, but no less than float32.
        self.dtype = torch.float64 if stream.writes.dtype == torch.float64 else torch.float32
        self.shares: dict[int, Tensor] = {}
        self.bias: dict[int, Tensor | None] = {}
        self.written: dict[int, Tensor] = {}

    def from_kept(
        self, points: Mapping[int, str], store: Mapping[str, Tensor], whole: Sequence[Tensor]
    ) -> None:
        place = {write.layer: index for index, write in enumerate(self.stream.wiring.writes)
                 if write.kind == self.branch}  # fmt: skip
        for layer, point in points.items():
            self._on_activation(layer, store[point][:, self.kept.to(store[point].device)])
            write = self.stream.writes[place[layer]]
            self._on_write(layer, write[:, self.kept.to(write.device)], whole[place[layer]])

    def from_a_run(self, points: Mapping[int, str]) -> None:
        positions = self.stream.positions[self.kept]

        def chosen(value: Tensor) -> Tensor:
            return value.detach().index_select(1, positions.to(value.device))

        hooks: list[Hook] = []
        for layer, point in points.items():
            hooks += [
                (point, lambda a, hook, i=layer: self._on_activation(i, chosen(a))),
                (
                    f"blocks.{layer}.hook_{self.branch}_out",
                    lambda a, hook, i=layer: self._on_write(i, chosen(a)),
                ),
            ]
        top = run_to_top(self.model, self.stream.tokens, fwd_hooks=hooks)
        own = self.stream.top
        if not torch.equal(top[:, self.stream.positions.to(top.device)].to(own.device), own):
            raise LedgerError(
                "logit_attribution: the model no longer runs as it did when the stream was "
                "recorded (weights or hooks have changed); record it again"
            )

    def _on_activation(self, layer: int, active: Tensor) -> None:
        weight = output_matrix(self.model, layer, self.branch).to(self.dtype)
        self.shares[layer] = self.projection.through(weight, active)

    def _on_write(self, layer: int, write: Tensor, written: Tensor | None = None) -> None:
        block = self.model.blocks[layer]
        bias = block.attn.b_O if self.branch == "attn" else block.mlp.b_out
        rows = self.projection.rows
        self.bias[layer] = None if bias is None else (rows @ bias.detach().to(rows))[None]
        self.written[layer] = self.projection.of(write) if written is None else written
        size = torch.linalg.vector_norm(write, dim=-1, dtype=self.dtype).to(rows) * self.length
        self._require_closed(layer, size[None], rounding_allowance(write.dtype))

    def _require_closed(self, layer: int, size: Tensor, allowed: float) -> None:
        shares, bias, written = self.shares[layer], self.bias[layer], self.written[layer]
        total = shares.sum(0, keepdim=True, dtype=torch.float64)
        size = size + shares.abs().sum(0, keepdim=True, dtype=torch.float64)
        if bias is not None:
            total = total + bias
        gap = (total - written).abs()
        if bool((gap > allowed * size).any()):
            inner = type(self.model.blocks[layer].original_component).__name__
            worst = int(gap.argmax())
            raise LedgerError(
                f"logit_attribution: in block {layer} ({inner}) the parts of the {self.branch} "
                f"branch add up to {float(total.flatten()[worst]):.4g}, but it wrote "
                f"{float(written.flatten()[worst]):.4g} along the target: what it writes is not "
                "its parts through its output weights alone, or these have changed since the "
                f"stream was recorded. Allowed for such a block are {_others(self.unit)}"
            )
