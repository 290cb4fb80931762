"""A text climbing through the model: length, direction and the lens, by depth and token."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from ..figures.climb import climbing
from ..readout import read_readout
from ..report import number, percent
from ..stream import ResidualStream
from .base import MovableFigure

_WORDS = {
    "depth": "Depth",
    "token": "Token",
    "play": "Let it climb",
    "stop": "Stop",
    "scale": "length of the stream, from {low} to {high} (position 0 in yellow)",
    "says": "{depth}, at “{token}”: the stream is {norm} long, at a cosine of {cosine} to the row "
    "that it started from. The lens reads {read}.",
    "zero": " Position 0 is unlike all others.",
}


def climb(stream: ResidualStream, *, words: int = 3) -> MovableFigure:
    """Return a figure of a text climbing through a model, whose depth and token one can choose.

    At each depth (before block 0, and after every block) and token: the norm of the stream, its
    cosine with the embedding row, and the words that the logit lens puts first.

    Args:
        stream: A recorded text of one row, with its model.
        words: How many words of the lens are kept.

    Returns:
        The figure; ``data["norms"]`` and the rest are by depth, then by position.

    Raises:
        ValueError: The stream has several rows.
        LedgerError: The stream does not close.

    Example:
        >>> import residual_stream as rs
        >>> figure = climb(rs.record(rs.load("bench"), "In the beginning"))
        >>> figure.data["depths"][0], figure.data["depths"][-1]
        ('The row, before block 0', 'After block 3')
    """
    if stream.tokens.shape[0] != 1:
        raise ValueError(f"climb: the stream has {stream.tokens.shape[0]} rows; record one text")
    stream.require_closed(caller="climb")
    last = {layer: i for i, layer in enumerate(stream.layers)}  # the last write of each block
    depths = [
        "The row, before block 0" if layer < 0 else f"After block {layer}" for layer in sorted(last)
    ]
    tokens = [t.replace("<|im_start|>", "⟨start⟩") for t in stream.str_tokens[0]]
    data = {"words": _WORDS, "tokens": tokens, "depths": depths}
    data |= _data(stream, [last[layer] for layer in sorted(last)], words)
    end = data["read"][-1][-1]
    half = data["read"][len(depths) // 2][-1]
    sentence = (
        f"“{''.join(tokens[1:]).strip()}” in {len(depths) - 1} blocks: at the last token the "
        f"stream grows from {number(data['norms'][0][-1], 2)} to "
        f"{number(data['norms'][-1][-1], 2)}; half-way up the lens reads "
        f"“{_seen(half[0][0])}” ({percent(half[0][1])}), at the top “{_seen(end[0][0])}” "
        f"({percent(end[0][1])})."
    )
    return MovableFigure(
        kind="climb",
        label="A sentence climbing through the model",
        sentence=sentence,
        data=data,
        still=still(data),
        value=len(depths) * len(tokens) - 1,
    )


def still(data: dict[str, Any]) -> Figure:
    """Return the picture that stands in for the figure: a few depths of all tokens."""
    depths = data["depths"]
    step = max(1, (len(depths) - 1) // 8)
    shown = [0, 1, *range(step, len(depths) - 1, step), len(depths) - 1]
    shown = sorted(set(shown))
    return climbing(
        data["tokens"],
        [depths[i] for i in shown],
        torch.tensor([data["norms"][i] for i in shown]),
        [[place[0][0] for place in data["read"][i]] for i in shown],
    )


def _data(stream: ResidualStream, ends: list[int], words: int) -> dict[str, Any]:
    model, readout = stream.model, read_readout(stream.model)
    row = stream.after(ends[0])[0].double()
    norms, cosines, read = [], [], []
    with torch.no_grad():
        for end in ends:
            here = stream.after(end)[0]
            norms.append([float(f"{x:.3g}") for x in here.double().norm(dim=-1).tolist()])
            cosine = torch.cosine_similarity(here.double(), row, dim=-1)
            cosines.append([round(x, 2) + 0.0 for x in cosine.tolist()])
            best = readout.capped(readout.logits(here).float()).softmax(-1).topk(words)
            places = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            read.append([_words(model, *place) for place in places])
    return {"norms": norms, "cosines": cosines, "read": read}


def _seen(word: str) -> str:
    return word.strip() or "␣"


def _words(model: Any, ids: list[int], shares: list[float]) -> list[list[Any]]:
    words = map(str, ids) if model.tokenizer is None else map(model.to_single_str_token, ids)
    return [[word, round(share, 2)] for word, share in zip(words, shares, strict=True)]
