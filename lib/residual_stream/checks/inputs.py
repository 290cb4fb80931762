"""Inputs of checks and tests, drawn from a seed: the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..texts import PASSAGES

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def tokens(
    model: TransformerBridge, seed: int, *, batch: int = 2, length: int = 12
) -> Int[Tensor, "{batch} {length}"]:
    """Return random token ids of a model, on its device.

    Example:
        >>> import residual_stream as rs
        >>> tokens(rs.load("bench"), 1).shape
        torch.Size([2, 12])
    """
    drawn = np.random.RandomState(seed % 2**32).randint(1, model.cfg.d_vocab, (batch, length))
    return torch.as_tensor(drawn, device=model.cfg.device)


def writes(seed: int, shape: Sequence[int] = (8, 2, 9, 16)) -> Float[Tensor, "write batch pos d"]:
    """Return made-up writes of very different sizes, a tenth of the entries exactly zero.

    The first write is short, later ones are longer, and position 0 is a hundred times longer still:
    what a stream looks like.
    """
    draw = np.random.RandomState(seed % 2**32)
    values = draw.standard_normal(shape) * np.exp(1.5 * draw.standard_normal(shape))
    values *= np.geomspace(0.1, 10, shape[0])[draw.permutation(shape[0])][:, None, None, None]
    values[draw.random_sample(shape) < 0.1] = 0
    values[:, :, 0] *= 100
    return torch.as_tensor(values.astype(np.float32))


def normal(seed: int, *shape: int) -> Float[Tensor, "..."]:
    """Return standard normal numbers.

    Example:
        >>> normal(0, 2, 3).shape
        torch.Size([2, 3])
    """
    drawn = np.random.RandomState(seed % 2**32).standard_normal(shape)
    return torch.as_tensor(drawn.astype(np.float32))


def heads(seed: int, count: int, width: int = 24, size: int = 6) -> dict[str, Tensor]:
    """Return the weights of some heads: `W_Q`, `W_K`, `W_V` [head, d_model, d_head] and `W_O`."""
    shapes = dict.fromkeys(("W_Q", "W_K", "W_V"), (count, width, size))
    shapes["W_O"] = (count, size, width)
    return {name: normal(seed + 1 + i, *shape) for i, (name, shape) in enumerate(shapes.items())}


def stack_weights(seed: int, layers: int = 3, width: int = 8) -> dict[str, Tensor]:
    """Return weights of a GPT-2-style stack, all of the same spread, by name."""
    shapes = {"W_E": (11, width), "W_pos": (5, width)}
    for layer in range(layers):
        at = f"blocks.{layer}"
        shapes |= {f"{at}.attn.W_{kind}": (width, width) for kind in "QKVO"}
        shapes |= {f"{at}.mlp.W_in": (width, 4 * width), f"{at}.mlp.W_out": (4 * width, width)}
        shapes |= {f"{at}.mlp.b_out": (width,), f"{at}.ln1.w": (width,)}
    return {name: 0.02 * normal(seed + i, *shape) for i, (name, shape) in enumerate(shapes.items())}


@dataclass(frozen=True)
class Draw:
    """What one student measures on: two of the book's passages and three layers.

    Attributes:
        passages: Names in :data:`residual_stream.texts.PASSAGES`.
        texts: Their texts.
        layers: In ascending order: low, middle and high.
    """

    passages: tuple[str, ...]
    texts: tuple[str, ...]
    layers: tuple[int, ...]


def draw(student: str, *, n_layers: int = 30) -> Draw:
    """Return what the student of that name measures on; nearly everybody gets something else.

    Args:
        student: A name or a number; spaces and capitals do not matter.
        n_layers: Layers of the model.

    Example:
        >>> draw("Ada Lovelace") == draw(" ada lovelace"), draw("Ada").layers != draw("Bob").layers
        (True, True)
    """
    name = " ".join(student.casefold().split())
    if not name:
        raise ValueError("checks.draw: an empty name; pass your name or number")
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    random = np.random.RandomState(seed)
    chosen = tuple(sorted(PASSAGES)[i] for i in random.choice(len(PASSAGES), 2, replace=False))
    third = n_layers // 3
    layers = tuple(int(k * third + random.randint(0 if k else 1, third)) for k in range(3))
    return Draw(chosen, tuple(PASSAGES[name] for name in chosen), layers)
