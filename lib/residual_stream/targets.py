"""Which token's logit: from a string, an id or one per row to ids, and to directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .readout import Readout

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

Target = str | int | np.integer
Targets = Target | Sequence[Target] | Tensor


@dataclass(frozen=True, eq=False)
class Projection:
    """What the writes at every place are projected on: one direction per distinct target, over σ.

    Attributes:
        directions: One per distinct target.
        index: Which of them belongs to each place.
        sigma: The final norm's divisor at each place.
        rows: ``directions[index] / sigma``.
    """

    directions: Float[Tensor, "target d_model"]
    index: Int[Tensor, "batch pos"]
    sigma: Float[Tensor, "batch pos"]
    rows: Float[Tensor, "batch pos d_model"]

    def along(self, rows: Float[Tensor, "batch pos d_model"]) -> Projection:
        """Return the projection on other directions, one at each place, with no divisor left."""
        places = torch.arange(self.index.numel(), device=self.index.device)
        return Projection(
            rows.reshape(-1, rows.shape[-1]),
            places.reshape(self.index.shape),
            torch.ones_like(self.sigma),
            rows,
        )

    def of(self, write: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "1 batch pos"]:
        """Return the write's share at each place, in float64."""
        return torch.linalg.vecdot(write.to(self.rows), self.rows)[None]

    def through(
        self, weight: Float[Tensor, "part width d_model"], active: Tensor
    ) -> Float[Tensor, "part batch pos"]:
        """Return each part's share: its activations times the directions pulled back through W.

        Args:
            weight: The branch's output weights by part, in the precision to work in.
            active: What the parts hand to them, ``[batch, pos, part, width]`` or joined.
        """
        batch, pos = self.index.shape
        n_part, width, d_model = weight.shape
        # Every distinct direction goes back once, through all parts of the branch in one product.
        pulled = self.directions.to(weight) @ weight.reshape(n_part * width, d_model).T
        pulled = pulled[self.index.reshape(-1)].reshape(batch * pos, n_part, width)
        active = active.to(weight).reshape(batch * pos, n_part, width)
        shares = (active * pulled)[..., 0] if width == 1 else torch.linalg.vecdot(active, pulled)
        return (shares / self.sigma.to(weight).reshape(-1, 1)).T.reshape(n_part, batch, pos)


@dataclass(frozen=True, eq=False)
class DistinctTargets:
    """The distinct targets asked for, and which of them belongs to each place.

    Attributes:
        readout: The model's last step.
        ids: The distinct targets.
        versus: What each is compared with, None for nothing.
        index: Which of them belongs to each place.
        center: Whether to measure from the vocabulary's mean logit.
    """

    readout: Readout
    ids: Int[Tensor, " target"]
    versus: Int[Tensor, " target"] | None
    index: Int[Tensor, "batch pos"]
    center: bool

    @classmethod
    def distinct(
        cls,
        readout: Readout,
        ids: Int[Tensor, "batch pos"],
        versus: Int[Tensor, "#batch #pos"] | None,
        *,
        center: bool,
    ) -> DistinctTargets:
        """Return the distinct pairs of ``ids`` and ``versus``."""
        asked = [ids] if versus is None else [ids, versus.expand(ids.shape)]
        pairs = torch.stack([tokens.reshape(-1) for tokens in asked], dim=1)
        pairs, index = pairs.unique(dim=0, return_inverse=True)
        other = None if versus is None else pairs[:, 1]
        return cls(readout, pairs[:, 0], other, index.reshape(ids.shape), center)

    def projection(self, sigma: Float[Tensor, "batch pos"]) -> Projection:
        """Return the directions to project on, given the final norm's divisor at each place."""
        directions = self.readout.direction(self.ids, versus=self.versus, center=self.center)
        rows = directions[self.index] / sigma[..., None]
        return Projection(directions, self.index, sigma, rows)

    def constants(self) -> dict[str, Float[Tensor, " target"]]:
        """Return what each target's logit owes to no write; see :meth:`Readout.constants`."""
        return self.readout.constants(self.ids, versus=self.versus, center=self.center)

    def of_normed(self, normed: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos"]:
        """Each place's logit from the output of the model's own norm, in float64."""
        columns = self.readout.target_columns(self.ids, versus=self.versus, center=self.center)
        logit = self.readout.multiplier * torch.linalg.vecdot(
            normed.to(columns), columns[self.index]
        )
        bias = self.constants().get("unembed_bias")
        return logit if bias is None else logit + bias[self.index]

    def of_logits(self, logits: Float[Tensor, " d_vocab"]) -> Float[Tensor, ""]:
        """The first place's logit from all logits there, in float64."""
        which = self.index[0, 0]
        value = logits[self.ids[which]].double()
        if self.versus is not None:
            return value - logits[self.versus[which]].double()
        return value - logits.mean(dtype=torch.float64) if self.center else value


def target_ids(
    model: TransformerBridge,
    targets: Targets,
    *,
    batch: int,
    pos: int,
    caller: str = "logit_attribution",
) -> Int[Tensor, "#batch #pos"]:
    """Return the target token of every row and position, checked.

    Args:
        model: The model whose tokenizer and vocabulary count.
        targets: One token for all (its text or id), one per batch row (a list or a tensor
            ``[batch]``), or one per row and position (a tensor ``[batch, pos]``).
        batch: Number of rows.
        pos: Number of positions asked for.
        caller: The function named in errors.

    Returns:
        Token ids that broadcast over ``[batch, pos]``.

    Raises:
        ValueError: A text that is not one token, an id outside the vocabulary, a number of
            targets that is not the number of rows, a text for a model without tokenizer.
        TypeError: Neither text nor integers.

    Example:
        >>> import residual_stream as rs
        >>> target_ids(rs.load("bench"), [3, 5], batch=2, pos=1).tolist()
        [[3], [5]]
    """
    if isinstance(targets, str) or (
        isinstance(targets, Integral) and not isinstance(targets, bool)
    ):
        found = torch.tensor([[_one(model, targets, caller)]])
    elif isinstance(targets, Tensor):
        found = _from_tensor(targets, batch, pos, caller)
    elif isinstance(targets, Sequence):
        if len(targets) != batch:
            raise ValueError(
                f"{caller}: {len(targets)} targets for {batch} batch rows; pass one target for "
                "all rows, or one per row"
            )
        found = torch.tensor([[_one(model, target, caller)] for target in targets])
    else:
        raise TypeError(
            f"{caller}: a target is a token's text, an id, or one per batch row; got a "
            f"{type(targets).__name__}"
        )
    _check_range(model, found, caller)
    return found.to(device=model.cfg.device, dtype=torch.long)


def _one(model: TransformerBridge, target: Target, caller: str) -> int:
    if isinstance(target, bool) or not isinstance(target, str | Integral):
        raise TypeError(
            f"{caller}: a target is a token's text or an id; got a {type(target).__name__}"
        )
    if isinstance(target, Integral):
        return int(target)
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ValueError(
            f"{caller}: target {target!r} is text, but the model has no tokenizer; pass a token id"
        )
    ids = tokenizer(target, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        pieces = ", ".join(repr(tokenizer.decode([i])) for i in ids)
        raise ValueError(
            f'{caller}: target "{target}" is {len(ids)} tokens ({pieces}); pass one token, an id, '
            "or one per batch row"
        )
    unknown = getattr(tokenizer, "unk_token_id", None)
    if ids[0] == unknown and target != tokenizer.unk_token and tokenizer.decode(ids) != target:
        raise ValueError(
            f'{caller}: target "{target}" is not in the vocabulary (the tokenizer reads it as '
            f"{tokenizer.unk_token!r}); pass a token that is, or an id"
        )
    return int(ids[0])


def _from_tensor(targets: Tensor, batch: int, pos: int, caller: str) -> Tensor:
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise TypeError(f"{caller}: target ids are integers; got a {targets.dtype} tensor")
    shape = tuple(targets.shape)
    if shape == ():
        return targets.reshape(1, 1)
    if shape == (batch,):
        return targets[:, None]
    if shape == (batch, pos):
        return targets
    raise ValueError(
        f"{caller}: targets have the shape {shape}; pass [batch] = [{batch}], or "
        f"[batch, pos] = [{batch}, {pos}] for one per position"
    )


def _check_range(model: TransformerBridge, ids: Tensor, caller: str) -> None:
    low, high, size = int(ids.min()), int(ids.max()), model.W_U.shape[1]
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        raise ValueError(
            f"{caller}: target id {wrong} is outside the vocabulary; ids run from 0 to {size - 1}"
        )
