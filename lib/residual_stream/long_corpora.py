"""Measurements over more text than memory holds: one batch is recorded, used and dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .attribution import logit_attribution
from .inputs import to_tokens
from .readout import own_logits, read_readout
from .stream import ResidualStream, record

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def over_corpus(
    model: TransformerBridge,
    texts: Iterable[str] | Iterable[list[int]],
    *,
    length: int = 64,
    batch: int = 8,
    device: str | torch.device | None = None,
) -> Iterator[ResidualStream]:
    """Record a corpus batch by batch; memory does not grow with it if each stream is let go.

    A loop's own name holds a stream while the next is recorded; ``del`` it at the end of the body
    to hold one at a time.

    The texts are read one by one, tokenised, joined end to end, and cut into rows of ``length``
    tokens, each with the model's beginning-of-text token first if it has one. What is left over at
    the end and does not fill a row is dropped.

    Args:
        model: A ``TransformerBridge``, as :func:`residual_stream.load` returns it.
        texts: Texts, or lists of token ids; a generator will do.
        length: Tokens per row, the beginning-of-text token included.
        batch: Rows per batch; the last batch may have fewer.
        device: Where to keep the writes, as for :func:`residual_stream.record`.

    Yields:
        One recorded stream per batch.

    Raises:
        ValueError: A length below 2 or beyond the context, an empty batch, a corpus shorter than
            one row.
        TypeError: One text instead of several.

    Example:
        >>> import residual_stream as rs
        >>> texts = rs.texts.PASSAGES.values()
        >>> sum(s.tokens.numel() for s in rs.over_corpus(rs.load("bench"), texts, length=32))
        1248
    """
    for tokens in _batches(model, texts, length=length, batch=batch, caller="over_corpus"):
        yield record(model, tokens, device=device)


def _batches(
    model: TransformerBridge,
    texts: Iterable[str] | Iterable[list[int]],
    *,
    length: int,
    batch: int,
    caller: str,
) -> Iterator[Int[Tensor, "row seq"]]:
    if isinstance(texts, str):
        raise TypeError(f"{caller}: got one text; pass several, or [text]")
    if not 2 <= length <= model.cfg.n_ctx:
        raise ValueError(
            f"{caller}: length = {length}; the model reads 2 to {model.cfg.n_ctx} tokens a row"
        )
    if batch < 1:
        raise ValueError(f"{caller}: batch = {batch}; pass at least one row")
    start = getattr(model.tokenizer, "bos_token_id", None)
    first = [] if start is None else [int(start)]
    rows: list[list[int]] = []
    left: list[int] = []
    found = False
    for text in texts:
        left += _ids(model, text, caller)
        while len(left) >= length - len(first):
            rows.append(first + left[: length - len(first)])
            del left[: length - len(first)]
            if len(rows) == batch:
                found = True
                yield to_tokens(model, rows, caller=caller)
                rows = []
    if rows:
        yield to_tokens(model, rows, caller=caller)
    elif not found:
        raise ValueError(f"{caller}: the texts have fewer than {length} tokens together")


def _ids(model: TransformerBridge, text: str | list[int], caller: str) -> list[int]:
    if not isinstance(text, str):
        return [int(token) for token in text]
    if model.tokenizer is None:
        raise ValueError(f"{caller}: got text, but the model has no tokenizer; pass token ids")
    return model.tokenizer(text, add_special_tokens=False)["input_ids"]


@dataclass(frozen=True, eq=False, repr=False)
class CorpusShares:
    """Every token's logit split over a corpus: a few numbers per token, and no stream.

    Attributes:
        labels: The parts.
        layers: The block of each part, −1 for the row, ``n_layers`` for the readout's biases.
        values: Each part's share of each token's logit, from the vocabulary's mean, on the CPU.
        logit: The logits.
        targets: The tokens whose logits were split.
        remainder: Largest part of a logit that rounding left over.
    """

    labels: list[str]
    layers: list[int]
    values: Float[Tensor, "part token"]
    logit: Float[Tensor, " token"]
    targets: Int[Tensor, " token"]
    remainder: float

    @property
    def fractions(self) -> Float[Tensor, "part token"]:
        """Each share as a fraction of its logit."""
        return self.values / self.logit

    def to_frame(self) -> pd.DataFrame:
        """Every part as a row: mean share, and the 5th, 50th and 95th percentile, in logits."""
        cuts = torch.quantile(self.values, torch.tensor([0.05, 0.5, 0.95]), dim=1)
        columns = {"part": self.labels, "layer": self.layers, "mean": self.values.mean(1).numpy()}
        names = ("5 %", "median", "95 %")
        return pd.DataFrame(
            columns | {name: cut.numpy() for name, cut in zip(names, cuts, strict=True)}
        )

    def __repr__(self) -> str:
        """One line: parts, tokens, largest remainder."""
        return (
            f"CorpusShares({len(self.labels)} parts × {len(self.logit)} tokens, largest remainder "
            f"{self.remainder:.2g} logits)"
        )

    def _repr_markdown_(self) -> str:
        rows = [
            f"| {part} | {mean:+.2f} | {low:+.2f} | {middle:+.2f} | {high:+.2f} |"
            for part, _, mean, low, middle, high in self.to_frame().itertuples(index=False)
        ]
        head = "| part | mean (logits) | 5 % | median | 95 % |\n|---|--:|--:|--:|--:|\n"
        return head + "\n".join(rows)


def corpus_shares(
    model: TransformerBridge,
    texts: Iterable[str] | Iterable[list[int]],
    *,
    unit: str = "layer",
    target: str = "predicted",
    length: int = 64,
    batch: int = 8,
    device: str | torch.device | None = None,
) -> CorpusShares:
    """Split every token's logit over a corpus, in the memory that one batch takes.

    What is kept of a token is one number per part. Position 0 of every row is left out.

    Args:
        model: A ``TransformerBridge``, as :func:`residual_stream.load` returns it.
        texts: As for :func:`over_corpus`.
        unit: As for :func:`residual_stream.logit_attribution`.
        target: ``"predicted"``, the model's own prediction at each position, or ``"next"``, the
            token that follows there.
        length: Tokens per row.
        batch: Rows per batch.
        device: Where to keep one batch's writes.

    Returns:
        The shares, row after row.

    Raises:
        ValueError: An unknown ``target``, and as :func:`over_corpus`.
        LedgerError: A batch whose ledger does not close.

    Example:
        >>> import residual_stream as rs
        >>> shares = rs.corpus_shares(rs.load("bench"), rs.texts.PASSAGES.values(), length=32)
        >>> shares.values.shape[0], shares.remainder < 1e-3
        (7, True)
    """
    if target not in ("predicted", "next"):
        raise ValueError(f"corpus_shares: target = {target!r}; pass 'predicted' or 'next'")
    readout = read_readout(model)
    parts, logits, ids, worst = [], [], [], 0.0
    for stream in over_corpus(model, texts, length=length, batch=batch, device=device):
        if target == "next":
            places, wanted = slice(1, -1), stream.tokens[:, 2:]
        else:  # row by row: the vocabulary is wider than the stream
            tops = stream.top[:, 1:].to(readout.W_U.device)
            wanted = torch.cat([own_logits(model, readout, top[None]).argmax(-1) for top in tops])
            places = slice(1, None)
        split = logit_attribution(stream, wanted, unit=unit, position=places)
        parts.append(split.values.flatten(1).float().cpu())
        logits.append(split.logit.flatten().float().cpu())
        ids.append(wanted.flatten().cpu())
        worst = max(worst, float(split.remainder.abs().max()))
        del stream  # before the next is recorded: the loop's name would hold two at a time
    return CorpusShares(
        labels=split.labels,
        layers=split.layers,
        values=torch.cat(parts, dim=1),
        logit=torch.cat(logits),
        targets=torch.cat(ids),
        remainder=worst,
    )
