r"""Two laws for the growth of the stream: squares that add up, and a factor per layer.

* **linear**: :math:`y_l = a + b\,l` for the mean square length :math:`y`, which follows if every
  layer adds an update of the same size, uncorrelated with what is there;
* **exponential**: :math:`y_l = A\,g^{\,l}`, which follows if every layer's update has the same size
  *relative* to what is there.

Each has two parameters and is fitted by least squares, once on :math:`y` and once on
:math:`\log y`: the first listens to the top of the stack, the second to all of it alike. A law that
wins on both scales describes the growth better; where they differ, say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class GrowthFit:
    """Both laws, on both scales.

    Attributes:
        slope: :math:`b/a` of the linear law fitted on the logarithm: what a layer adds, in units of
            the square length at the start.
        factor: √g of the exponential law fitted on the logarithm: by how much a layer multiplies
            the *length*.
        level_linear: a of the linear law.
        level_exponential: A of the exponential law.
        r2_linear: Share of the variance that the linear law explains, on ``"y"`` and ``"log y"``.
        r2_exponential: The same of the exponential law.
    """

    slope: float
    factor: float
    level_linear: float
    level_exponential: float
    r2_linear: dict[str, float]
    r2_exponential: dict[str, float]

    def linear(self, count: int) -> Float[Tensor, "{count}"]:
        """Return the linear law at depths 0 to ``count`` − 1."""
        return self.level_linear * (1 + self.slope * torch.arange(count))

    def exponential(self, count: int) -> Float[Tensor, "{count}"]:
        """Return the exponential law at depths 0 to ``count`` − 1."""
        return self.level_exponential * self.factor ** (2.0 * torch.arange(count))

    @property
    def better(self) -> str:
        """``"linear"`` or ``"exponential"`` where one wins on both scales, else ``"undecided"``."""
        ahead = [self.r2_exponential[scale] - self.r2_linear[scale] for scale in ("y", "log y")]
        if min(ahead) > 0:
            return "exponential"
        return "linear" if max(ahead) < 0 else "undecided"


def fit_growth(squares: Float[Tensor, " depth"]) -> GrowthFit:
    """Fit both laws to a mean square length by depth.

    Args:
        squares: Positive, one value per depth, at least four, at equal steps of depth.

    Returns:
        The fits.

    Raises:
        ValueError: Fewer than four depths, or a value that is not positive.

    Example:
        >>> doubling = fit_growth(2.0 ** torch.arange(8))
        >>> doubling.better, round(doubling.factor**2, 3)
        ('exponential', 2.0)
    """
    y = squares.detach().double().cpu()
    if len(y) < 4 or not bool((y > 0).all()) or not bool(y.isfinite().all()):
        raise ValueError(
            f"fit_growth: pass at least 4 positive finite values; got {len(y)}, from "
            f"{float(y.min()) if len(y) else float('nan'):g}"
        )
    depth = torch.arange(len(y), dtype=y.dtype)
    slope, rate = _linear_on_log(depth, y.log()), _line(depth, y.log())[1]
    relative = (1 + slope * depth).log()
    straight = _line(depth, y)
    scaled = _exponential_on_y(depth, y)
    return GrowthFit(
        slope=slope,
        factor=math.exp(rate / 2),
        level_linear=float((y.log() - relative).mean().exp()),
        level_exponential=math.exp(float(y.log().mean()) - rate * float(depth.mean())),
        r2_linear={
            "y": _r2(y, straight[0] + straight[1] * depth),
            "log y": _r2(y.log(), relative + (y.log() - relative).mean()),
        },
        r2_exponential={
            "y": _r2(y, scaled),
            "log y": _r2(y.log(), y.log().mean() + rate * (depth - depth.mean())),
        },
    )


def _r2(y: Tensor, fitted: Tensor) -> float:
    spread, missed = (y - y.mean()).square().sum(), (y - fitted).square().sum()
    if float(spread) <= (1e-9 * float(y.abs().max())) ** 2 * len(y):
        return 1.0  # a constant: there is nothing to explain
    return float(1 - missed / spread)


def _line(x: Tensor, y: Tensor) -> tuple[float, float]:
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    return float(y.mean()) - slope * float(x.mean()), slope


def _linear_on_log(depth: Tensor, log_y: Tensor) -> float:
    """The c of log(1 + c l) + const closest to log y; the constant is the mean residual."""

    def slope(rise: Tensor) -> Tensor:  # 1 + c l at the last depth is exp(rise), so it is positive
        return rise.expm1() / depth[-1]

    def miss(rise: Tensor) -> Tensor:  # [candidate] → [candidate]
        left = log_y - (1 + slope(rise)[:, None] * depth).log()
        return (left - left.mean(1, keepdim=True)).square().sum(1)

    return float(slope(_search(miss, 12.0)))


def _exponential_on_y(depth: Tensor, y: Tensor) -> Tensor:
    """A exp(r l) closest to y; A is in closed form for every r."""

    def shape(rate: Tensor) -> Tensor:
        exponent = rate[:, None] * depth
        grown = (exponent - exponent.amax(1, keepdim=True)).exp()  # 1 at most, at any depth
        return grown * ((grown * y).sum(1) / grown.square().sum(1))[:, None]

    rate = _search(lambda r: (shape(r) - y).square().sum(1), 3.0)
    return shape(rate[None])[0]


def _search(miss: Callable[[Tensor], Tensor], reach: float) -> Tensor:
    """The number within ±``reach`` with the smallest miss: a grid, narrowed four times."""
    low, high = -reach, reach
    best = torch.tensor(0.0)
    for _ in range(5):
        grid = torch.linspace(low, high, 401, dtype=torch.float64)
        best = grid[miss(grid).argmin()]
        step = (high - low) / 400
        low, high = float(best) - 2 * step, float(best) + 2 * step
    return best
