r"""How many nearly orthogonal directions are there? Four statements that are easily confused.

A set of unit vectors is ε-orthogonal when every pair has :math:`|\cos| \le \varepsilon`. With
:math:`p = P(|\cos| > \varepsilon)` for two independent uniform directions in :math:`d` dimensions,
and :math:`p \le 2\exp(-d\varepsilon^2/2)` (Ball 1997, Lemma 2.2, used on both caps):

* **a careless draw**: the expected number of bad pairs among :math:`N` random vectors is
  :math:`N(N-1)p/2`. By the union bound, :math:`N \le \sqrt\delta\,\exp(d\varepsilon^2/4)` of them
  are ε-orthogonal with probability at least :math:`1-\delta`. The constant is **1/4**; the
  familiar :math:`\exp(d\varepsilon^2/4)` is the case :math:`\delta = 1`, which promises nothing
  about one draw, and :math:`\delta = 1/2` costs a factor :math:`\sqrt2`;
* **some set exists**: a set that cannot be extended has at least :math:`1/p \ge
  \exp(d\varepsilon^2/2)/2` members, because each excludes a share :math:`p` of the sphere
  (Gilbert 1952). The constant is **1/2**;
* **no set is larger**: Welch's bounds (1974), here in their form for real vectors;
* **a basis**: :math:`d` directions with cosine 0, always. A bound below :math:`d` says nothing.

Counts are returned as natural logarithms, because many do not fit a float.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from .report import number


def log_pair_tail(width: int, epsilon: float) -> float:
    r"""Return ``ln P(|cos| > epsilon)`` for two independent uniform directions, exactly.

    .. math:: P = \frac{2\,\Gamma(d/2)}{\sqrt\pi\,\Gamma((d-1)/2)}
              \int_{\arcsin\varepsilon}^{\pi/2} \cos^{d-2}\theta\,d\theta

    Args:
        width: The dimension d, at least 2.
        epsilon: The cosine, in [0, 1).

    Returns:
        The natural logarithm of the probability, to about ten digits.

    Raises:
        ValueError: ``width`` or ``epsilon`` out of range.

    Example:
        >>> round(math.exp(log_pair_tail(3, 0.25)), 12)  # on the sphere in 3-D, cos is uniform
        0.75
    """
    _require(width, epsilon, caller="log_pair_tail")
    start = math.asin(epsilon)
    stop = math.pi / 2
    if width > 2:  # beyond this angle the integrand is below exp(−60) of its start
        stop = math.acos(math.cos(start) * math.exp(-60 / (width - 2)))
    nodes, weights = _quadrature()
    angles = start + (nodes + 1) * (stop - start) / 2
    terms = (width - 2) * np.log(np.cos(angles)) + np.log(weights * (stop - start) / 2)
    constant = math.log(2 / math.sqrt(math.pi)) + math.lgamma(width / 2)
    return constant - math.lgamma((width - 1) / 2) + float(np.logaddexp.reduce(terms))


def random_log_count(width: int, epsilon: float, *, failure: float = 0.5) -> float:
    r"""Return ``ln N``: N random directions are ε-orthogonal with probability ≥ 1 − ``failure``.

    The largest N with :math:`N(N-1)\,p/2 \le \delta`, with the exact p of :func:`log_pair_tail`.

    Args:
        width: The dimension d.
        epsilon: The largest allowed :math:`|\cos|`.
        failure: δ, the probability allowed for any pair to be worse; 1 asks only that one bad
            pair be expected.

    Returns:
        The natural logarithm of N (not rounded down).

    Raises:
        ValueError: An argument out of range.

    Example:
        >>> round(math.exp(random_log_count(576, 0.1)))  # in a stream of 576 numbers
        8
    """
    _require_failure(failure, caller="random_log_count")
    ratio = math.log(8 * failure) - log_pair_tail(width, epsilon)
    return float(np.logaddexp(0.0, 0.5 * np.logaddexp(0.0, ratio))) - math.log(2)


def union_log_count(width: int, epsilon: float, *, failure: float = 0.5) -> float:
    r"""Return :math:`\ln N = d\varepsilon^2/4 + \frac12\ln\delta`, the textbook form.

    It follows from :math:`\frac{N^2}{2}\cdot 2e^{-d\varepsilon^2/2} \le \delta` and is never more
    than :func:`random_log_count`.

    Args:
        width: The dimension d.
        epsilon: The largest allowed :math:`|\cos|`.
        failure: δ; 1 gives :math:`\exp(d\varepsilon^2/4)` itself.

    Returns:
        The natural logarithm of N.

    Raises:
        ValueError: An argument out of range.

    Example:
        >>> round(math.exp(union_log_count(576, 0.1, failure=1.0)), 1)
        4.2
    """
    _require(width, epsilon, caller="union_log_count")
    _require_failure(failure, caller="union_log_count")
    return width * epsilon**2 / 4 + math.log(failure) / 2


def existence_log_count(width: int, epsilon: float) -> float:
    r"""Return ``ln N`` for which some ε-orthogonal set of N directions must exist.

    The larger of :math:`1/p` (Gilbert's argument, exact p) and of d, an orthonormal basis.

    Args:
        width: The dimension d.
        epsilon: The largest allowed :math:`|\cos|`.

    Returns:
        The natural logarithm of N.

    Raises:
        ValueError: An argument out of range.

    Example:
        >>> round(math.exp(existence_log_count(576, 0.1)))  # the basis is better than 1/p here
        576
    """
    return max(math.log(width), -log_pair_tail(width, epsilon))


def welch_cosine(width: int, count: int) -> float:
    r"""Return the smallest possible largest :math:`|\cos|` of ``count`` directions, by Welch.

    .. math:: \max |\cos| \ge \sqrt{\frac{N-d}{d\,(N-1)}} \quad (N > d),\qquad 0 \text{ otherwise.}

    Source: Welch 1974, *Lower bounds on the maximum cross correlation of signals*, order 1.

    Example:
        >>> round(welch_cosine(2, 3), 3)  # three directions in the plane, 60° apart
        0.5
    """
    if count <= max(width, 1):
        return 0.0
    return math.sqrt((count - width) / (width * (count - 1)))


def welch_log_count(width: int, epsilon: float) -> float:
    r"""Return ``ln N`` above which no ε-orthogonal set exists: the best of Welch's bounds.

    Order k averages the 2k-th power of all cosines. For real vectors that average is at least
    :math:`m_k = \frac{1\cdot3\cdots(2k-1)}{d(d+2)\cdots(d+2k-2)}`, so, where
    :math:`m_k > \varepsilon^{2k}`, :math:`N \le (1-\varepsilon^{2k})/(m_k-\varepsilon^{2k})`.
    Order 1 limits nothing once :math:`d\varepsilon^2 \ge 1`; higher orders do.

    Args:
        width: The dimension d.
        epsilon: The largest allowed :math:`|\cos|`, above 0.

    Returns:
        The natural logarithm of the smallest limit over all orders.

    Raises:
        ValueError: An argument out of range.

    Example:
        >>> round(math.exp(welch_log_count(2, 0.5)))  # Welch 1 is met: 3 directions in the plane
        3
    """
    _require(width, epsilon, caller="welch_log_count")
    if epsilon == 0:
        return math.log(width)
    count, limits = 64, np.zeros(1, dtype=bool)
    while not limits[: count // 2].any():  # well past the first order that limits anything
        count *= 2
        orders = np.arange(1, count)
        log_moment = np.cumsum(np.log(2 * orders - 1) - np.log(width + 2 * orders - 2))
        log_power = 2 * orders * math.log(epsilon)
        limits = log_moment > log_power + 1e-9
    gap = log_moment[limits] + np.log1p(-np.exp(log_power[limits] - log_moment[limits]))
    return float(np.min(np.log1p(-np.exp(log_power[limits])) - gap))


def median_max_cosine(width: int, count: int) -> float:
    r"""Return the median of the largest :math:`|\cos|` among ``count`` random directions.

    Bad pairs are rare and pairwise independent, so their number is nearly Poisson and the median
    solves :math:`N(N-1)\,p(\varepsilon)/2 = \ln 2`.

    Example:
        >>> round(median_max_cosine(576, 576), 2)
        0.19
    """
    if count < 2:
        raise ValueError(f"median_max_cosine: count = {count}; a pair needs at least 2 directions")
    wanted = math.log(2 * math.log(2) / (count * (count - 1)))
    low, high = 0.0, 1.0 - 1e-12
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if log_pair_tail(width, middle) > wanted else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class PackingCounts:
    """The four statements for one width and ε, with δ = 1/2; counts as natural logarithms.

    Attributes:
        width: The dimension d.
        epsilon: The largest allowed cosine, in size.
        union: :func:`union_log_count`.
        random: :func:`random_log_count`.
        exists: :func:`existence_log_count`.
        welch: :func:`welch_log_count`.
    """

    width: int
    epsilon: float
    union: float
    random: float
    exists: float
    welch: float


@dataclass(frozen=True, repr=False)
class PackingTable:
    """The four statements side by side, for several widths and ε."""

    rows: tuple[PackingCounts, ...]

    def to_frame(self) -> pd.DataFrame:
        """The rows as a DataFrame; counts as powers of ten."""
        frame = pd.DataFrame([vars(row) for row in self.rows])
        counts = ["union", "random", "exists", "welch"]
        frame[counts] /= math.log(10)
        return frame.rename(columns={name: f"log10 {name}" for name in counts})

    def __repr__(self) -> str:
        """One line: how many widths and ε."""
        return f"PackingTable({len(self.rows)} rows of width and ε)"

    def _repr_markdown_(self) -> str:
        lines = [
            "| width d | ε | one random draw, √½·exp(dε²/4) | the same, exact | some set exists "
            "| no set has more |",
            "|--:|--:|--:|--:|--:|--:|",
        ]
        for row in self.rows:
            counts = [_count_text(n) for n in (row.union, row.random, row.exists, row.welch)]
            lines.append(f"| {number(row.width, 5)} | {row.epsilon:g} | {' | '.join(counts)} |")
        return "\n".join(lines)


def packing_table(widths: Sequence[int], epsilons: Sequence[float]) -> PackingTable:
    """Return the counts of all four statements for every width and ε, with δ = 1/2.

    Example:
        >>> packing_table([576, 4096], [0.1, 0.2])
        PackingTable(4 rows of width and ε)
    """
    return PackingTable(
        tuple(
            PackingCounts(
                width=width,
                epsilon=epsilon,
                union=union_log_count(width, epsilon),
                random=random_log_count(width, epsilon),
                exists=existence_log_count(width, epsilon),
                welch=welch_log_count(width, epsilon),
            )
            for width in widths
            for epsilon in epsilons
        )
    )


@cache
def _quadrature() -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(200)


def _count_text(log_count: float) -> str:
    if log_count < math.log(1e6):
        return f"{math.exp(log_count):,.0f}".replace(",", "\u202f")
    power = str(int(log_count / math.log(10))).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{power}"


def _require(width: int, epsilon: float, *, caller: str) -> None:
    if width < 2 or not 0 <= epsilon < 1:
        raise ValueError(
            f"{caller}: width = {width}, epsilon = {epsilon}; allowed are width ≥ 2 and "
            "0 ≤ epsilon < 1"
        )


def _require_failure(failure: float, *, caller: str) -> None:
    if not 0 < failure <= 1:
        raise ValueError(f"{caller}: failure = {failure}; allowed is 0 < failure ≤ 1")
