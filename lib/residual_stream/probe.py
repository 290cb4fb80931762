r"""The whole story of one prediction: row, updates, sum, deletions, shares, cancellation, lens.

At one position of one text, layer by layer: what the layer's update :math:`\Delta_l` adds to the
stream :math:`x_l` and how large it is, what the model predicts without it (the layers above run
again), what it puts into the predicted token's logit, and what the lens reads after it.

Source: the parts are those of chapters 1 to 4: Elhage et al. 2021 (the stream and direct logit
attribution), Veit et al. 2016 and Lad et al. 2024 (deletion), nostalgebraist 2020 (the lens).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from .attribution import Attribution, logit_attribution
from .cancellation import cancellations
from .inputs import to_positions, to_tokens
from .probe_story import LayerStory, Probe, Summed
from .readout import Readout, own_logits, read_readout
from .rerun import rerun_from
from .stream import ResidualStream, record
from .targets import target_ids

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def probe(
    model: TransformerBridge,
    text: str | Sequence[object] | np.ndarray | Tensor,
    *,
    position: int = -1,
    target: str | int | None = None,
    top: int = 5,
    device: str | torch.device | None = None,
    progress: bool = False,
) -> Probe:
    """Tell how ``model`` comes to its prediction at one position of one text.

    Args:
        model: A ``TransformerBridge``, as :func:`residual_stream.load` returns it.
        text: One text, or the token ids of one.
        position: The position whose next token is predicted; negative counts from the end.
        target: The token whose logit is split: its text or its id. The model's own prediction if
            None. Deletions and lens are always held against the prediction.
        top: How many cancellations to keep.
        device: Where to keep the writes, as for :func:`residual_stream.record`.
        progress: Whether to show a bar on stderr, where that is a terminal.

    Returns:
        The story. It prints as a table; ``to_frame`` and ``to_dict`` hand its numbers on.

    Raises:
        ValueError: More than one text, or one that :func:`residual_stream.record` refuses; a target
            that is not one token.
        IndexError: A position outside the text.
        WiringError: Blocks whose writes the library does not know.
        ReadoutError: A model whose logits are not a norm and an unembedding of its top.
        LedgerError: The ledger does not close.

    Example:
        >>> import residual_stream as rs
        >>> story = rs.probe(rs.load("bench"), "In the beginning God created")
        >>> len(story.layers), story.audit.ok
        (4, True)
        >>> abs(story.row_share + sum(l.share for l in story.layers) + story.bias_share
        ...     + story.remainder - story.logit) < 1e-3
        True
    """
    tokens = to_tokens(model, text, caller="probe")
    if len(tokens) != 1:
        raise ValueError(f"probe: got {len(tokens)} texts; it tells the story of one, pass one")
    if not isinstance(position, int) or isinstance(position, bool):
        raise TypeError(f"probe: position is a {type(position).__name__}; pass one integer")
    at = int(to_positions(position, tokens.shape[1], caller="probe"))
    readout = read_readout(model)
    if target is not None:  # refused before anything long has run
        target_ids(model, target, batch=1, pos=1, caller="probe")
    stream = record(model, tokens, device=device)
    stream.require_closed(caller="probe")
    logits = _logits(model, readout, stream.top[0, at])
    predicted = int(logits.argmax())
    aim = predicted if target is None else int(target_ids(model, target, batch=1, pos=1))
    split = logit_attribution(stream, aim, unit="layer", position=at)
    entering, tops = _without_each(stream, at, progress=progress)
    here = at_position(stream, at)
    of_row = _logits(model, readout, entering[0])
    first, second = logits.topk(2).values.tolist()
    return Probe(
        model=str(getattr(model.cfg, "model_name", type(model).__name__)),
        tokens=tuple(_word(model, int(token)) for token in tokens[0]),
        position=at,
        predicted=_word(model, predicted),
        predicted_id=predicted,
        probability=float(logits.softmax(-1)[predicted]),
        lead=first - second,
        target=_word(model, aim),
        target_id=aim,
        logit=float(split.logit),
        row_share=_share(split, -1),
        bias_share=_share(split, len(model.blocks)),
        remainder=float(split.remainder),
        row_norm=float(entering[0].float().norm()),
        row_lens=_word(model, int(of_row.argmax())),
        row_lens_kl=float(_kl(logits, of_row[None])),
        layers=tuple(_layers(here, split, entering, tops, readout)),
        sum=_summed(here, readout),
        audit=stream.audit(),
        cancellations=cancellations(here, top=top, skip_first=False),
        stream=here,
        split=split,
    )


def at_position(stream: ResidualStream, position: int) -> ResidualStream:
    """Return the part of a stream that stands at one position, with its audit.

    Args:
        stream: A stream that has kept the position.
        position: The position in the text, not negative.

    Returns:
        The same stream with one position.

    Raises:
        IndexError: The stream has not kept that position.

    Example:
        >>> import residual_stream as rs
        >>> stream = rs.record(rs.load("bench"), "In the beginning")
        >>> at_position(stream, 2).writes.shape[2]
        1
    """
    kept = stream.positions.tolist()
    if position not in kept:
        raise IndexError(f"at_position: the stream has not kept position {position}")
    index = kept.index(position)
    return replace(
        stream,
        positions=stream.positions[index : index + 1],
        writes=stream.writes[:, :, index : index + 1],
        top=stream.top[:, index : index + 1],
        activations={},
    )


def _logits(
    model: TransformerBridge, readout: Readout, streams: Float[Tensor, "*lead d_model"]
) -> Float[Tensor, "*lead d_vocab"]:
    """What the model's own norm, unembedding and soft-cap make of streams, in float32."""
    streams = streams.to(readout.W_U.device)
    flat = streams.reshape(1, -1, streams.shape[-1])
    logits = own_logits(model, readout, flat).float()[0].reshape(*streams.shape[:-1], -1)
    return readout.capped(logits)


def _without_each(
    stream: ResidualStream, at: int, *, progress: bool
) -> tuple[Float[Tensor, "boundary d_model"], Float[Tensor, "layer d_model"]]:
    """The stream before each block and at the top; the top without each block, layers re-run."""
    model, n_layers = stream.model, len(stream.model.blocks)
    entering, tops = [], []
    blocks = tqdm(
        _before_blocks(stream), desc="deleting each layer", total=n_layers, unit="layer",
        leave=False, disable=None if progress else True,  # None: where stderr is no terminal
    )  # fmt: skip
    for layer, before in enumerate(blocks):
        entering.append(before[0, at].clone())
        again = rerun_from(model, before.to(model.cfg.device), layer + 1)
        tops.append(again[0, at].to(before.device))
    return torch.stack([*entering, stream.top[0, at]]), torch.stack(tops)


def _before_blocks(stream: ResidualStream) -> Iterator[Float[Tensor, "batch pos d_model"]]:
    """Yield the stream that enters each block."""
    layers = [*stream.layers, len(stream.model.blocks)]
    for index, held in enumerate(stream.partial_sums()):
        if layers[index] < layers[index + 1] < len(stream.model.blocks):
            yield held


def _summed(stream: ResidualStream, readout: Readout) -> Summed:
    """The row plus every update, added in float32, beside the model's own top."""
    top, norms = stream.top[0, 0], stream.stream_norms()
    total, held = torch.zeros_like(top, dtype=torch.float32), torch.zeros_like(top)
    update = torch.zeros_like(total)
    ends = {stream.layers.index(layer) - 1 for layer in range(1, len(stream.model.blocks))}
    ends |= {stream.layers.index(0) - 1, len(stream.layers) - 1, *norms}
    for index, write in enumerate(stream.writes[:, 0, 0]):
        held, update = held + write, update + write.float()
        if index in ends:  # a layer's writes are one update, added first
            total, update = total + update, torch.zeros_like(update)
        if index in norms:  # a post-LN stream goes through it; its divisor is taken from the run
            total = norms[index].at(held).through(total).float()
            held = norms[index](held)
    largest = float(top.float().abs().max())
    step = torch.finfo(top.dtype).eps * 2.0 ** math.floor(math.log2(max(largest, 1e-30)))
    ours, own = _logits(stream.model, readout, torch.stack([total.to(top), top])).argmax(-1)
    return Summed(float((total - top.float()).abs().max()), largest, step, bool(ours == own))


def _share(split: Attribution, layer: int) -> float:
    return float(split.values[[i for i, at in enumerate(split.layers) if at == layer]].sum())


def _layers(
    stream: ResidualStream,
    split: Attribution,
    entering: Float[Tensor, "boundary d_model"],
    tops: Float[Tensor, "layer d_model"],
    readout: Readout,
) -> Iterator[LayerStory]:
    """What is to be said of each layer, from the stream before each and the top without each."""
    model = stream.model
    read = _logits(model, readout, entering[1:])
    own = read[-1]
    predicted = int(own.argmax())
    without = _logits(model, readout, tops)
    lost, behind = _kl(own, without), _kl(own, read)
    row = entering[0].float().norm()
    for layer in range(len(model.blocks)):
        before = entering[layer].float()
        kinds = [w.kind for w in stream.wiring.writes if w.layer == layer]
        update = float(_update(stream, layer).norm())
        best, becomes = without[layer].topk(2)
        rival = best[1] if int(becomes[0]) == predicted else best[0]
        yield LayerStory(
            layer=layer,
            kind=" + ".join(kinds),
            update=update,
            of_row=update / float(row),
            of_stream=update / float(before.norm()),
            share=_share(split, layer),
            kept=int(becomes[0]) == predicted,
            becomes=_word(model, int(becomes[0])),
            becomes_id=int(becomes[0]),
            margin=float(without[layer][predicted] - rival),
            kl=float(lost[layer]),
            lens=_word(model, int(read[layer].argmax())),
            lens_id=int(read[layer].argmax()),
            lens_agrees=int(read[layer].argmax()) == predicted,
            lens_kl=float(behind[layer]),
        )


def _update(stream: ResidualStream, layer: int) -> Float[Tensor, " d_model"]:
    """Everything that a block writes at the one position kept."""
    places = [i for i, at in enumerate(stream.layers) if at == layer]
    return stream.writes[places, 0, 0].float().sum(0)


def _kl(own: Float[Tensor, " d_vocab"], other: Float[Tensor, "row d_vocab"]) -> Tensor:
    """KL(own ‖ other) in nats."""
    logp, logq = own.log_softmax(-1), other.log_softmax(-1)
    return (logp.exp() * (logp - logq)).sum(-1).clamp(min=0.0)


def _word(model: TransformerBridge, token: int) -> str:
    return str(token) if model.tokenizer is None else str(model.tokenizer.decode([token]))
