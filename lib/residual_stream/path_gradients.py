r"""The gradient at the embedding row, sorted by the paths that it came by.

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

from .audit import LedgerError
from .gradients import longer_than_one, stream_gradients, summed_loss
from .inputs import to_tokens
from .precision import Float64Throughout
from .rerun import run_blocks, run_to_top, skipped_blocks
from .wiring import Wiring, read_wiring

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

_UNITS = ("sublayer", "layer")


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
        LedgerError: The parts do not add up to autograd's gradient.

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
    parts = PathGradients(values, stream_gradients(model, text).values[0], unit, steps)
    allowed = max(1e-3, 8 * torch.finfo(model.cfg.dtype).eps)
    if not parts.error <= allowed:
        raise LedgerError(
            f"gradient_by_path_length: the parts miss autograd's gradient by {parts.error:.2g} of "
            f"it (rounding would be at most {allowed:.1g}): a block is wired differently than this "
            "library reads it; record(model, text).audit() says which"
        )
    return parts


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
    tokens = longer_than_one(to_tokens(model, text, caller=caller), caller)
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
            loss = summed_loss(model(tokens, return_type="logits"), tokens)
        (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient
