r"""Where a stack's weights start: one scheme per paper, as a standard deviation per matrix.

Every matrix is drawn from :math:`N(0, s^2)` with :math:`s` from :func:`standard_deviation`; biases
start at 0 and norms at gain 1. The roles are the six matrices of a block (``q``, ``k``, ``v``,
``o``, ``in``, ``out``) and ``gate``, the highway's. ``o`` and ``out`` write to the stream.
"""

from __future__ import annotations

import math
from typing import Literal

Scheme = Literal["xavier", "he", "gpt2", "deepnorm", "fixup"]
SCHEMES: tuple[Scheme, ...] = ("xavier", "he", "gpt2", "deepnorm", "fixup")
WRITES = ("o", "out")
#: Matrices in one branch, as Fixup counts them: v and o, or in and out.
MATRICES_IN_A_BRANCH = 2


def standard_deviation(
    scheme: Scheme, role: str, *, fan_in: int, fan_out: int, n_layers: int, n_branches: int
) -> float:
    r"""Return the standard deviation that a matrix starts with.

    * ``xavier``: :math:`\sqrt{2/(n_{in} + n_{out})}` (Glorot and Bengio 2010, equation 12).
    * ``he``: :math:`\sqrt{2/n_{in}}` behind a ReLU, :math:`\sqrt{1/n_{in}}` elsewhere, which keeps
      the mean square (He et al. 2015, *Delving Deep into Rectifiers*, equations 10 and 14).
    * ``gpt2``: Xavier, and what writes to the stream times :math:`1/\sqrt N` for N branches
      (Radford et al. 2019, section 2.3). GPT-2's own base is 0.02 at every width.
    * ``deepnorm``: Xavier, and all but q and k times :math:`\beta = (8L)^{-1/4}` (Wang et al. 2022,
      figure 2, decoder alone).
    * ``fixup``: He; in a branch of m matrices all but the last times :math:`N^{-1/(2m-2)}`, the
      last 0, q and k left alone (Zhang et al. 2019, section 3; m = 2).

    Args:
        scheme: One of ``SCHEMES``.
        role: ``q``, ``k``, ``v``, ``o``, ``in``, ``out`` or ``gate``.
        fan_in: Length of the vectors that the matrix takes.
        fan_out: Length of those that it returns.
        n_layers: :math:`L`, blocks in the stack.
        n_branches: :math:`N`, branches in the stack.

    Raises:
        ValueError: An unknown scheme or role.

    Example:
        >>> size = dict(fan_in=64, fan_out=64, n_layers=8, n_branches=16)
        >>> standard_deviation("xavier", "o", **size), standard_deviation("gpt2", "o", **size)
        (0.125, 0.03125)
    """
    if role not in ("q", "k", "v", "o", "in", "out", "gate"):
        raise ValueError(
            f"standard_deviation: role {role!r}; it may be q, k, v, o, in, out or gate"
        )
    xavier = math.sqrt(2 / (fan_in + fan_out))
    he = math.sqrt((2 if role == "out" else 1) / fan_in)
    if scheme == "xavier":
        return xavier
    if scheme == "he":
        return he
    if scheme == "gpt2":
        return xavier / math.sqrt(n_branches) if role in WRITES else xavier
    if scheme == "deepnorm":
        return xavier if role in ("q", "k", "gate") else xavier * deepnorm_beta(n_layers)
    if scheme == "fixup":
        if role in WRITES:
            return 0.0
        return he * fixup_factor(n_branches) if role in ("v", "in") else he
    raise ValueError(f"standard_deviation: scheme {scheme!r}; it may be one of {SCHEMES}")


def deepnorm_beta(n_layers: int) -> float:
    r"""Return DeepNorm's :math:`\beta = (8L)^{-1/4}` for a decoder of L layers."""
    return (8 * n_layers) ** -0.25


def fixup_factor(n_branches: int, *, matrices: int = MATRICES_IN_A_BRANCH) -> float:
    r"""Return Fixup's :math:`N^{-1/(2m-2)}` for N branches of m matrices."""
    return n_branches ** (-1 / (2 * matrices - 2))
