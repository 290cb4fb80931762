r"""How long the stream is, how long each write, and at what angle it arrives.

One update takes the stream from :math:`x` to :math:`x + \Delta`, so

.. math:: \lVert x + \Delta\rVert^2 = \lVert x\rVert^2 + \lVert\Delta\rVert^2
          + 2\lVert x\rVert\lVert\Delta\rVert\cos(x, \Delta).

Where the cosine is zero the squares add up, and the stream grows like the root of the depth. All
lengths are in the stream's own units. Position 0 is kept apart (:attr:`StreamNorms.first`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from .stream import ResidualStream

Unit = Literal["layer", "sublayer"]


@dataclass(frozen=True, eq=False, repr=False)
class StreamNorms:
    """Lengths and angles of every update of a stream.

    Attributes:
        labels: Names of the updates: the writes', or ``"layer 0"`` and so on.
        layers: The block of each.
        kinds: ``"attn"``, ``"mlp"``, … or ``"layer"``.
        positions: The positions recorded.
        before: Length of the stream that the update found.
        size: Length of the update.
        cosine: Of the angle between the two; 0 where either has no length.
        through_norms: Whether the stream passes through norms between updates, as in a post-LN
            model: what one update leaves is then not what the next finds.
    """

    labels: list[str]
    layers: list[int]
    kinds: list[str]
    positions: Int[Tensor, " pos"]
    before: Float[Tensor, "update batch pos"]
    size: Float[Tensor, "update batch pos"]
    cosine: Float[Tensor, "update batch pos"]
    through_norms: bool = False

    @property
    def ratio(self) -> Float[Tensor, "update batch pos"]:
        """Length of the update over the length of the stream that it found."""
        return self.size / self.before

    @property
    def after(self) -> Float[Tensor, "update batch pos"]:
        """Length of the stream with the update, by the formula above."""
        cross = 2 * self.before * self.size * self.cosine
        return (self.before.square() + self.size.square() + cross).clamp(min=0).sqrt()

    @property
    def lengths(self) -> Float[Tensor, "depth batch pos"]:
        """Length of the stream at every depth: before the first update, then after each.

        In a post-LN model, before the norm that comes after it.
        """
        return torch.cat([self.before[:1], self.after])

    @property
    def sum_of_squares(self) -> Float[Tensor, "depth batch pos"]:
        r"""What :math:`\lVert x\rVert^2` would be at every depth if all updates were orthogonal.

        Raises:
            ValueError: The stream passes through norms, which rescale what was written before.
        """
        if self.through_norms:
            raise ValueError(
                "StreamNorms.sum_of_squares: this stream passes through norms between its updates "
                "(post-LN), so its updates do not add up; compare before, size and cosine"
            )
        return torch.cat([self.before[:1], self.size]).square().cumsum(0)

    @property
    def first(self) -> StreamNorms:
        """Position 0 alone.

        Raises:
            ValueError: It was not recorded.
        """
        return self._at(self.positions == 0)

    @property
    def later(self) -> StreamNorms:
        """Every position but 0.

        Raises:
            ValueError: No other was recorded.
        """
        return self._at(self.positions != 0)

    def _at(self, chosen: Tensor) -> StreamNorms:
        if not chosen.any():
            raise ValueError(
                f"StreamNorms: none of the {len(self.positions)} recorded positions is left; "
                "record position 0 and others to compare them"
            )
        split = {
            f.name: getattr(self, f.name)[..., chosen]
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor)
        }
        return replace(self, **split)

    def of_kind(self, kind: str) -> StreamNorms:
        """The updates of one kind, for example ``"attn"``.

        Raises:
            ValueError: There is none.
        """
        chosen = [i for i, one in enumerate(self.kinds) if one == kind]
        if not chosen:
            raise ValueError(
                f"StreamNorms: no update of kind {kind!r}; there are {sorted(set(self.kinds))}"
            )
        return replace(
            self,
            labels=[self.labels[i] for i in chosen],
            layers=[self.layers[i] for i in chosen],
            kinds=[kind] * len(chosen),
            before=self.before[chosen],
            size=self.size[chosen],
            cosine=self.cosine[chosen],
        )

    def to_frame(self) -> pd.DataFrame:
        """Every update as a row: medians over the places, position 0 (if recorded) apart."""
        frame = pd.DataFrame({"update": self.labels, "layer": self.layers, "kind": self.kinds})
        classes = {"": self.positions != 0, " at 0": self.positions == 0}
        for suffix, chosen in classes.items():
            if not chosen.any():
                continue
            part = self._at(chosen)
            for name in ("before", "size", "ratio", "cosine"):
                value = getattr(part, name).flatten(1).median(1).values
                frame[name + suffix] = value.cpu().numpy()
        return frame

    def _repr_markdown_(self) -> str:
        frame = self.to_frame()
        head = [str(column) for column in frame.columns]
        rows = [
            [f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row]
            for row in frame.itertuples(index=False)
        ]
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def __repr__(self) -> str:
        """One line: updates, places, growth."""
        length = self.lengths.flatten(1).median(1).values
        return (
            f"StreamNorms({len(self.labels)} updates × {self.before[0].numel()} places; median "
            f"length {float(length[0]):.3g} before, {float(length[-1]):.3g} after)"
        )


def stream_norms(stream: ResidualStream, *, unit: Unit = "layer") -> StreamNorms:
    """Return lengths and angles of every update of a recorded stream.

    Args:
        stream: A recorded stream. What the embedding wrote is where it starts.
        unit: ``"layer"`` to take all that a block writes as one update, ``"sublayer"`` for every
            write. A post-LN block rescales its first write before it adds the second, so there it
            must be ``"sublayer"``.

    Returns:
        The lengths, in float64 sums of the model's own writes, sent through the stream's norms
        where it has any.

    Raises:
        ValueError: An unknown unit, or one that the stream's norms cut in two.
        LedgerError: The ledger does not close.

    Example:
        >>> import residual_stream as rs
        >>> stream = rs.record(rs.load("bench"), "In the beginning")
        >>> rs.stream_norms(stream).labels
        ['layer 0', 'layer 1', 'layer 2', 'layer 3']
    """
    if unit not in ("layer", "sublayer"):
        raise ValueError(f"stream_norms: unit {unit!r}; it may be 'layer' or 'sublayer'")
    stream.require_closed(caller="stream_norms")
    return _norms_of(stream.writes, stream, unit)


def _norms_of(writes: Tensor, stream: ResidualStream, unit: str) -> StreamNorms:
    """The norms of any writes in the places of a stream's own."""
    start = sum(layer < 0 for layer in stream.layers)
    groups: list[list[int]] = []
    for index in range(start, len(stream.layers)):
        same = unit == "layer" and groups and stream.layers[groups[-1][0]] == stream.layers[index]
        groups[-1].append(index) if same else groups.append([index])
    norms = stream.stream_norms()
    for group in groups:
        if not norms.keys().isdisjoint(group[:-1]):
            raise ValueError(
                f"stream_norms: block {stream.layers[group[0]]} sends the stream through a norm "
                "between its writes (post-LN), so they are no one update; pass unit='sublayer'"
            )

    def passed_on(total: Tensor, last: int) -> Tensor:
        return norms[last].at(total).through(total) if last in norms else total

    running = passed_on(writes[:start].double().sum(0), start - 1)
    before, size, cosine = [], [], []
    for group in groups:
        update = writes[group].double().sum(0)
        before.append(running.norm(dim=-1))
        size.append(update.norm(dim=-1))
        cosine.append(torch.cosine_similarity(running, update, dim=-1))
        running = passed_on(running + update, group[-1])
    first = [group[0] for group in groups]
    by_layer = unit == "layer"
    return StreamNorms(
        labels=[f"layer {stream.layers[i]}" if by_layer else stream.labels[i] for i in first],
        layers=[stream.layers[i] for i in first],
        kinds=["layer" if by_layer else stream.kinds[i] for i in first],
        positions=stream.positions,
        before=torch.stack(before),
        size=torch.stack(size),
        cosine=torch.stack(cosine),
        through_norms=bool(norms),
    )


def common_share(stream: ResidualStream, *, first: bool = False) -> Float[Tensor, " write"]:
    r"""Return, per write, the share of its mean square that is the same at all tokens.

    .. math:: \lVert \overline{\Delta} \rVert^2 \,/\, \overline{\lVert \Delta \rVert^2}

    0 for a write whose mean over tokens is zero, 1 for one that writes the same everywhere.
    Independent writes of :math:`n` tokens give :math:`1/n` by chance.

    Args:
        stream: A recorded stream.
        first: Whether position 0 counts as a token; it is left out otherwise.

    Raises:
        LedgerError: The ledger does not close.
    """
    stream.require_closed(caller="common_share")
    chosen = (stream.positions >= (0 if first else 1)).to(stream.writes.device)
    at = stream.writes[:, :, chosen].double().flatten(1, 2)  # [write, token, d_model]
    return at.mean(1).square().sum(-1) / at.square().sum(-1).mean(1)
