"""A branch's write as its heads', neurons' or experts' shares along a direction.

What stands between the parts and the stream (a norm on the branch, a factor on its write) is linear
once its divisor is that of the run; the direction goes back through it before it meets the parts.
Everything is reduced inside the hooks of one forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .audit import CHANGED, LedgerError
from .experts import Experts, has_experts
from .frozen import FrozenNorm
from .parts import BranchParts, rounding_allowance
from .rerun import Hook, run_to_top
from .targets import Projection
from .wiring import block_class

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

    from .stream import ResidualStream
    from .wiring import Wiring

BRANCHES = {"head": "attn", "neuron": "mlp", "expert": "mlp"}
_ACTIVATION = {"attn": "attn.hook_z", "mlp": "mlp.hook_post"}
# Whether a branch has output weights by part: a matter of its class, and slow to ask.
_SPLITS: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


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
                f"output is a sum of; allowed for this model are "
                f"{_others(unit, experts=branch == 'mlp' and has_experts(model.blocks[layer]))}"
            )
    return points


def _splits(block: Any, branch: str) -> bool:
    module, weight = getattr(block, branch), "W_O" if branch == "attn" else "W_out"
    if module not in _SPLITS:
        _SPLITS[module] = isinstance(getattr(module, weight, None), Tensor)
    return _SPLITS[module]


def _others(unit: str, *, experts: bool = False) -> str:
    known = ("layer", "sublayer", "head", "neuron", *(["expert"] if experts else []))
    allowed = [name for name in known if name != unit]
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
    wrong = [unit for unit in units if unit not in ("head", "neuron")]
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
    read_by: Sequence[Projection],
    whole: Sequence[Float[Tensor, "1 batch pos"]],
    *,
    unit: str,
) -> BranchParts:
    """Return every head's (neuron's, expert's) share, from kept activations or from one more run.

    Args:
        stream: The recorded stream.
        kept: The places wanted, as indices into ``stream.positions``.
        read_by: What each write is projected on.
        whole: Each write's share, in the order written.
        unit: ``"head"``, ``"neuron"`` or ``"expert"``.

    Returns:
        The parts in the order written: heads (neurons, experts), what the branch adds to every
        token alike (its output bias, the bias of its norm) where it has that, and the branches that
        stay whole.

    Raises:
        LedgerError: A branch whose parts do not add up to its write, by block; or a model that
            no longer runs as it was recorded.
    """
    splitter = _Splitter(stream, kept, read_by, unit)
    if splitter.can_use(stream.activations):
        splitter.from_kept(stream.activations, whole)
    else:
        splitter.from_a_run()
    parts = BranchParts()
    for index, (write, value) in enumerate(zip(stream.wiring.writes, whole, strict=True)):
        if index not in splitter.shares:
            parts.add(write.label, write.layer, write.kind, value)
            continue
        parts.add(splitter.names[index], write.layer, unit, splitter.shares[index])
        if (bias := splitter.bias.get(index)) is not None:
            parts.add(f"L{write.layer}_{splitter.branch}_bias", write.layer, "bias", bias)
        if write.kind == "parallel":
            other = "mlp" if splitter.branch == "attn" else "attn"
            rest = value - splitter.written[index]
            parts.add(f"{write.layer}_{other}_out", write.layer, other, rest)
    return parts


class _Splitter:
    """Turns a branch's activations into shares and holds them against what the branch wrote.

    Attributes:
        names: The parts' labels, here and below by the index of their write.
        shares: Their shares, ``[part, batch, pos]``.
        bias: The share of what the branch adds to every token alike.
        written: The share of the branch's own write, measured where it was written.
    """

    def __init__(
        self,
        stream: ResidualStream,
        kept: Tensor,
        read_by: Sequence[Projection],
        unit: str,
    ) -> None:
        self.stream, self.kept, self.unit = stream, kept, unit
        self.model, self.branch, self.read_by = stream.model, BRANCHES[unit], read_by
        # The weights' own precision, but no less than float32.
        self.dtype = torch.float64 if stream.writes.dtype == torch.float64 else torch.float32
        self.points = {} if unit == "expert" else activation_points(
            self.model, stream.wiring, unit, caller="logit_attribution"
        )  # fmt: skip
        self.writes = {
            write.layer: index
            for index, write in enumerate(stream.wiring.writes)
            if write.kind in (self.branch, "parallel") and self._has_parts(write.layer)
        }
        if unit == "expert" and not self.writes:
            raise LedgerError(
                "logit_attribution: no block of this model has experts; allowed are "
                f"{_others(unit)}"
            )
        self.active: dict[int, Tensor | Experts] = {}
        self.before_norm: dict[int, Tensor] = {}
        self.names: dict[int, list[str]] = {}
        self.shares: dict[int, Tensor] = {}
        self.bias: dict[int, Tensor] = {}
        self.written: dict[int, Tensor] = {}

    def _has_parts(self, layer: int) -> bool:
        return layer in self.points or (
            self.unit == "expert" and has_experts(self.model.blocks[layer])
        )

    def _post_norm(self, layer: int) -> str | None:
        """The name of the norm on the branch, if there is one."""
        name = {"attn": "ln1_post", "mlp": "ln2_post"}[self.branch]
        parts = self.model.blocks[layer].submodules or {}
        return f"blocks.{layer}.{name}" if name in parts else None

    def can_use(self, activations: Mapping[str, Tensor]) -> bool:
        """Whether kept activations are enough: not behind a norm, nor where two writes are one."""
        return (
            bool(self.points)
            and all(point in activations for point in self.points.values())
            and not any(self._post_norm(layer) for layer in self.writes)
            and all(write.kind != "parallel" for write in self.stream.wiring.writes)
        )

    def from_kept(self, activations: Mapping[str, Tensor], whole: Sequence[Tensor]) -> None:
        """Split from what :func:`residual_stream.record` kept."""
        every = torch.equal(self.kept, torch.arange(len(self.stream.positions)))

        def chosen(value: Tensor) -> Tensor:
            return value if every else value[:, self.kept.to(value.device)]

        for layer, index in self.writes.items():
            self.active[layer] = chosen(activations[self.points[layer]])
            self._on_write(layer, chosen(self.stream.writes[index]), whole[index])

    def from_a_run(self) -> None:
        """Split during one more run of the model, which must end as the recorded one did."""
        positions = self.stream.positions[self.kept]

        def chosen(value: Tensor) -> Tensor:
            return value.detach().index_select(1, positions.to(value.device))

        def keeping(store: dict[int, Any], layer: int) -> Any:
            return lambda value, hook: store.__setitem__(layer, chosen(value))

        hooks: list[Hook] = []
        for layer, index in self.writes.items():
            if self.unit == "expert":
                self.active[layer] = Experts(self.model.blocks[layer], positions)
            else:
                hooks.append((self.points[layer], keeping(self.active, layer)))
            if norm := self._post_norm(layer):
                hooks.append((f"{norm}.hook_in", keeping(self.before_norm, layer)))
            points = self.stream.wiring.writes[index].hooks
            written = points[0 if self.branch == "attn" else -1]
            hooks.append((written, lambda w, hook, i=layer: self._on_write(i, chosen(w))))
        try:
            top = run_to_top(self.model, self.stream.tokens, fwd_hooks=hooks)
        finally:
            for watched in self.active.values():
                if isinstance(watched, Experts):
                    watched.remove()
        own = self.stream.top
        if not torch.equal(top[:, self.stream.positions.to(top.device)].to(own.device), own):
            raise LedgerError(f"logit_attribution: {CHANGED}")

    def _into_the_branch(self, layer: int, along: Projection) -> tuple[Projection, Tensor | None]:
        """The projection behind the branch's factor and norm, and the share of the norm's bias."""
        scale = float(getattr(self.model.blocks[layer], "residual_contribution_scale", 1.0))
        if scale != 1.0:  # Granite
            along = along.along(along.rows * scale)
        if not (name := self._post_norm(layer)):
            return along, None
        norm = FrozenNorm.of(self.model, name).at(self.before_norm.pop(layer).to(along.rows.device))
        constant = along.rows @ norm.norm.bias.to(along.rows)
        return along.along(norm.pull(along.rows)), constant[None] if norm.norm.bias.any() else None

    def _on_write(self, layer: int, write: Tensor, written: Tensor | None = None) -> None:
        index = self.writes[layer]
        onto = self.read_by[index]
        along, constant = self._into_the_branch(layer, onto)
        active = self.active.pop(layer)
        if isinstance(active, Experts):
            self.names[index], shares, bias = *active.shares(along, layer), None
        else:
            weight = output_matrix(self.model, layer, self.branch).to(self.dtype)
            shares, block = along.through(weight, active), self.model.blocks[layer]
            letter = "H" if self.unit == "head" else "N"
            self.names[index] = [f"L{layer}{letter}{i}" for i in range(len(shares))]
            bias = block.attn.b_O if self.branch == "attn" else block.mlp.b_out
        if bias is not None:
            own = (along.rows @ bias.detach().to(along.rows))[None]
            constant = own if constant is None else constant + own
        self.shares[index] = shares.to(onto.rows.device)
        if constant is not None:
            self.bias[index] = constant
        self.written[index] = onto.of(write) if written is None else written
        length = onto.rows.norm(dim=-1)
        size = torch.linalg.vector_norm(write, dim=-1, dtype=self.dtype).to(onto.rows) * length
        self._require_closed(layer, size[None], rounding_allowance(write.dtype))

    def _require_closed(self, layer: int, size: Tensor, allowed: float) -> None:
        index = self.writes[layer]
        shares, bias, written = self.shares[index], self.bias.get(index), self.written[index]
        total = shares.sum(0, keepdim=True, dtype=torch.float64)
        size = size + shares.abs().sum(0, keepdim=True, dtype=torch.float64)
        if bias is not None:
            total, size = total + bias, size + bias.abs()
        gap = (total - written).abs()
        if bool((gap > allowed * size).any()):
            inner = block_class(self.model.blocks[layer])
            worst = int(gap.argmax())
            raise LedgerError(
                f"logit_attribution: in block {layer} ({inner}) the parts of the {self.branch} "
                f"branch add up to {float(total.flatten()[worst]):.4g}, but it wrote "
                f"{float(written.flatten()[worst]):.4g} along the target: what it writes is not "
                "its parts through its output weights alone, or these have changed since the "
                f"stream was recorded. Allowed for such a block are {_others(self.unit)}"
            )
