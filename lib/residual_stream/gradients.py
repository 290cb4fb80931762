r"""The gradient of the loss on its way down the stream, and the paths that it comes by.

With :math:`g_L` the gradient at the top, every write :math:`\Delta_k = F_k(x^{(k-1)})` turns the
gradient behind it into

.. math:: g_{k-1} = g_k + J_k^{\top} g_k, \qquad J_k = \partial F_k / \partial x^{(k-1)}.

Multiplied out over n writes this is a sum over all :math:`2^n` choices of "past" and "through"; it
is exact, with every :math:`J_k` taken where the run really was. Sorted by the number of branches
that a path goes through, the sum has n + 1 terms, and these follow from one sweep:

.. math:: g^{(m)}_{k-1} = g^{(m)}_k + J_k^{\top} g^{(m-1)}_k .

Source: Veit et al. 2016, *Residual Networks Behave Like Ensembles of Relatively Shallow Networks*,
section 5, who sample paths; here they are all there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .inputs import to_tokens
from .precision import Float64Throughout
from .rerun import run_blocks, run_to_top, skipped_blocks
from .wiring import Wiring, read_wiring

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

_UNITS = ("sublayer", "layer")


@dataclass(frozen=True, eq=False, repr=False)
class StreamGradients:
    """The gradient of the summed next-token loss with respect to the stream after every write.

    Attributes:
        labels: The writes, the embedding's last one first.
        values: The gradient with respect to the stream after each, in nats per unit of stream, at
            every position but the last, which predicts nothing.
    """

    labels: list[str]
    values: Float[Tensor, "write batch pos d_model"]

    @property
    def norms(self) -> Float[Tensor, "write batch pos"]:
        """Length of the gradient after each write."""
        return self.values.norm(dim=-1)

    @property
    def identity_share(self) -> Float[Tensor, "batch pos"]:
        r"""The identity path's part of the row's gradient: :math:`g_L\cdot g_0/\|g_0\|^2`.

        The identity path hands :math:`g_L` down unchanged. The parts of all paths add up to 1.
        """
        row, top = self.values[0], self.values[-1]
        return (row * top).sum(-1) / row.square().sum(-1)

    def __repr__(self) -> str:
        """One line: the writes, the places, the median growth from top to row."""
        growth = (self.norms[0] / self.norms[-1]).median()
        return (
            f"StreamGradients({len(self.labels)} writes × {self.norms[0].numel()} places; the "
            f"row's gradient is {float(growth):.3g} times the top's (median))"
        )


@dataclass(frozen=True, eq=False, repr=False)
class PathGradients:
    """The gradient at the embedding row, split by the number of branches that a path enters.

    Attributes:
        values: The part of all paths through m branches, for m = 0 (the identity) upwards, at every
            position but the last, which predicts nothing.
        direct: The same gradient by autograd, in one backward pass.
        unit: ``"sublayer"`` or ``"layer"``: what counts as one branch.
        descent: ``cancellation`` of the gradient at the top, then behind every branch on the way
            down; the last is the row's.
    """

    values: Float[Tensor, "length batch pos d_model"]
    direct: Float[Tensor, "batch pos d_model"]
    unit: str
    descent: Float[Tensor, "branch batch pos"]

    @property
    def norms(self) -> Float[Tensor, "length batch pos"]:
        """Length of every part."""
        return self.values.norm(dim=-1)

    @property
    def shares(self) -> Float[Tensor, "length batch pos"]:
        """Every part's signed share of the gradient; they add up to 1 at each place."""
        row = self.direct
        return (self.values * row).sum(-1) / row.square().sum(-1)

    @property
    def cancellation(self) -> Float[Tensor, "batch pos"]:
        r"""Size of the parts over the size of their sum, :math:`\sum_m\|g^{(m)}\| / \|g_0\|`.

        At least 1; 1 where nothing cancels.
        """
        return self.norms.sum(0) / self.direct.norm(dim=-1)

    @property
    def mean_length(self) -> Float[Tensor, "batch pos"]:
        """Mean path length, every length weighted with the size of its part."""
        lengths = torch.arange(len(self.values)).to(self.norms)
        return torch.einsum("m,mbp->bp", lengths, self.norms) / self.norms.sum(0)

    @cached_property
    def error(self) -> float:
        """Largest relative distance of the parts' sum from autograd's gradient, over places."""
        gap = (self.values.double().sum(0) - self.direct.double()).norm(dim=-1)
        return float((gap / self.direct.double().norm(dim=-1)).max())

    def __repr__(self) -> str:
        """One line: how many parts, how much they cancel, whether they add up."""
        return (
            f"PathGradients({len(self.values) - 1} {self.unit}s, {self.direct[..., 0].numel()} "
            f"places; parts over sum {float(self.cancellation.median()):.3g} (median), mean length "
            f"{float(self.mean_length.median()):.1f}; off autograd's by {self.error:.1e})"
        )


def stream_gradients(
    model: TransformerBridge,
    text: str | Sequence[str] | Sequence[int] | Int[Tensor, " seq"] | Int[Tensor, "batch seq"],
) -> StreamGradients:
    """Return the loss's gradient with respect to the stream after every write, in one backward.

    The loss is the sum over all places of the next token's. A gradient with respect to what a write
    adds is one with respect to the stream after it: they differ by a constant. It is read at the
    writes: an edit at TransformerLens's ``hook_resid_mid`` reaches the MLP's branch only, so its
    gradient lacks the shortcut's part
    (test_the_gradient_is_not_that_of_an_edit_at_hook_resid_mid).

    Args:
        model: A ``TransformerBridge``, as :func:`residual_stream.load` returns it.
        text: One text, several texts of equal token length, or token ids.

    Returns:
        The gradients; ``.identity_share`` is the identity path's part.

    Raises:
        ValueError: A text of one token.

    Example:
        >>> import residual_stream as rs
        >>> gradients = rs.stream_gradients(rs.load("bench"), "In the beginning")
        >>> gradients.labels[0], gradients.labels[-1], len(gradients.values)
        ('pos_embed', '3_mlp_out', 9)
    """
    wiring = read_wiring(model)
    tokens = _longer_than_one(to_tokens(model, text, caller="stream_gradients"), "stream_gradients")
    rows = [write for write in wiring.writes if write.layer < 0]
    writes = [rows[-1], *wiring.block_writes]
    seen: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: Any, label: str) -> Tensor:
        if not value.requires_grad:  # a model whose weights are frozen starts its graph here
            value = value.detach().requires_grad_()
        seen[label] = value
        return value

    hooks: list[Any] = [
        (write.hooks[-1], lambda value, hook, label=write.label: keep(value, hook, label))
        for write in writes[1:]
    ]
    # The row is the stream entering block 0: a positional row has batch 1, as all texts share it.
    hooks.append(("blocks.0.hook_in", lambda value, hook: keep(value, hook, writes[0].label)))
    with torch.enable_grad(), Float64Throughout(), model.hooks(fwd_hooks=hooks):
        loss = _summed_loss(model(tokens, return_type="logits"), tokens)
        found = torch.autograd.grad(loss, [seen[write.label] for write in writes])
    # The last position predicts nothing, and its gradient is zero.
    return StreamGradients([write.label for write in writes], torch.stack(found)[:, :, :-1])


def gradient_by_path_length(
    model: TransformerBridge,
    text: str | Sequence[str] | Sequence[int] | Int[Tensor, " seq"] | Int[Tensor, "batch seq"],
    *,
    unit: str = "sublayer",
) -> PathGradients:
    """Return the row's gradient split exactly by path length.

    One sweep from the top down. Each branch is differentiated where the run really was, with one
    vector-Jacobian product per length, batched: for n branches about n/2 backward passes.

    Args:
        model: A ``TransformerBridge``, as :func:`residual_stream.load` returns it.
        text: One text, several texts of equal token length, or token ids.
        unit: ``"sublayer"`` counts every write as a branch, ``"layer"`` every block.

    Returns:
        The parts, and autograd's gradient beside their sum.

    Raises:
        ValueError: An unknown unit, or a text of one token.

    Example:
        >>> import residual_stream as rs
        >>> parts = rs.gradient_by_path_length(rs.load("bench"), "In the beginning")
        >>> len(parts.values), parts.error < 1e-4
        (9, True)
    """

    descent: list[Tensor] = []

    def one_longer(state: Tensor, through: Tensor) -> Tensor:
        none = torch.zeros_like(state[:1])
        longer = torch.cat([state, none]) + torch.cat([none, through])
        parts = longer[:, :, :-1].norm(dim=-1).sum(0)
        descent.append(parts / longer[:, :, :-1].sum(0).norm(dim=-1))
        return longer

    with Float64Throughout():
        values = _sweep(model, text, unit, one_longer, "gradient_by_path_length")
    steps = torch.stack([torch.ones_like(descent[0]), *descent])
    return PathGradients(values, stream_gradients(model, text).values[0], unit, steps)


def gradient_of_every_path(
    model: TransformerBridge,
    text: str | Sequence[str] | Sequence[int] | Int[Tensor, " seq"] | Int[Tensor, "batch seq"],
    *,
    unit: str = "sublayer",
) -> Float[Tensor, "path batch pos d_model"]:
    """Return every single path's part of the row's gradient: all 2ⁿ of them.

    Path number i enters branch k, counted from the top, if bit k of i is set. For small models
    only: twice the memory with every branch.

    Args:
        model: A ``TransformerBridge`` of at most 12 branches.
        text: One text, several texts of equal token length, or token ids.
        unit: ``"sublayer"`` counts every write as a branch, ``"layer"`` every block.

    Returns:
        One gradient per path; their sum is autograd's.

    Raises:
        ValueError: More than 12 branches, an unknown unit, or a text of one token.

    Example:
        >>> import residual_stream as rs
        >>> model = rs.load("bench")
        >>> len(rs.gradient_of_every_path(model, "In the beginning"))
        256
    """
    branches = _branches(read_wiring(model), unit, "gradient_of_every_path")
    n = len(branches) if unit == "layer" else sum(map(len, branches.values()))
    if n > 12:
        raise ValueError(
            f"gradient_of_every_path: {n} branches make 2^{n} paths; it lists those of up to 12 "
            "branches. gradient_by_path_length sums them by length for any number"
        )

    def both(state: Tensor, through: Tensor) -> Tensor:
        return torch.cat([state, through])

    with Float64Throughout():
        return _sweep(model, text, unit, both, "gradient_of_every_path")


def _sweep(
    model: TransformerBridge,
    text: Any,
    unit: str,
    join: Callable[[Tensor, Tensor], Tensor],
    caller: str,
) -> Tensor:
    """Carry a stack of gradients from the top to the row, joining past and through each branch."""
    branches = _branches(read_wiring(model), unit, caller)
    tokens = _longer_than_one(to_tokens(model, text, caller=caller), caller)
    entering: list[Tensor] = []
    hooks = [
        (f"blocks.{i}.hook_in", lambda value, hook: entering.append(value.detach().clone()))
        for i in range(len(model.blocks))
    ]
    top = run_to_top(model, tokens, fwd_hooks=hooks)
    state = _gradient_at_top(model, top, tokens)[None]
    for layer in reversed(range(len(model.blocks))):
        pieces = _graph(model, entering[layer], layer, branches[layer], unit)
        for leaf, write in reversed(pieces):
            (through,) = torch.autograd.grad(
                write, leaf, state, is_grads_batched=True, retain_graph=True
            )
            state = join(state, through)
    return state[:, :, :-1]


def _branches(wiring: Wiring, unit: str, caller: str) -> dict[int, list[tuple[str, ...]]]:
    """The hook points of every block's branches, in order; parallel branches together."""
    if unit not in _UNITS:
        raise ValueError(f"{caller}: unit = {unit!r} is not known; pass 'sublayer' or 'layer'")
    if wiring.norms:
        raise ValueError(
            f"{caller}: the stream of this model goes through norms ({wiring.norms[0].module} is "
            "the first), so no path through it is the identity"
        )
    found: dict[int, list[tuple[str, ...]]] = {}
    for write in wiring.block_writes:
        found.setdefault(write.layer, []).append(write.hooks)
    for layer, writes in found.items():
        # Two writes that read the same stream are one step: no path goes through both.
        if len({read.writes_before for read in wiring.reads if read.layer == layer}) < len(writes):
            found[layer] = [tuple(point for write in writes for point in write)]
    return found


def _graph(
    model: TransformerBridge,
    entering: Tensor,
    layer: int,
    writes: list[tuple[str, ...]],
    unit: str,
) -> list[tuple[Tensor, Tensor]]:
    """Run one block, and return for each branch what it read and what it wrote, as a graph.

    What a branch read is a leaf: the stream entering the block for the first, the write before it
    for the second, which reaches it through the addition alone.
    """
    leaf = entering.requires_grad_()
    pieces: list[tuple[Tensor, Tensor]] = []
    written: dict[str, Tensor] = {}
    cuts: dict[str, Tensor] = {}

    def cut(value: Tensor, hook: Any, point: str) -> Tensor:
        written[point], cuts[point] = value, value.detach().requires_grad_()
        return cuts[point]

    hooks: list[Any] = (
        []
        if unit == "layer"
        else [
            (point, lambda value, hook, point=point: cut(value, hook, point))
            for write in writes
            for point in write
        ]
    )
    with torch.enable_grad():
        after = run_blocks(model, leaf, layer, layer + 1, fwd_hooks=hooks)
        if unit == "layer":
            return [(leaf, after - leaf)]
        for first, *rest in writes:
            pieces.append((leaf, sum((written[point] for point in rest), written[first])))
            leaf = cuts[first]
    return pieces


def _gradient_at_top(model: TransformerBridge, top: Tensor, tokens: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = top.detach().requires_grad_()
        hooks = [("ln_final.hook_in", lambda value, hook: leaf)]
        with skipped_blocks(model, range(len(model.blocks))), model.hooks(fwd_hooks=hooks):
            loss = _summed_loss(model(tokens, return_type="logits"), tokens)
        (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient


def _summed_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="sum")


def _longer_than_one(tokens: Tensor, caller: str) -> Tensor:
    if tokens.shape[1] < 2:
        raise ValueError(f"{caller}: a text of one token has no next token to predict; lengthen it")
    return tokens
