"""What a reader hands in, checked: text or token ids, and positions."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def to_tokens(
    model: TransformerBridge,
    text: object,
    *,
    prepend_bos: bool | None = None,
    caller: str = "record",
) -> Int[Tensor, "batch seq"]:
    """Return token ids on the model's device, checked.

    Args:
        model: The model whose tokenizer, vocabulary and context length count.
        text: One text, several texts of equal token length, or token ids: a list, a list of
            lists, an array or a tensor, ``[seq]`` or ``[batch, seq]``.
        prepend_bos: Whether to put the beginning-of-text token first; the model's default if None.
        caller: The function named in errors.

    Returns:
        Token ids, ``[batch, seq]``.

    Raises:
        ValueError: Empty or over-long text, ids outside the vocabulary, texts of unequal length,
            text for a model without tokenizer.
        TypeError: Neither text nor integer ids.
    """
    if isinstance(text, str):
        return _checked(model, _encode(model, [text], prepend_bos, caller), caller)
    if isinstance(text, (list, tuple)):
        if not text:
            raise ValueError(f"{caller}: got an empty list; pass a text or at least one token id")
        if all(isinstance(item, str) for item in text):
            return _checked(model, _encode(model, list(text), prepend_bos, caller), caller)
    return _checked(model, _as_ids(text, caller), caller)


def _as_ids(ids: object, caller: str) -> Tensor:
    """Token ids as a tensor, from a tensor, an array, or lists of integers."""
    if isinstance(ids, Tensor):
        return ids
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iufb":
        return torch.as_tensor(ids)
    if not isinstance(ids, (list, tuple, range)):
        raise TypeError(f"{caller}: got {_article(type(ids).__name__)}; {_ACCEPTED}")
    nested = all(isinstance(row, (list, tuple, range)) for row in ids)
    rows = [list(row) for row in ids] if nested else [list(ids)]
    flat = [item for row in rows for item in row]
    if not all(_is_integer(item) for item in flat):
        kinds = sorted({type(item).__name__ for item in flat})
        raise TypeError(f"{caller}: got a list of {', '.join(kinds)}; {_ACCEPTED}")
    if len({len(row) for row in rows}) > 1:
        raise ValueError(
            f"{caller}: the rows of token ids have {min(map(len, rows))} to "
            f"{max(map(len, rows))} tokens; pass rows of one length, or one at a time"
        )
    largest = max((operator.index(item) for item in flat), key=abs, default=0)
    if abs(largest) >= 2**63:
        raise ValueError(f"{caller}: token id {largest} is outside every vocabulary")
    return torch.tensor([[operator.index(i) for i in row] for row in rows], dtype=torch.long)


_ACCEPTED = (
    "pass a text, a list of texts of one length, or token ids (integers in a list, a list of "
    "lists, an array or a tensor)"
)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _is_integer(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, (bool, np.bool_, Tensor))


def _encode(
    model: TransformerBridge, texts: list[str], prepend_bos: bool | None, caller: str
) -> Int[Tensor, "batch seq"]:
    if model.tokenizer is None:
        raise ValueError(
            f"{caller}: got text, but the model has no tokenizer; pass token ids, or load the "
            "model with one (residual_stream.load(model, tokenizer=...))"
        )
    empty = [index for index, text in enumerate(texts) if not text]
    if empty:
        where = f" (text {empty[0]} of {len(texts)})" if len(texts) > 1 else ""
        raise ValueError(f"{caller}: the text is empty{where}; pass at least one character")
    # to_tokens would silently cut an over-long text to the context (test_wrong_text_is_refused).
    rows = [model.to_tokens(text, prepend_bos=prepend_bos, truncate=False)[0] for text in texts]
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise ValueError(
            f"{caller}: the texts have {min(lengths)} to {max(lengths)} tokens; pass texts of one "
            "length, or one at a time (padding would change what the model reads)"
        )
    return torch.stack(rows)


def _checked(model: TransformerBridge, tokens: Tensor, caller: str) -> Int[Tensor, "batch seq"]:
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise TypeError(f"{caller}: token ids are integers; got a {tokens.dtype} tensor")
    if tokens.ndim == 1:
        tokens = tokens[None]
    if tokens.ndim != 2 or tokens.numel() == 0:
        raise ValueError(
            f"{caller}: token ids have the shape {tuple(tokens.shape)}; pass [seq] or "
            "[batch, seq], with at least one token"
        )
    n_ctx = model.cfg.n_ctx
    if tokens.shape[1] > n_ctx:
        raise ValueError(
            f"{caller}: the text has {tokens.shape[1]} tokens, but the model reads at most "
            f"{n_ctx}; shorten it"
        )
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= model.cfg.d_vocab:
        wrong = low if low < 0 else high
        raise ValueError(
            f"{caller}: token id {wrong} is outside the vocabulary; ids run from 0 to "
            f"{model.cfg.d_vocab - 1}"
        )
    return tokens.to(device=model.cfg.device, dtype=torch.long)


def to_positions(positions: object, length: int, *, caller: str = "record") -> Int[Tensor, " pos"]:
    """Return positions as non-negative indices, in the order given.

    Args:
        positions: An index (negative counts from the end), a slice, a list, array or tensor of
            indices, a mask with one bool per token, or None for all.
        length: Number of tokens.
        caller: The function named in errors.

    Returns:
        Indices into the text.

    Raises:
        IndexError: A position outside the text.
        TypeError: Positions that are not integers.
        ValueError: No position is left, or a mask of another length.

    Example:
        >>> to_positions([0, -1], 5).tolist()
        [0, 4]
    """
    everything = torch.arange(length)
    if positions is None:
        return everything
    if isinstance(positions, slice):
        kept = everything[positions]
    else:
        wanted = _indices(positions, length, caller)
        outside = [p for p in wanted if not -length <= p < length]
        if outside:
            raise IndexError(
                f"{caller}: position {outside[0]} is outside the text; it has {length} tokens, "
                f"so {-length} ≤ position ≤ {length - 1}"
            )
        kept = everything[torch.tensor(wanted, dtype=torch.long)]
    if len(kept) == 0:
        raise ValueError(f"{caller}: positions = {positions!r} keeps none of the {length} tokens")
    return kept


def _indices(positions: object, length: int, caller: str) -> list[int]:
    if isinstance(positions, (Tensor, np.ndarray)):
        positions = positions.tolist()  # Python's own numbers
    given = list(positions) if isinstance(positions, (list, tuple, range)) else [positions]
    if given and all(isinstance(p, (bool, np.bool_)) for p in given) and given != [positions]:
        if len(given) != length:
            raise ValueError(
                f"{caller}: the mask of positions has {len(given)} entries; the text has {length} "
                "tokens"
            )
        return [index for index, keep in enumerate(given) if keep]
    odd = next((p for p in given if not _is_integer(p)), None)
    if odd is not None:
        raise TypeError(
            f"{caller}: position {odd!r} is {_article(type(odd).__name__)}; pass an integer, a "
            "slice, a list of integers, or a mask with one bool per token"
        )
    return [operator.index(p) for p in given]  # type: ignore[arg-type]
