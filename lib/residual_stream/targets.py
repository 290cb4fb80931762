"""Which token's logit: from a string, an id or one per row to checked token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

Targets = str | int | Sequence[str | int] | Tensor


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
    if isinstance(targets, str) or (isinstance(targets, int) and not isinstance(targets, bool)):
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


def _one(model: TransformerBridge, target: str | int, caller: str) -> int:
    if isinstance(target, bool) or not isinstance(target, str | int):
        raise TypeError(
            f"{caller}: a target is a token's text or an id; got a {type(target).__name__}"
        )
    if isinstance(target, int):
        return target
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
