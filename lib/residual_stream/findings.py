"""What counts as a fault of a stream, each by a criterion that no run was asked about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .anatomy import Block
from .gauges import FIELDS


@dataclass(frozen=True)
class Finding:
    """One thing found in a run.

    Attributes:
        kind: Which criterion.
        layer: The block.
        step: The optimiser step at which the criterion was first met.
        text: What was found, in words.
        part: The branch or norm concerned.
    """

    kind: str
    layer: int
    step: int
    text: str
    part: str

    @property
    def key(self) -> tuple[str, int, str]:
        """What makes two findings the same."""
        return self.kind, self.layer, self.part

    def __str__(self) -> str:
        """The finding in words, with layer and step."""
        return self.text


@dataclass(frozen=True)
class Sample:
    """One sampled step."""

    step: int
    length: int
    table: Float[Tensor, "part field"]
    gain_moved: Bool[Tensor, " gain"]
    block_moved: Bool[Tensor, " block"]


@dataclass
class History:
    """The samples of a run, and what they are samples of."""

    gains: list[tuple[int, str]]
    fresh: bool
    parts: list[tuple[int, str]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def describe(self, blocks: Sequence[Block], *, dtype: torch.dtype) -> None:
        for layer, block in enumerate(blocks):
            self.parts.append((layer, "stream"))
            self.parts += [(layer, branch.kind) for branch in block.branches]
        self.parts.append((len(blocks), "stream"))

    def add(self, sample, *, keep):
        self.samples.append(sample)

def judge(history):
    return []
