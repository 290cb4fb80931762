"""What a reader hands in, checked: text or token ids, and positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def to_tokens(
    model: TransformerBridge,
    text: str | Sequence[object] | Tensor,
    *,
    prepend_bos: bool | None = None,
    caller: str = "record",
) -> Int[Tensor, "batch seq"]:
    """Return token ids on the model's device, checked.

    Args:
        model: The model whose tokenizer, vocabulary and context length count.
        text: One text, several texts of equal token length, or token ids.
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
        tokens = _encode(model, [text], prepend_bos, caller)
    elif isinstance(text, Tensor):
        tokens = text
    else:
        items = list(text)
        if not items:
            raise ValueError(f"{caller}: got an empty list; pass a text or at least one token id")
        if all(isinstance(item, str) for item in items):
            tokens = _encode(model, items, prepend_bos, caller)
        elif all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            tokens = torch.tensor(items)
        else:
            kinds = sorted({type(item).__name__ for item in items})
            raise TypeError(
                f"{caller}: got a list of {', '.join(kinds)}; pass a text, a list of texts, a "
                "list of integer token ids or an integer tensor"
            )
    return _checked(model, tokens, caller)


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


def to_positions(
    positions: int | slice | Sequence[int] | None, length: int, *, caller: str = "record"
) -> Int[Tensor, " pos"]:
    """Return positions as non-negative indices, in the order given.

    Args:
        positions: An index (negative counts from the end), a slice, a list, or None for all.
        length: Number of tokens.
        caller: The function named in errors.

    Returns:
        Indices into the text.

    Raises:
        IndexError: A position outside the text.
        ValueError: No position is left.

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
        wanted = [positions] if isinstance(positions, int) else [int(p) for p in positions]
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
