r"""What a coarse number format loses of every update.

In a format with unit roundoff :math:`u` the sum :math:`x + \Delta` is rounded to a neighbour within
:math:`u\,|x + \Delta|` of it. Where :math:`|\Delta|` is below half the distance between numbers
around :math:`x`, nothing of it arrives. The loss is relative: it depends on :math:`|\Delta|/|x|`
in every coordinate, and not on how long the stream is, unless it leaves the format's range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from .stream import ResidualStream


def rounding_loss(
    x: Float[Tensor, "*at d"], update: Float[Tensor, "*at d"], *, dtype: torch.dtype
) -> Float[Tensor, "*at"]:
    r"""Return the share of an update that rounding keeps from the stream.

    .. math:: \lVert\, (\mathrm{fl}(\hat x + \hat\Delta) - \hat x) - \hat\Delta \,\rVert
              \,/\, \lVert \hat\Delta \rVert,

    with :math:`\hat x` and :math:`\hat\Delta` the two in the coarse format: what is measured is the
    addition, not the rounding of its operands.

    Args:
        x: The stream that the update finds.
        update: The update.
        dtype: The format that the model adds in, for example ``torch.bfloat16``.

    Returns:
        0 for an update that arrives whole, 1 for one of which nothing arrives; nan where there is
        no update, or where the sum leaves the range.

    Example:
        >>> one, small = torch.ones(1, 1), torch.tensor([[2.0**-8], [2.0**-7]])
        >>> rounding_loss(one.expand(2, 1), small, dtype=torch.bfloat16).tolist()
        [1.0, 0.0]
    """
    coarse, delta = x.to(dtype), update.to(dtype)
    arrived = (coarse + delta).double() - coarse.double()
    wanted = delta.double()
    loss = (arrived - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    return torch.where(loss.isfinite(), loss, torch.nan)


def rounding_by_depth(
    stream: ResidualStream, *, dtype: torch.dtype
) -> Float[Tensor, "update batch pos"]:
    """Return :func:`rounding_loss` of every write after the embedding's, in the order written.

    Each write is added to the stream that the model itself held there, so losses do not pile up:
    this is what one addition in ``dtype`` loses at that depth.

    Args:
        stream: A recorded stream, in a finer format than ``dtype``.
        dtype: The format to add in.

    Raises:
        ValueError: The stream is no finer than ``dtype``.
        LedgerError: The ledger does not close.

    Example:
        >>> import residual_stream as rs
        >>> stream = rs.record(rs.load("bench"), "In the beginning")
        >>> rs.rounding.rounding_by_depth(stream, dtype=torch.bfloat16).shape
        torch.Size([8, 1, 8])
    """
    stream.require_closed(caller="rounding_by_depth")
    if torch.finfo(stream.writes.dtype).eps >= torch.finfo(dtype).eps:
        raise ValueError(
            f"rounding_by_depth: the stream is in {stream.writes.dtype}, no finer than {dtype}; "
            "record it in float32"
        )
    start = sum(layer < 0 for layer in stream.layers)
    losses = [
        rounding_loss(partial, stream.writes[index], dtype=dtype)
        for index, partial in enumerate(stream.partial_sums(), start=1)
        if start <= index < len(stream.writes)
    ]
    return torch.stack(losses)
