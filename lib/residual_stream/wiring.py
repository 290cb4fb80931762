"""Where each kind of block writes to the residual stream, and where it reads it.

A :class:`Wiring` lists, in the order of the forward pass, the writes of a model, the hook points
at which the stream itself can be seen, and those at which a branch reads it. It is read off the
structure of the model's blocks, and one thing that the structure does not show off a short run;
whether it is right is not assumed but measured, block by block, whenever a stream is recorded
(:mod:`residual_stream.audit`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


class WiringError(NotImplementedError):
    """The model has a block whose writes this library does not know how to observe."""


@dataclass(frozen=True)
class Write:
    """One addition to the stream.

    Attributes:
        label: Name in the field's terms, for example ``"embed"`` or ``"3_mlp_out"``.
        kind: ``"embed"``, ``"pos_embed"``, ``"attn"``, ``"linear_attn"``, ``"mixer"``, ``"mlp"``
            or ``"parallel"``.
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
class Read:
    """A hook point at which a branch reads the stream.

    Attributes:
        hook: The input of the branch's norm, for example ``"blocks.4.ln2.hook_in"``; of the branch
            where no norm comes first.
        writes_before: How many writes the stream must hold there.
        reader: Who reads, in words.
        layer: Its block.
    """

    hook: str
    writes_before: int
    reader: str
    layer: int


@dataclass(frozen=True)
class StreamNorm:
    """A norm that the stream itself passes through, as in a post-LN block.

    Attributes:
        module: Its name in the model, for example ``"blocks.4.ln1"``.
        writes_before: How many writes the stream holds there.
        layer: Its block.
    """

    module: str
    writes_before: int
    layer: int


@dataclass(frozen=True)
class Wiring:
    """The writes of a model in order, and the places where the stream can be seen."""

    writes: tuple[Write, ...]
    boundaries: tuple[Boundary, ...]
    reads: tuple[Read, ...] = ()
    norms: tuple[StreamNorm, ...] = ()

    @property
    def labels(self) -> list[str]:
        """The labels of the writes, in the order written."""
        return [write.label for write in self.writes]

    @property
    def block_writes(self) -> tuple[Write, ...]:
        """The writes made by blocks: all but the embedding's."""
        return tuple(write for write in self.writes if write.layer >= 0)


#: What mixes positions in a block, one of them; each is the name of its branch and of its kind.
MIXERS = ("attn", "linear_attn", "mixer")


def read_wiring(model: TransformerBridge) -> Wiring:
    """Return where ``model`` writes to its residual stream, and where its branches read it.

    Known are sequential blocks (``x + attn``, then ``+ mlp``; attention may be a linear attention
    or a state-space mixer, and either branch may be missing), with norms before the branches,
    after them or both, with scaled branches; parallel blocks, whose two branches read one stream;
    and post-LN blocks (BERT, GPT-1), where the stream itself passes through norms and ends, for
    this library, before the last of them, which reads it out.

    A parallel block makes one write where it adds its branches first, ``x + (attn + mlp)``, and two
    where it adds them one by one, ``(x + attn) + mlp``: in floating point these differ, and a short
    run of block 0 tells which it is.

    A model of another make may declare its wiring itself, in a method ``declared_wiring``; whether
    it is right is measured all the same.

    Args:
        model: A ``TransformerBridge``, as :func:`residual_stream.load` returns it, or a
            :class:`residual_stream.blocks.Stack`.

    Returns:
        The wiring. A 30-block sequential model has 61 writes, 31 boundaries and 60 reads.

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
    if (declared := getattr(model, "declared_wiring", None)) is not None:
        wiring = declared()
        _require_hooks(model, wiring)
        return wiring
    if _norms_its_stream(model):
        return _assemble_post_norm(model)
    wiring = _assemble(model, branches_first=True)
    if any(write.kind == "parallel" for write in wiring.writes) and _adds_one_by_one(model, wiring):
        return _assemble(model, branches_first=False)
    return wiring


def _assemble(model: TransformerBridge, *, branches_first: bool) -> Wiring:
    writes = _embedding_writes(model)
    boundaries = [Boundary("blocks.0.hook_in", len(writes), "the embedding", -1)]
    reads: list[Read] = []
    n_layers = len(model.blocks)
    for layer, block in enumerate(model.blocks):
        made = _block_writes(layer, block, branches_first=branches_first)
        reads += _block_reads(layer, block, made, len(writes))
        writes += made
        last = layer + 1 == n_layers
        after = f"{final_norm(model)}.hook_in" if last else f"blocks.{layer + 1}.hook_in"
        closes = f"block {layer} ({block_class(block)})"
        boundaries.append(Boundary(after, len(writes), closes, layer))
    wiring = Wiring(tuple(writes), tuple(boundaries), tuple(reads))
    _require_hooks(model, wiring)
    return wiring


def final_norm(model: TransformerBridge) -> str:
    """Return the name of the norm that reads the stream out; what enters it is the top.

    Args:
        model: A ``TransformerBridge``.

    Returns:
        ``"ln_final"``, or the last norm of the last block of a post-LN model.
    """
    return f"blocks.{len(model.blocks) - 1}.ln2" if _norms_its_stream(model) else "ln_final"


def _norms_its_stream(model: TransformerBridge) -> bool:
    """Whether the stack is post-LN: two norms a block, and none between the stack and its readout.

    Where the norms stand in the block is not seen here, but when the stream is recorded.
    """
    reads_out_bare = not hasattr(model, "ln_final") or hasattr(model, "mlm_head")
    parts = {*_POST_NORM}
    return reads_out_bare and all(
        _kind_of_block(block) == "sequential" and parts == set(block.submodules)
        for block in model.blocks
    )


_POST_NORM = ("attn", "ln1", "mlp", "ln2")


def _assemble_post_norm(model: TransformerBridge) -> Wiring:
    writes = _embedding_writes(model)
    boundaries = [Boundary("blocks.0.hook_in", len(writes), "the embedding", -1)]
    reads: list[Read] = []
    norms: list[StreamNorm] = []
    for layer, block in enumerate(model.blocks):
        name, held = f"blocks.{layer}", len(writes)
        here = f"of block {layer} ({block_class(block)})"
        made = _block_writes(layer, block, kind="inside")
        reads += [
            Read(f"{name}.attn.hook_in", held, f"the attention {here}", layer),
            Read(f"{name}.ln1.hook_in", held + 1, f"the norm ln1 {here}", layer),
            Read(f"{name}.mlp.hook_in", held + 1, f"the MLP {here}", layer),
        ]
        writes += made
        norms.append(StreamNorm(f"{name}.ln1", held + 1, layer))
        last = layer + 1 == len(model.blocks)
        if not last:
            reads.append(Read(f"{name}.ln2.hook_in", held + 2, f"the norm ln2 {here}", layer))
            norms.append(StreamNorm(f"{name}.ln2", held + 2, layer))
        end = f"{final_norm(model) if last else f'blocks.{layer + 1}'}.hook_in"
        closes = f"block {layer} ({block_class(block)})"
        boundaries.append(Boundary(end, len(writes), closes, layer))
    wiring = Wiring(tuple(writes), tuple(boundaries), tuple(reads), tuple(norms))
    _require_hooks(model, wiring)
    return wiring


def _embedding_writes(model: TransformerBridge) -> list[Write]:
    # BLOOM and BERT normalise the row before the first block reads it: that is the write.
    row = "embed_ln.hook_out" if "embed_ln.hook_out" in model.hook_dict else "embed.hook_out"
    writes = [Write("embed", "embed", -1, (row,))]
    if "pos_embed.hook_out" in model.hook_dict and row == "embed.hook_out":
        writes.append(Write("pos_embed", "pos_embed", -1, ("pos_embed.hook_out",)))
    return writes


def _block_writes(
    layer: int, block: Any, *, branches_first: bool = False, kind: str | None = None
) -> list[Write]:
    parts = set(block.submodules or {})
    kind = kind or _kind_of_block(block)
    mixers = [name for name in MIXERS if name in parts]
    if kind is None or len(mixers) > 1 or not parts & {*MIXERS, "mlp"}:
        raise WiringError(
            f"read_wiring: block {layer} is a {block_class(block)} "
            f"(bridged as {type(block).__name__} with {sorted(parts)}), whose writes this library "
            "does not know; known are sequential and parallel blocks of attention (or one other "
            "mixer) and MLP"
        )
    hooks = {name: f"blocks.{layer}.{_output(name, kind)}" for name in (*mixers, "mlp")}
    if kind == "parallel" and branches_first:
        return [Write(f"{layer}_parallel_out", "parallel", layer, tuple(hooks.values()))]
    return [
        Write(f"{layer}_{name}_out", name, layer, (hook,))
        for name, hook in hooks.items()
        if name in parts
    ]


def _kind_of_block(block: Any) -> str | None:
    """``"sequential"``, ``"parallel"``, or ``"inside"``: a branch's output holds the stream."""
    # Imported here: TransformerLens takes seconds to import.
    from transformer_lens.model_bridge import generalized_components as bridged
    from transformer_lens.model_bridge.generalized_components import block as blocks
    from transformer_lens.model_bridge.supported_architectures.opt import _OptBlockBridge

    kinds = {
        bridged.BlockBridge: "sequential",
        blocks.MLABlockBridge: "sequential",
        blocks.ScaledResidualBlockBridge: "sequential",
        _OptBlockBridge: "sequential",
        bridged.SSMBlockBridge: "sequential",
        bridged.ParallelBlockBridge: "parallel",
        bridged.BloomBlockBridge: "inside",
    }
    # Exact classes: a subclass exists because its block is wired differently.
    return kinds.get(type(block))


def _output(name: str, kind: str) -> str:
    """The hook point of a branch's write, inside its block."""
    if kind == "inside":  # BLOOM, BERT: what the branch returns already holds the stream
        return {"attn": "attn.o.hook_out", "mlp": "mlp.out.hook_out"}[name]
    return f"hook_{name}_out" if name in ("attn", "mlp") else f"{name}.hook_out"


def _block_reads(layer: int, block: Any, made: list[Write], before: int) -> list[Read]:
    parts = set(block.submodules or {})
    words = {"attn": "attention", "linear_attn": "linear attention", "mlp": "MLP"}
    one_stream = _kind_of_block(block) == "parallel"
    mixer = next((name for name in MIXERS if name in parts), None)
    found = []
    for name, norms in ((mixer, ("ln1", "norm")), ("mlp", ("ln2",))):
        if name not in parts:
            continue
        norm = next((norm for norm in norms if norm in parts), None)
        if norm is None and one_stream and name == "mlp":
            continue  # it reads what the attention reads, after the one norm
        sequential_writes = sum(write.kind == mixer for write in made) if name == "mlp" else 0
        found.append(
            Read(
                f"blocks.{layer}.{norm or name}.hook_in",
                before if one_stream else before + sequential_writes,
                f"the {words.get(str(name), name)} of block {layer} ({block_class(block)})",
                layer,
            )
        )
    return found


def block_class(block: Any) -> str:
    """Return the class of a block as the model calls it, for errors: what a bridge wraps."""
    return type(getattr(block, "original_component", block)).__name__


# Whether a parallel model adds its branches one by one: asked at each record, seen once.
_ONE_BY_ONE: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def _adds_one_by_one(model: TransformerBridge, wiring: Wiring) -> bool:
    """Whether block 0 computes ``(x + attn) + mlp`` and not ``x + (attn + mlp)``."""
    from .rerun import run_until, without_hooks

    if model in _ONE_BY_ONE:
        return _ONE_BY_ONE[model]

    write = next(write for write in wiring.writes if write.kind == "parallel")
    start, end = (f"blocks.{write.layer}.hook_in", wiring.boundaries[write.layer + 1].hook)
    seen: dict[str, Tensor] = {}

    def keeping(name: str) -> tuple[str, Any]:
        return name, lambda value, hook: seen.__setitem__(name, value.detach())

    tokens = torch.arange(min(8, model.cfg.d_vocab, model.cfg.n_ctx), device=model.cfg.device)
    hooks = [keeping(name) for name in (start, *write.hooks)]
    with torch.no_grad(), without_hooks(model):
        after = run_until(model, tokens[None], end, fwd_hooks=hooks)
    if not set(write.hooks) <= set(seen):
        return False  # the recording will say which write is missing
    x, attn, mlp = seen[start], *(seen[hook] for hook in write.hooks)
    branches_first = torch.equal(x + (attn + mlp), after)
    one_by_one = torch.equal((x + attn) + mlp, after)
    # Kept only where the two differ: a block whose branches write nothing yet (zeros, before
    # training) does both, and one that is changed for a while does neither.
    if branches_first != one_by_one:
        _ONE_BY_ONE[model] = one_by_one
    return one_by_one and not branches_first


def _hook_names(wiring: Wiring) -> Iterator[str]:
    for write in wiring.writes:
        yield from write.hooks
    for place in (*wiring.boundaries, *wiring.reads):
        yield place.hook
    for norm in wiring.norms:
        yield f"{norm.module}.hook_out"


def _require_hooks(model: TransformerBridge, wiring: Wiring) -> None:
    missing = [hook for hook in _hook_names(wiring) if model.get_hook_point(hook) is None]
    if missing:
        raise WiringError(
            f"read_wiring: {getattr(model.cfg, 'architecture', 'this model')} has no hook point "
            f"{missing[0]!r} ({len(missing)} missing), so the stream there cannot be observed"
        )
