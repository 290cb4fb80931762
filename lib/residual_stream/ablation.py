r"""Take heads out and run the rest again: what a head is worth beside what it wrote.

Removing :math:`\Delta h` from the stream moves the logit along :math:`d` in three steps that add up
exactly. With the clean top :math:`x`, its divisor :math:`\sigma`, and :math:`x', \sigma'` after the
re-run:

.. math:: \frac{x\cdot d}{\sigma} - \frac{x'\cdot d}{\sigma'} =
   \underbrace{\frac{\Delta h\cdot d}{\sigma}}_{\text{direct}}
   - \underbrace{\frac{(x' - x + \Delta h)\cdot d}{\sigma}}_{\text{later writes}}
   - \underbrace{x'\cdot d\,\Big(\frac1{\sigma'} - \frac1\sigma\Big)}_{\text{the norm's divisor}}.

What the later writes and the divisor give back is self-repair.

Source: McGrath et al. 2023, *The Hydra Effect*; Rushing and Nanda 2024, *Explorations of
Self-Repair in Language Models*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from .audit import LedgerError
from .branches import output_matrix
from .parts import rounding_allowance
from .readout import read_readout
from .rerun import Hook, rerun_from
from .targets import Targets, target_ids
from .wiring import block_class

if TYPE_CHECKING:
    from .stream import ResidualStream

Head = tuple[int, int]


def ablate_heads(
    stream: ResidualStream,
    heads: Sequence[Head],
    *,
    how: str = "zero",
    fwd_hooks: Sequence[Hook] = (),
) -> Float[Tensor, "batch seq d_model"]:
    """Return the top of the stream after taking ``heads`` out together, re-run from the first up.

    Position 0 keeps its heads: where every head rests its attention, taking one out there tests
    another claim.

    Args:
        stream: The clean run, with all positions kept.
        heads: Heads as ``(layer, head)``.
        how: ``"zero"``, or ``"mean"`` for the head's mean output over rows and positions after 0.
        fwd_hooks: Further hooks, to look at (or change) what the blocks from there up do.

    Returns:
        The stream at the input of the final norm.

    Raises:
        ValueError: No heads, a head that does not exist, an unknown ``how``, or a stream that has
            not kept all positions.
        LedgerError: The stream does not close.

    Example:
        >>> import residual_stream as rs
        >>> stream = rs.record(rs.load("bench"), "In the beginning")
        >>> rs.ablate_heads(stream, [(0, 1)]).shape == stream.final.shape
        True
    """
    return _Ablation(stream, heads, how, "ablate_heads").run(fwd_hooks)


@dataclass(frozen=True, eq=False, repr=False)
class SelfRepair:
    """What each head wrote toward a target, and what is lost when it is taken out.

    All in logits from one origin; ``effect == direct - later - norm`` up to rounding.

    Attributes:
        heads: The heads, each taken out alone.
        direct: What the head put into the logit (less its mean's part, for mean ablation).
        effect: What the logit loses when the head is taken out and the rest runs again.
        later: What later writes give back, at the clean divisor; negative if they lose more.
        norm: What the smaller or larger divisor of the final norm gives back.
        remainder: ``direct - later - norm - effect``: rounding.
    """

    heads: list[Head]
    direct: Float[Tensor, "head batch pos"]
    effect: Float[Tensor, "head batch pos"]
    later: Float[Tensor, "head batch pos"]
    norm: Float[Tensor, "head batch pos"]
    remainder: Float[Tensor, "head batch pos"]

    def to_frame(self) -> pd.DataFrame:
        """Every head as a row: its means over rows and positions, in logits."""
        names = [f"L{layer}H{head}" for layer, head in self.heads]
        columns = {
            name: getattr(self, name).mean((1, 2)).cpu().numpy()
            for name in ("direct", "effect", "later", "norm")
        }
        return pd.DataFrame({"head": names, **columns})

    def __repr__(self) -> str:
        """One line: heads, places, mean direct share and mean effect."""
        direct, effect = float(self.direct.mean()), float(self.effect.mean())
        return (
            f"SelfRepair({len(self.heads)} heads × {self.direct[0].numel()} places, in logits: "
            f"mean direct {direct:+.3f}, mean effect {effect:+.3f})"
        )

    def _repr_markdown_(self) -> str:
        rows = [
            f"| {h} | {d:+.3f} | {e:+.3f} | {a:+.3f} | {n:+.3f} |"
            for h, d, e, a, n in self.to_frame().itertuples(index=False)
        ]
        head = "| head | direct | effect | given back by later writes | by the norm |\n"
        return head + "|---|---|---|---|---|\n" + "\n".join(rows)


def self_repair(
    stream: ResidualStream,
    heads: Sequence[Head],
    targets: Targets,
    *,
    versus: Targets | None = None,
    position: slice | None = None,
    how: str = "zero",
) -> SelfRepair:
    """Take each head out alone and split the change of the target's logit exactly.

    Args:
        stream: The clean run, with all positions kept.
        heads: Heads as ``(layer, head)``.
        targets: As for :func:`residual_stream.logit_attribution`; ``[batch, pos]`` fits the
            positions asked for.
        versus: Tokens whose logit is subtracted; measured from the vocabulary's mean if None. The
            divisor scales whatever is measured, so what it gives back depends on the origin.
        position: Which positions' next-token logits; all but position 0 if None.
        how: ``"zero"`` or ``"mean"``.

    Returns:
        Direct share, effect and the two kinds of repair, per head and place.

    Raises:
        ValueError: As :func:`ablate_heads`, and targets that do not fit.
        LedgerError: The stream does not close; the model no longer runs as it was recorded; or
            something stands between a head and the stream (a norm on the branch or on the stream,
            a factor, an adapter), so that taking it out is not subtracting its share.

    Example:
        >>> import residual_stream as rs
        >>> stream = rs.record(rs.load("bench"), "In the beginning")
        >>> split = rs.self_repair(stream, [(1, 0)], 5)
        >>> bool(torch.allclose(split.direct - split.later - split.norm, split.effect, atol=1e-4))
        True
    """
    place = slice(1, None) if position is None else position
    top = stream.top[:, place].double()
    batch, pos = top.shape[:2]
    if pos == 0:
        raise ValueError(f"self_repair: position {position!r} keeps no position of the text")
    readout = read_readout(stream.model)
    top = top.to(readout.W_U.device)  # the stream may be kept off the model's device
    ids, other = (
        None
        if asked is None
        else target_ids(stream.model, asked, batch=batch, pos=pos, caller="self_repair")
        for asked in (targets, versus)
    )
    if other is not None:
        ids, other = torch.broadcast_tensors(ids, other)
    together = _Ablation(stream, heads, how, "self_repair")  # says which heads there are
    for layer in together.by_layer:
        _require_plain_write(stream, layer)
    d = readout.direction(ids, versus=other)
    hooks, clean_writes = _watching(stream, together.by_layer, d, place)
    stream.require_same_run(min(together.by_layer), caller="self_repair", fwd_hooks=hooks)
    sigma = readout.sigma(top)
    rows: dict[str, list[Tensor]] = {name: [] for name in ("direct", "effect", "later", "norm")}
    for layer, head in heads:
        ablation = _Ablation(stream, [(layer, head)], how, "self_repair")
        hooks, left_writes = _watching(stream, [layer], d, place)
        after = ablation.run(hooks)[:, place].double()
        sigma_after = readout.sigma(after)
        taken = ablation.taken(d, place)
        _require_loss(stream, layer, clean_writes[layer], left_writes[layer], taken)
        clean, left = (top * d).sum(-1), (after * d).sum(-1)
        rows["direct"].append(taken / sigma)
        rows["effect"].append(clean / sigma - left / sigma_after)
        rows["later"].append((((after - top) * d).sum(-1) + taken) / sigma)
        rows["norm"].append(left / sigma_after - left / sigma)
    split = {name: torch.stack(values) for name, values in rows.items()}
    remainder = split["direct"] - split["later"] - split["norm"] - split["effect"]
    return SelfRepair(
        heads=[(int(layer), int(head)) for layer, head in heads],
        remainder=remainder.float(),
        **{name: value.float() for name, value in split.items()},
    )


def _watching(
    stream: ResidualStream, layers: Iterable[int], direction: Tensor, place: slice
) -> tuple[list[Hook], dict[int, Tensor]]:
    """Hooks that note what attention writes along a direction, and where: the sum and its size."""
    noted: dict[int, Tensor] = {}

    def note(value: Tensor, hook: Any, layer: int) -> None:
        along = value[:, place].to(direction) * direction
        noted[layer] = torch.stack([along.sum(-1), along.abs().sum(-1)])

    points = {
        write.layer: write.hooks[0]
        for write in stream.wiring.writes
        if write.kind in ("attn", "parallel")
    }
    return [(points[i], lambda value, hook, i=i: note(value, hook, i)) for i in layers], noted


def _require_loss(
    stream: ResidualStream, layer: int, clean: Tensor, left: Tensor, taken: Tensor
) -> None:
    """Refuse a head whose removal took something else than its share by the output weights."""
    gap = (clean[0] - left[0] - taken).abs()
    if bool((gap > rounding_allowance(stream.model.cfg.dtype) * (clean[1] + left[1])).any()):
        raise LedgerError(
            f"self_repair: in block {layer} ({block_class(stream.model.blocks[layer])}) the "
            "attention's write does not lose what the head put into it through the output weights: "
            "something else stands there (an adapter, a hook)"
        )


def _require_plain_write(stream: ResidualStream, layer: int) -> None:
    """Refuse a block in which removing a head changes more of its write than the head's part."""
    block = stream.model.blocks[layer]
    between = None
    if stream.wiring.norms:
        between = "a norm on the stream"
    elif "ln1_post" in (block.submodules or {}):
        between = "a norm on the attention's write"
    elif getattr(block, "residual_contribution_scale", 1.0) != 1.0:
        between = "a factor on the attention's write"
    if between:
        inner = block_class(block)
        raise LedgerError(
            f"self_repair: in block {layer} ({inner}) there is {between}, so a head's removal is "
            "not the loss of its share; use ablate_heads, and logit_attribution(unit='head')"
        )


class _Ablation:
    """One set of heads taken out of one clean run."""

    def __init__(
        self, stream: ResidualStream, heads: Sequence[Head], how: str, caller: str
    ) -> None:
        stream.require_closed(caller=caller)
        model = stream.model
        n_layers, n_heads = len(model.blocks), model.cfg.n_heads
        if how not in ("zero", "mean"):
            raise ValueError(f"{caller}: how = {how!r} is not known; pass 'zero' or 'mean'")
        if not heads:
            raise ValueError(f"{caller}: got no heads; pass at least one (layer, head)")
        wrong = [h for h in heads if not (0 <= h[0] < n_layers and 0 <= h[1] < n_heads)]
        if wrong:
            raise ValueError(
                f"{caller}: head {tuple(wrong[0])} does not exist; the model has {n_layers} "
                f"layers of {n_heads} heads, counted from (0, 0)"
            )
        bare = [h for h in heads if model.get_hook_point(f"blocks.{h[0]}.attn.hook_z") is None]
        if bare:
            inner = block_class(model.blocks[bare[0][0]])
            raise ValueError(f"{caller}: block {bare[0][0]} ({inner}) has no attention heads")
        if len(stream.positions) != stream.tokens.shape[1]:
            raise ValueError(
                f"{caller}: the stream has kept {len(stream.positions)} of "
                f"{stream.tokens.shape[1]} positions; record it with all, a re-run needs them"
            )
        self.stream, self.how = stream, how
        self.by_layer: dict[int, list[int]] = {}
        for layer, head in heads:
            self.by_layer.setdefault(layer, []).append(head)
        self.removed: dict[int, Tensor] = {}

    def run(self, fwd_hooks: Sequence[Hook] = ()) -> Float[Tensor, "batch seq d_model"]:
        first = min(self.by_layer)
        residual = self.stream.entering(first)
        means = self._means(residual, first) if self.how == "mean" else {}

        def take_out(z: Tensor, hook: Any, layer: int) -> Tensor:
            split = z.reshape(*z.shape[:2], self.stream.model.cfg.n_heads, -1).clone()
            chosen = self.by_layer[layer]
            before = split[:, 1:, chosen].clone()
            split[:, 1:, chosen] = means[layer] if means else 0.0
            self.removed[layer] = before - split[:, 1:, chosen]
            return split.reshape(z.shape)

        hooks = [
            (f"blocks.{i}.attn.hook_z", lambda z, hook, i=i: take_out(z, hook, i))
            for i in self.by_layer
        ]
        return rerun_from(self.stream.model, residual, first, fwd_hooks=[*hooks, *fwd_hooks])

    def taken(
        self, direction: Float[Tensor, "#batch #pos d_model"], place: slice
    ) -> Float[Tensor, "batch pos"]:
        """What was taken out of the stream along ``direction``, without building the write."""
        batch, seq = self.stream.tokens.shape
        total = direction.new_zeros(batch, len(range(seq)[place]))
        for layer, chosen in self.by_layer.items():
            weight = output_matrix(self.stream.model, layer, "attn")[chosen].double()
            pulled = torch.einsum("hed,bpd->bphe", weight, direction)
            removed = self.removed[layer].double()
            at_zero = removed.new_zeros(batch, 1, *removed.shape[2:])
            removed = torch.cat([at_zero, removed], dim=1)[:, place]
            total = total + (removed * pulled).sum((-1, -2))
        return total

    def _means(self, residual: Tensor, first: int) -> dict[int, Tensor]:
        """Clean mean outputs, over rows and positions after 0."""
        found: dict[int, Tensor] = {}

        def keep(z: Tensor, hook: Any, layer: int) -> None:
            split = z.reshape(*z.shape[:2], self.stream.model.cfg.n_heads, -1)
            found[layer] = split[:, 1:, self.by_layer[layer]].mean((0, 1))

        hooks = [
            (f"blocks.{i}.attn.hook_z", lambda z, hook, i=i: keep(z, hook, i))
            for i in self.by_layer
        ]
        rerun_from(self.stream.model, residual, first, fwd_hooks=hooks)
        return found
