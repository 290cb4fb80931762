"""Where each kind of block writes to the residual stream.

A :class:`Wiring` lists, in the order of the forward pass, the writes of a model and the hook
points at which the stream itself can be seen. It is read off the structure of the model's blocks;
whether it is right is not assumed but measured, block by block, whenever a stream is recorded
(:mod:`residual_stream.audit`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


class WiringError(NotImplementedError):
    """The model has a block whose writes this library does not know how to observe."""


@dataclass(frozen=True)
class Write:
    """One addition to the stream.

    Attributes:
        label: Name in the field's terms, for example ``"embed"`` or ``"3_mlp_out"``.
        kind: ``"embed"``, ``"pos_embed"``, ``"attn"``, ``"mlp"`` or ``"parallel"``.
        layer: The block that writes, −1 for what is written before block 0.
        hooks: The hook points whose values, added in this order, are the write.
    """

    label: str
    kind: str
    layer: int
    hooks: tuple[str, ...]


@dataclass(frozen=True)
class Boundary:
    """A hook point that carries the stream itself.

    Attributes:
        hook: The hook point, for example ``"blocks.4.hook_in"``.
        writes_before: How many writes the stream holds there.
        closes: What lies between this boundary and the one before, in words; ``layer`` is its
            block, −1 for the embedding stage.
    """

    hook: str
    writes_before: int
    closes: str
    layer: int


@dataclass(frozen=True)
class Wiring:
    """The writes of a model in order, and the places where the stream can be seen."""

    writes: tuple[Write, ...]
    boundaries: tuple[Boundary, ...]

    @property
    def labels(self) -> list[str]:
        """The labels of the writes, in the order written."""
        return [write.label for write in self.writes]

    @property
    def block_writes(self) -> tuple[Write, ...]:
        """The writes made by blocks: all but the embedding's."""
        return tuple(write for write in self.writes if write.layer >= 0)


def read_wiring(model: TransformerBridge) -> Wiring:
    """Return where ``model`` writes to its residual stream.

    Known are sequential blocks (``x + attn``, then ``+ mlp``), blocks with attention or MLP only,
    and parallel blocks, whose two branches read one stream and are added as one write.

    Args:
        model: A ``TransformerBridge``, as :func:`residual_stream.load` returns it.

    Returns:
        The wiring. A 30-block sequential model has 61 writes and 31 boundaries.

    Raises:
        WiringError: A block of another class, or blocks that this library does not know.

    Example:
        >>> import residual_stream as rs
        >>> rs.read_wiring(rs.load("bench")).labels[:4]
        ['embed', 'pos_embed', '0_attn_out', '0_mlp_out']
    """
    if not hasattr(model, "blocks") or not hasattr(model, "hook_dict"):
        raise WiringError(
            f"read_wiring: a {type(model).__name__} has no stack called `blocks`; pass a "
            "TransformerBridge of a decoder (residual_stream.load makes one)"
        )
    writes = _embedding_writes(model)
    boundaries = [Boundary("blocks.0.hook_in", len(writes), "the embedding", -1)]
    n_layers = len(model.blocks)
    for layer, block in enumerate(model.blocks):
        writes += _block_writes(layer, block)
        after = f"blocks.{layer + 1}.hook_in" if layer + 1 < n_layers else "ln_final.hook_in"
        name = type(getattr(block, "original_component", block)).__name__
        boundaries.append(Boundary(after, len(writes), f"block {layer} ({name})", layer))
    wiring = Wiring(tuple(writes), tuple(boundaries))
    _require_hooks(model, wiring)
    return wiring


def _embedding_writes(model: TransformerBridge) -> list[Write]:
    writes = [Write("embed", "embed", -1, ("embed.hook_out",))]
    if "pos_embed.hook_out" in model.hook_dict:
        writes.append(Write("pos_embed", "pos_embed", -1, ("pos_embed.hook_out",)))
    return writes


def _block_writes(layer: int, block: Any) -> list[Write]:
    # Imported here: TransformerLens takes seconds to import.
    from transformer_lens.model_bridge.generalized_components import (
        BlockBridge,
        ParallelBlockBridge,
    )

    parts = set(block.submodules or {})
    attn, mlp = f"blocks.{layer}.hook_attn_out", f"blocks.{layer}.hook_mlp_out"
    # Exact classes: a subclass exists because its block is wired differently.
    if type(block) is ParallelBlockBridge and {"attn", "mlp"} <= parts:
        return [Write(f"{layer}_parallel_out", "parallel", layer, (attn, mlp))]
    if type(block) is BlockBridge and parts & {"attn", "mlp"}:
        found = [
            Write(f"{layer}_attn_out", "attn", layer, (attn,)),
            Write(f"{layer}_mlp_out", "mlp", layer, (mlp,)),
        ]
        return [write for write in found if write.kind in parts]
    inner = type(getattr(block, "original_component", block)).__name__
    raise WiringError(
        f"read_wiring: block {layer} is a {inner} (bridged as {type(block).__name__} with "
        f"{sorted(parts)}), whose writes this library does not know; known are sequential and "
        "parallel blocks of attention and MLP"
    )


def _require_hooks(model: TransformerBridge, wiring: Wiring) -> None:
    wanted = [hook for write in wiring.writes for hook in write.hooks]
    wanted += [boundary.hook for boundary in wiring.boundaries]
    missing = [hook for hook in wanted if model.get_hook_point(hook) is None]
    if missing:
        raise WiringError(
            f"read_wiring: {getattr(model.cfg, 'architecture', 'this model')} has no hook point "
            f"{missing[0]!r} ({len(missing)} missing), so the writes there cannot be observed"
        )
