"""The samples that a monitor has taken, and what they are samples of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .anatomy import Block

#: What is measured of each part; a part is the stream below a block, or one of its writes.
FIELDS = ("norm", "first", "before", "varies", "lost", "gradient", "weights_gradient")


@dataclass(frozen=True, eq=False)
class Sample:
    """One sampled step.

    Attributes:
        step: The optimiser step.
        length: Positions in a text.
        table: What was measured, nan where nothing was.
        gain_moved: Whether each norm's gain changed since the sample before.
        block_moved: Whether a matrix of each block did.
    """

    step: int
    length: int
    table: Float[Tensor, "part field"]
    gain_moved: Bool[Tensor, " gain"]
    block_moved: Bool[Tensor, " block"]


@dataclass(eq=False)
class History:
    """The samples of one run, oldest first.

    Attributes:
        gains: Every norm's gain, by block and name.
        fresh: Whether every gain was still constant when the monitor was made.
        parts: The rows of the tables, by block and name; filled by the first sample.
        trainable: Whether anything behind each part is trained.
        placement: ``"post"`` if every block ends in a norm of its sum.
        dtype: The stream's type, without ``torch.``.
        samples: The samples.
        found: The kinds of finding so far.
    """

    gains: list[tuple[int, str]]
    fresh: bool
    parts: list[tuple[int, str]] = field(default_factory=list)
    trainable: list[bool] = field(default_factory=list)
    placement: str = "pre"
    dtype: str = ""
    samples: list[Sample] = field(default_factory=list)
    found: set[str] = field(default_factory=set)

    def describe(self, blocks: Sequence[Block], *, dtype: torch.dtype) -> None:
        """Say what the rows of the tables will be."""
        for layer, block in enumerate(blocks):
            own = [(layer, "stream"), *((layer, branch.kind) for branch in block.branches)]
            self.parts += own
            self.trainable += [True, *(branch.trainable for branch in block.branches)]
        self.parts.append((len(blocks), "stream"))
        self.trainable.append(True)
        self.placement = "post" if all(b.placement == "post" for b in blocks) else "pre"
        self.dtype = str(dtype).removeprefix("torch.")

    def add(self, sample: Sample, *, keep: int) -> None:
        """Append a sample; past ``keep`` of them, every second of the older half is dropped."""
        self.samples.append(sample)
        if len(self.samples) > keep:
            half = keep // 2
            self.samples = self.samples[:half:2] + self.samples[half:]

    def has(self, kind: str) -> bool:
        """Whether a finding of this kind has been made."""
        return kind in self.found

    def was_finite(self, part: int) -> bool:
        """Whether a part's norm was finite in every sample but the last."""
        norms = [sample.table[part, 0] for sample in self.samples[:-1]]
        return all(bool(torch.isfinite(norm)) for norm in norms)

    def ratio(self, part: int, sample: Sample) -> float:
        """Return a write's norm over that of the stream it joins."""
        row = sample.table[part]
        return float(row[FIELDS.index("norm")] / row[FIELDS.index("before")])

    def grew_faster_than_time(self, part: int, sample: Sample) -> bool:
        """Whether a ratio more than doubled while the number of steps doubled.

        Compared is the latest sample at no more than half of the steps: with one farther back,
        growth in proportion to time would pass for more.
        """
        earlier = [one for one in self.samples if 2 * one.step <= sample.step]
        if not earlier:
            return False
        then = earlier[-1]
        proportional = self.ratio(part, then) * sample.step / then.step
        return self.ratio(part, sample) > proportional

    def state_dict(self) -> dict[str, Any]:
        """Return everything in plain types and tensors."""
        state = {name: getattr(self, name) for name in ("fresh", "placement", "dtype")}
        state["gains"] = [list(pair) for pair in self.gains]
        state["parts"] = [list(pair) for pair in self.parts]
        state["trainable"], state["found"] = list(self.trainable), sorted(self.found)
        state["samples"] = [dict(vars(sample)) for sample in self.samples]
        return state

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> History:
        """Return the history that :meth:`state_dict` described."""
        fields = dict(state)
        fields["gains"] = [tuple(pair) for pair in state["gains"]]
        fields["parts"] = [tuple(pair) for pair in state["parts"]]
        fields["found"] = set(state["found"])
        fields["samples"] = [Sample(**sample) for sample in state["samples"]]
        return cls(**fields)
