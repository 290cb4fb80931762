"""The parts of a logit as they are found, and what each write is projected on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from .targets import Projection

if TYPE_CHECKING:
    from .stream import ResidualStream


@dataclass
class BranchParts:
    """Parts as they are found: labels, blocks, kinds and values in one order.

    Attributes:
        labels: Names of the parts.
        layers: The block of each part.
        kinds: The kind of each part.
        values: Tensors ``[part, batch, pos]``, each covering one or several labels.
    """

    labels: list[str] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def add(self, label: str | list[str], layer: int, kind: str, value: Tensor) -> None:
        """Append one part, or several of one kind and block."""
        labels = [label] if isinstance(label, str) else label
        self.labels += labels
        self.layers += [layer] * len(labels)
        self.kinds += [kind] * len(labels)
        self.values.append(value)

    def extend(self, others: BranchParts) -> BranchParts:
        """Append the parts of another list, and return this one."""
        for name in ("labels", "layers", "kinds", "values"):
            getattr(self, name).extend(getattr(others, name))
        return self


def rounding_allowance(dtype: torch.dtype) -> float:
    """Return the relative gap that rounding in ``dtype`` may leave in a sum of parts."""
    return max(1e-4, 8 * torch.finfo(dtype).eps)


def along_each_write(
    stream: ResidualStream, kept: Int[Tensor, " pos"], projection: Projection
) -> tuple[list[Projection], BranchParts]:
    """Return what each write is projected on, and the shares of the norms' biases on its way.

    Without norms on the stream, that is the projection of the top for every write. In a post-LN
    model a direction goes back through every norm between the write and the top.

    Args:
        stream: The recorded stream.
        kept: The places wanted, as indices into ``stream.positions``.
        projection: What the top is projected on.

    Returns:
        One projection per write, and the biases' shares, none for most models.
    """
    norms = stream.stream_norms()
    biases = BranchParts()
    if not norms:
        return [projection] * len(stream.labels), biases
    place = kept.to(stream.writes.device)
    frozen, running = {}, stream.writes[0].clone()
    for index, write in enumerate(stream.writes[1:], start=1):
        running = running + write
        if index in norms:
            frozen[index] = norms[index].at(running[:, place])
            running = norms[index](running)
    names = {norm.writes_before - 1: norm for norm in stream.wiring.norms}
    read_by = [projection] * len(stream.labels)
    for index in sorted(frozen, reverse=True):
        above = read_by[index]
        beta = (above.rows @ frozen[index].norm.bias.to(above.rows))[None]
        label = names[index].module.removeprefix("blocks.").replace(".", "_") + "_bias"
        biases.add(label, names[index].layer, "bias", beta)
        below = above.along(frozen[index].pull(above.rows))
        read_by[: index + 1] = [below] * (index + 1)
    return read_by, biases
