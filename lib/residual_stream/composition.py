r"""How strongly one head's output feeds another head's queries, keys or values.

For a source head with :math:`W_{OV} = W_V W_O` and a later head, in row-vector convention,

.. math:: s = \frac{\lVert W_{OV} M \rVert_F}{\lVert W_{OV}\rVert_F \lVert M\rVert_F},\qquad
          M_Q = W_Q W_K^T,\quad M_K = W_K W_Q^T,\quad M_V = W_V W_O.

Every :math:`M` is ``d_model × d_model`` with rank ``d_head``. With :math:`W_V = Q_1 R_1` and the
outer factor of :math:`M` as :math:`B = Q_2 R_2` (QR), :math:`\lVert W_V W_O A B^T\rVert_F =
\lVert (R_1 W_O)(A R_2^T)\rVert_F`: products of ``d_head × d_head`` blocks, one reading layer at a
time, where building all pairs at full width takes tens of gigabytes on a 135-million model.

Source: Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits*, "Composition".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

KINDS = ("Q", "K", "V")


def composition_scores(
    model: TransformerBridge, kind: str, *, gain: bool = False
) -> Float[Tensor, "layer head layer head"]:
    """Return the composition score of every head with every head of a later layer.

    Args:
        model: A ``TransformerBridge`` with attention in some blocks at least.
        kind: ``"Q"``, ``"K"`` or ``"V"``: which input of the later head is composed with.
        gain: Whether to fold the gain of the norm through which the later head reads into its
            weights. Off by default, as in TransformerLens on a raw model.

    Returns:
        Scores between 0 and 1, source first, in float32 on the model's device. Zero where the
        source is not in an earlier layer, for which the score has no meaning:
        :func:`composes` marks where it has. Zero for a head whose weights are zero, and in blocks
        without attention (of a hybrid model).

    Raises:
        ValueError: An unknown kind, a model without attention, or one whose attention has no
            weights of queries, keys and values (multi-head latent attention).

    Example:
        >>> import residual_stream as rs
        >>> rs.composition_scores(rs.load("bench"), "K").ndim
        4
    """
    _check_kind("composition_scores", kind)
    layers, n_heads, n_layers = _layers(model), model.cfg.n_heads, len(model.blocks)
    sources = torch.cat([_source(model, layer) for layer in layers])
    norms = sources.norm(dim=(1, 2))
    scores = sources.new_zeros(n_layers, n_heads, n_layers, n_heads)
    for place, layer in enumerate(layers[1:], start=1):
        reader = _reader(model, layer, kind, gain=gain)
        earlier = place * n_heads
        found = _pair_norms(sources[:earlier], reader)
        found /= _sizes(norms[:earlier], reader)
        scores[layers[:place], :, layer, :] = found.reshape(place, n_heads, n_heads)
    return scores


def composes(scores: Float[Tensor, "layer head layer head"]) -> Bool[Tensor, "layer 1 layer 1"]:
    """Return where a score means anything: the source in an earlier layer than the reader.

    Args:
        scores: As :func:`composition_scores` returns them.

    Returns:
        A mask that broadcasts against the scores; False on and below the diagonal blocks.

    Example:
        >>> composes(torch.zeros(3, 2, 3, 2))[:, 0, :, 0].tolist()[0]
        [False, True, True]
    """
    layer = torch.arange(scores.shape[0], device=scores.device)
    return (layer[:, None] < layer[None, :])[:, None, :, None]


def composition_baseline(
    model: TransformerBridge, kind: str, *, draws: int = 8, seed: int = 0
) -> tuple[float, float]:
    r"""Return mean and standard deviation of the score between heads that know nothing of another.

    Every draw turns the output of 64 random heads by a random rotation of the stream and scores it
    against 64 random heads: the spectra are the model's own, the alignment is chance. The mean
    square is :math:`1/d_{model}` whatever the spectra are.

    Args:
        model: A ``TransformerBridge`` with attention in some blocks at least.
        kind: ``"Q"``, ``"K"`` or ``"V"``.
        draws: Number of rotations.
        seed: Seed of the draws, made on the CPU.

    Returns:
        Mean and standard deviation over ``draws × 64 × 64`` pairs.

    Raises:
        ValueError: As :func:`composition_scores`.

    Example:
        >>> import residual_stream as rs
        >>> model = rs.load("bench")
        >>> mean, spread = rs.composition_baseline(model, "K")
        >>> abs(mean - model.cfg.d_model ** -0.5) < 0.01
        True
    """
    _check_kind("composition_baseline", kind)
    layers, n_heads = _layers(model), model.cfg.n_heads
    sources = cache(lambda layer: _source(model, layer))  # each layer is reduced once
    readers = cache(lambda layer: _reader(model, layer, kind))
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(draws):
        pick = torch.randint(len(layers) * n_heads, (2, 64), generator=generator).tolist()
        source = torch.stack([sources(layers[i // n_heads])[i % n_heads] for i in pick[0]])
        reader = torch.stack([readers(layers[i // n_heads])[i % n_heads] for i in pick[1]])
        width = source.shape[-1]
        normal = torch.randn(width, width, generator=generator)
        with _one_thread():
            turn = torch.linalg.qr(normal.to(source.device)).Q
        score = _pair_norms(source @ turn, reader)
        score /= _sizes(source.norm(dim=(1, 2)), reader)
        found.append(score.flatten())
    scores = torch.cat(found)
    return float(scores.mean()), float(scores.std())


def composition_pairs(
    scores: Float[Tensor, "layer head layer head"], *, k: int = 10
) -> pd.DataFrame:
    """Return the ``k`` pairs of heads with the highest scores.

    Args:
        scores: As :func:`composition_scores` returns them.
        k: How many pairs.

    Returns:
        Source, reader and score, highest first; each head as ``(layer, head)``.

    Example:
        >>> scores = torch.zeros(2, 2, 2, 2)
        >>> scores[0, 1, 1, 0] = 0.5
        >>> composition_pairs(scores, k=1).values.tolist()
        [[(0, 1), (1, 0), 0.5]]
    """
    flat = scores.flatten()
    best = flat.topk(min(k, len(flat)))
    rows = []
    for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        a, b, c, d = (int(i) for i in torch.unravel_index(torch.tensor(index), scores.shape))
        rows.append(((a, b), (c, d), value))
    return pd.DataFrame(rows, columns=["source", "reader", "score"])


def per_head(weight: Float[Tensor, "group d_model d_head"], n_heads: int) -> Tensor:
    """Return key or value weights with one matrix per query head (grouped-query attention).

    Args:
        weight: One matrix per group of query heads.
        n_heads: Number of query heads, a multiple of the number of groups.

    Returns:
        ``[head, d_model, d_head]``: neighbouring heads share their group's matrix.

    Example:
        >>> per_head(torch.arange(2.0).reshape(2, 1, 1), 4).flatten().tolist()
        [0.0, 0.0, 1.0, 1.0]
    """
    return weight.repeat_interleave(n_heads // weight.shape[0], dim=0)


def _check_kind(caller: str, kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"{caller}: kind {kind!r} is not known; pass one of 'Q', 'K', 'V'")


def _layers(model: TransformerBridge) -> list[int]:
    """The blocks that have attention."""
    found = [i for i, block in enumerate(model.blocks) if "attn" in (block.submodules or {})]
    if not found:
        raise ValueError(
            f"composition_scores: block 0 has no attention, nor has any of {len(model.blocks)} "
            "blocks, so there are no heads that could compose"
        )
    return found


def _weight(model: TransformerBridge, layer: int, name: str) -> Float[Tensor, "head _ _"]:
    attention = model.blocks[layer].attn
    try:
        weight = getattr(attention, name).detach().float()
    except NotImplementedError as error:
        kind = type(attention.original_component).__name__
        raise ValueError(
            f"composition_scores: the attention of block {layer} ({kind}) has no {name}: a norm "
            "stands inside its projections, so they are no product of matrices"
        ) from error
    return weight if name in ("W_O", "W_Q") else per_head(weight, model.cfg.n_heads)


def _source(model: TransformerBridge, layer: int) -> Float[Tensor, "head d_head d_model"]:
    """R₁ W_O of each head: same norm and same products from the right as W_V W_O."""
    with _one_thread():
        upper = torch.linalg.qr(_weight(model, layer, "W_V")).R
        return upper @ _weight(model, layer, "W_O")


def _reader(
    model: TransformerBridge, layer: int, kind: str, *, gain: bool = False
) -> Float[Tensor, "head d_model d_head"]:
    """A R₂ᵀ of each head: same norm and same products from the left as A Bᵀ."""
    inner, outer = {"Q": ("W_Q", "W_K"), "K": ("W_K", "W_Q"), "V": ("W_V", "W_O")}[kind]
    A, B = _weight(model, layer, inner), _weight(model, layer, outer)
    if gain:
        A = _reading_gain(model, layer)[:, None] * A
        if kind != "V":
            B = _reading_gain(model, layer)[:, None] * B
    if kind == "V":
        B = B.mT
    with _one_thread():
        return A @ torch.linalg.qr(B).R.mT


@contextmanager
def _one_thread() -> Iterator[None]:
    """Work on small matrices with one thread of the CPU, and restore the number of threads.

    LAPACK takes the heads one by one, each with all threads. On a machine that is busy with
    something else they wait for one another a hundred times longer than they work.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _reading_gain(model: TransformerBridge, layer: int) -> Float[Tensor, " d_model"]:
    weight = model.blocks[layer].ln1.original_component.weight.detach().float()
    return 1.0 + weight if getattr(model.cfg, "rmsnorm_uses_offset", False) else weight


def _sizes(
    norms: Float[Tensor, " source"], readers: Float[Tensor, "reader d_model d_head"]
) -> Float[Tensor, "source reader"]:
    """The product of both norms, kept above zero: a head of zeros composes with nothing."""
    product = norms[:, None] * readers.norm(dim=(1, 2))[None, :]
    return product.clamp(min=torch.finfo(product.dtype).tiny)


def _pair_norms(
    sources: Float[Tensor, "source d_head d_model"], readers: Float[Tensor, "reader d_model d_head"]
) -> Float[Tensor, "source reader"]:
    n_reader, width, d_head = readers.shape
    columns = readers.movedim(0, 1).reshape(width, n_reader * d_head)
    squares = [  # a slab of sources at a time keeps the products to some tens of megabytes
        (slab.reshape(-1, width) @ columns)
        .square_()
        .reshape(len(slab), slab.shape[1], n_reader, d_head)
        .sum((1, 3))
        for slab in sources.split(64)
    ]
    return torch.cat(squares).sqrt_()
