"""Two tasks for small language models, as endless batches of token ids.

Both have a known best loss, so a curve can be read without a second model beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class Task:
    """A task: how its texts are drawn, and the loss that nobody can go below.

    Attributes:
        name: The task in a word.
        d_vocab: Token ids in it.
        length: Tokens in a text.
        best: Mean loss of the ideal reader over all predicted tokens, in nats.
        draw: From a batch size and a generator to texts.
    """

    name: str
    d_vocab: int
    length: int
    best: float
    draw: Callable[[int, torch.Generator], Tensor]

    def batches(self, size: int, *, seed: int) -> Iterator[Int[Tensor, "batch length"]]:
        """Yield batches of ``size`` texts for ever.

        Args:
            size: Texts in a batch.
            seed: Seed of the texts, drawn on the CPU.
        """
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield self.draw(size, generator)


def lookup(*, d_vocab: int = 12, length: int = 24, noise: float = 0.1) -> Task:
    """Return a task in which a fixed table of the last two tokens gives the next.

    With probability ``noise`` a token is drawn at random instead. The table is drawn once and is
    the same in every run: it has to be learned by heart.

    Args:
        d_vocab: V, the number of tokens; the table has V² entries.
        length: Tokens in a text; the first two are random.
        noise: Share of random tokens.

    Example:
        >>> task = lookup(noise=0.0)
        >>> texts = next(task.batches(4, seed=0))
        >>> texts.shape, round(task.best * 23 / math.log(12), 6)
        (torch.Size([4, 24]), 1.0)
    """
    table = torch.randint(d_vocab, (d_vocab, d_vocab), generator=torch.Generator().manual_seed(99))

    def draw(size: int, generator: torch.Generator) -> Tensor:
        texts = torch.randint(d_vocab, (size, length), generator=generator)
        kept = torch.rand(size, length, generator=generator) >= noise
        for i in range(2, length):
            ruled = table[texts[:, i - 1], texts[:, i - 2]]
            texts[:, i] = torch.where(kept[:, i], ruled, texts[:, i])
        return texts

    right, wrong = 1 - noise + noise / d_vocab, noise / d_vocab
    entropy = -right * math.log(right)
    entropy -= (d_vocab - 1) * wrong * math.log(wrong) if noise else 0.0
    best = (math.log(d_vocab) + (length - 2) * entropy) / (length - 1)
    return Task("lookup", d_vocab, length, best, draw)


def repeats(*, d_vocab: int = 16, length: int = 24) -> Task:
    """Return a task whose texts are random tokens, written twice.

    The first half cannot be predicted, the second can, by finding the token before in the first.

    Args:
        d_vocab: Number of tokens.
        length: Tokens in a text; even.

    Raises:
        ValueError: An odd length.

    Example:
        >>> text = next(repeats(length=6).batches(1, seed=0))[0]
        >>> bool((text[:3] == text[3:]).all())
        True
    """
    if length % 2:
        raise ValueError(f"repeats: length {length} is odd; pass an even number")

    def draw(size: int, generator: torch.Generator) -> Tensor:
        half = torch.randint(d_vocab, (size, length // 2), generator=generator)
        return torch.cat([half, half], dim=1)

    best = (length // 2 - 1) / (length - 1) * math.log(d_vocab)
    return Task("repeats", d_vocab, length, best, draw)
