r"""Are the gradients at neighbouring inputs alike? The measure of gradient shattering.

Take inputs :math:`x_0, \dots, x_n` at equal steps on a line, a fixed direction :math:`r`, and the
gradients :math:`g_i = \partial\,(r \cdot f(x_i))/\partial x_i`. Their correlation at lag
:math:`k` is the mean of :math:`\cos(g_i, g_{i+k})`. In deep plain networks it falls to that of
white noise between points next to each other: a step along one gradient is a step in no direction
for its neighbour. With shortcuts it falls far more slowly.

Source: Balduzzi et al. 2017, *The Shattered Gradients Problem*, section 2 (there with inputs of
one number; the same in many coordinates here, with the cosine in place of the product).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def gradients_on_a_line(
    function: Callable[[Tensor], Tensor],
    start: Float[Tensor, "*input"],
    end: Float[Tensor, "*input"],
    *,
    points: int = 128,
    seed: int = 0,
) -> Float[Tensor, "point *input"]:
    """Return the input gradient of a random readout at equally spaced inputs.

    Args:
        function: From a batch of inputs ``[point, *input]`` to outputs ``[point, *output]``; each
            output may depend on its own input only.
        start: The first input.
        end: The last.
        points: How many.
        seed: Seed of the readout, drawn on the CPU; the same at every point.

    Returns:
        The gradients, one per input.
    """
    steps = torch.linspace(0, 1, points, dtype=start.dtype, device=start.device)
    with torch.enable_grad():
        inputs = torch.stack([torch.lerp(start, end, step) for step in steps]).requires_grad_()
        outputs = function(inputs)
        generator = torch.Generator().manual_seed(seed)
        readout = torch.randn(outputs.shape[1:], generator=generator, dtype=outputs.dtype)
        total = (outputs * readout.to(outputs.device)).sum()
        return torch.autograd.grad(total, inputs)[0]


def gradient_correlation(
    gradients: Float[Tensor, "point *input"], *, lags: int = 16
) -> Float[Tensor, " lag"]:
    r"""Return the mean :math:`\cos(g_i, g_{i+k})` for lags 0 to ``lags`` − 1.

    Args:
        gradients: As :func:`gradients_on_a_line` returns them.
        lags: How many lags, fewer than there are points.

    Returns:
        One value per lag; the first is 1. White noise in many coordinates has 0 after it. A point
        whose gradient is zero counts as unlike all others.

    Raises:
        ValueError: As many lags as points, or more.

    Example:
        >>> linear = torch.nn.Linear(4, 3)
        >>> gradients = gradients_on_a_line(linear, torch.zeros(4), torch.ones(4), points=8)
        >>> gradient_correlation(gradients, lags=3).round(decimals=4).tolist()
        [1.0, 1.0, 1.0]
    """
    if not 1 <= lags < len(gradients):
        raise ValueError(
            f"gradient_correlation: {lags} lags of {len(gradients)} points; pass 1 to "
            f"{len(gradients) - 1}"
        )
    unit = torch.nn.functional.normalize(gradients.flatten(1).double(), dim=1)
    count = len(unit)
    return torch.stack(
        [(unit[: count - lag] * unit[lag:]).sum(1).mean() for lag in range(lags)]
    ).to(gradients.dtype)
