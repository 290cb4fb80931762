r"""Messages that a later write takes back: before, write, after.

Everything written stays in the sum, but a write can be the opposite of what is there. Along a
unit direction u the stream holds :math:`b = \langle x, u\rangle` before a write w; the write
cancels :math:`\min(|b|, |\langle w,u\rangle|)` of it when the two have opposite signs. The
direction is either a coordinate of the stream or the write's own direction. What the stream of a
post-LN model holds is what came out of its norms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from .stream import ResidualStream


@dataclass(frozen=True)
class Cancellation:
    """One message taken back by one write, at one position.

    Attributes:
        label: The write that cancels.
        batch: Text.
        position: Position in the text.
        token: The token there.
        coordinate: The coordinate, None when ``direction`` is the write's own.
        before: What the stream held along the direction.
        write: What was added.
        after: Their sum.
    """

    label: str
    batch: int
    position: int
    token: str
    coordinate: int | None
    before: float
    write: float
    after: float

    @property
    def cancelled(self) -> float:
        """How much was taken back, in units of the stream."""
        return min(abs(self.before), abs(self.write))


@dataclass(frozen=True, repr=False)
class Cancellations:
    """The strongest cancellations, largest first."""

    found: tuple[Cancellation, ...]

    def __len__(self) -> int:
        """How many were found."""
        return len(self.found)

    def __getitem__(self, index: int) -> Cancellation:
        """The cancellation of that rank, 0 for the strongest."""
        return self.found[index]

    def to_frame(self) -> pd.DataFrame:
        """One row per cancellation."""
        return pd.DataFrame([vars(one) for one in self.found])

    def __repr__(self) -> str:
        """One line: how many, and the strongest."""
        if not self.found:
            return "Cancellations(none)"
        best = self.found[0]
        where = "own direction" if best.coordinate is None else f"coordinate {best.coordinate}"
        return (
            f"Cancellations({len(self.found)}; strongest {best.label}, {where}, position "
            f"{best.position}: {best.before:+.1f} {best.write:+.1f} = {best.after:+.1f})"
        )

    def _repr_markdown_(self) -> str:
        lines = ["| write | token | along | before | write | after |", "|---|---|--:|--:|--:|--:|"]
        for one in self.found:
            along = "the write itself" if one.coordinate is None else f"number {one.coordinate}"
            values = [f"{v:+.1f}".replace("-", "−") for v in (one.before, one.write, one.after)]
            where = f"`{one.token!r}` at {one.position}"
            lines.append(f"| `{one.label}` | {where} | {along} | {' | '.join(values)} |")
        return "\n".join(lines)


def cancellations(
    stream: ResidualStream,
    *,
    by: Literal["coordinate", "direction"] = "coordinate",
    top: int = 10,
    skip_first: bool = True,
    repeats: bool = False,
) -> Cancellations:
    """Return the strongest cancellations in a stream, ranked by how much is taken back.

    Args:
        stream: A recorded stream.
        by: ``"coordinate"`` looks along every coordinate, ``"direction"`` along each write itself.
        top: How many to return.
        skip_first: Leave position 0 out, whose stream is of another size.
        repeats: Keep several tokens of one write (and coordinate); only the strongest if False.

    Returns:
        The cancellations, strongest first; fewer than ``top`` where there are no more.

    Raises:
        LedgerError: The stream does not close.

    Example:
        >>> import residual_stream as rs
        >>> stream = rs.record(rs.load("bench"), "In the beginning God created the heaven")
        >>> best = rs.cancellation.cancellations(stream)[0]
        >>> abs(best.before + best.write - best.after) < 1e-4
        True
    """
    stream.require_closed(caller="cancellations")
    candidates: list[tuple[float, int, int, int, int]] = []
    first = stream.positions == 0
    for index, (before, write) in enumerate(_steps(stream)):
        held, added = _along(before, write, by)  # [batch, pos, direction]
        taken = torch.minimum(held.abs(), added.abs()) * (held * added < 0)
        if skip_first:
            taken[:, first.to(taken.device)] = 0
        candidates += _strongest(taken, index, top, repeats)
    candidates.sort(reverse=True)
    return Cancellations(tuple(_describe(stream, where, by) for _, *where in candidates[:top]))


@dataclass(frozen=True, eq=False)
class CancelledShare:
    """How much of every write takes something back.

    Attributes:
        share: Per write, in the order written: 0 for one that only adds, 1 for one that only
            removes.
        chance: The same if the signs were independent of the stream's.
    """

    share: Float[Tensor, " write"]
    chance: Float[Tensor, " write"]


def cancelled_share(stream: ResidualStream, *, skip_first: bool = True) -> CancelledShare:
    r"""Return, for each write, the share of it that takes something back, coordinate by coordinate.

    .. math:: \frac{\sum_i \min(|b_i|,|w_i|)\,[b_i w_i<0]}{\sum_i |w_i|},\qquad
              \text{by chance: } \frac12\,\frac{\sum_i \min(|b_i|,|w_i|)}{\sum_i |w_i|},

    with sums over coordinates, positions and texts. Half of what a small random write does is
    removal, so only the difference between the two says something.

    Args:
        stream: A recorded stream.
        skip_first: Leave position 0 out.

    Returns:
        Share and chance; both are 0 for the first write.

    Raises:
        LedgerError: The stream does not close.

    Example:
        >>> import residual_stream as rs
        >>> stream = rs.record(rs.load("bench"), "In the beginning God created the heaven")
        >>> float(rs.cancellation.cancelled_share(stream).share[0])
        0.0
    """
    stream.require_closed(caller="cancelled_share")
    keep = (stream.positions > 0) if skip_first else (stream.positions >= 0)
    shares, chances = [], []
    for before, write in _steps(stream):
        held, added = before[:, keep.to(before.device)], write[:, keep.to(write.device)]
        smaller = torch.minimum(held.abs(), added.abs())
        shares.append((smaller * (held * added < 0)).sum() / added.abs().sum())
        chances.append(smaller.sum() / added.abs().sum() / 2)
    return CancelledShare(torch.stack(shares), torch.stack(chances))


def _steps(stream: ResidualStream) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what the stream held and what was written there, write by write."""
    before = torch.zeros_like(stream.writes[0])
    for write, after in zip(stream.writes, stream.partial_sums(), strict=True):
        yield before, write
        before = after.clone()


def _along(before: Tensor, write: Tensor, by: str) -> tuple[Tensor, Tensor]:
    if by == "coordinate":
        return before, write
    if by != "direction":
        raise ValueError(f'cancellations: by = {by!r}; allowed are "coordinate" and "direction"')
    size = write.norm(dim=-1, keepdim=True)
    unit = write / size.clamp_min(torch.finfo(write.dtype).tiny)
    return (before * unit).sum(-1, keepdim=True), size


def _strongest(
    taken: Tensor, index: int, top: int, repeats: bool
) -> list[tuple[float, int, int, int, int]]:
    pos, n_direction = taken.shape[1:]
    flat = taken.reshape(-1, n_direction)
    if repeats:
        values, where = flat.flatten().topk(min(top, flat.numel()))
        rows, columns = where // n_direction, where % n_direction
    else:  # the strongest token of each coordinate
        values, rows = flat.max(dim=0)
        values, columns = values.topk(min(top, n_direction))
        rows = rows[columns]
    return [
        (float(value), index, int(row) // pos, int(row) % pos, int(column))
        for value, row, column in zip(values, rows, columns, strict=True)
        if value > 0
    ]


def _describe(stream: ResidualStream, where: list[int], by: str) -> Cancellation:
    index, batch, pos, coordinate = where
    before = stream.after(index - 1)[batch, pos]
    held, added = _along(before, stream.writes[index, batch, pos], by)
    position = int(stream.positions[pos])
    return Cancellation(
        label=stream.labels[index],
        batch=batch,
        position=position,
        token=stream.str_tokens[batch][position],
        coordinate=coordinate if by == "coordinate" else None,
        before=float(held[coordinate]),
        write=float(added[coordinate]),
        after=float(held[coordinate] + added[coordinate]),
    )
