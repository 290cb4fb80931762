r"""Two features, one dimension: what each way of using it costs, in closed form.

The smallest toy model of superposition (:mod:`residual_stream.superposition` with n = 2, m = 1)
has two features that are on with probability p, then uniform on [0, 1], the second with importance
I. It can keep one of them and guess the other's mean, or keep both on opposite sides of zero:

.. math:: L_\text{first} = \tfrac I2\Big(\tfrac p3-\tfrac{p^2}4\Big),\qquad
          L_\text{second} = \tfrac12\Big(\tfrac p3-\tfrac{p^2}4\Big),\qquad
          L_\text{both} = \frac{1+I}{12}\,p^2.

The first two are variances of the feature that is guessed. The third is exact for
:math:`W=(1,-1), b=0`, where only both features at once do harm: the smaller one is lost, and
:math:`\mathbb E\min(x_1,x_2)^2=\tfrac16`. Training can better it a little with other lengths and
biases, so it bounds the optimum from above.

Source: Elhage et al. 2022, *Toy Models of Superposition*, section on phase changes, which compares
such closed forms with training.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

#: The ways, in the order of :func:`candidate_losses`, as `arrangements.phase` names them.
WAYS = ("first only", "superposition", "second only")


def candidate_losses(
    importance: Float[Tensor, "*grid"], density: Float[Tensor, "*grid"]
) -> Float[Tensor, "3 *grid"]:
    """Return the loss of each of :data:`WAYS`.

    Args:
        importance: I, of the second feature over the first.
        density: p = 1 − S, the probability that a feature is on.

    Example:
        >>> losses = candidate_losses(torch.tensor([1.0]), torch.tensor([0.1]))
        >>> WAYS[int(losses[:, 0].argmin())]
        'superposition'
    """
    guessed = (density / 3 - density**2 / 4) / 2
    both = (1 + importance) * density**2 / 12
    return torch.stack([importance * guessed, both, guessed.expand_as(both)])


def sharing_pays(density: Float[Tensor, "*grid"]) -> Float[Tensor, "*grid"]:
    r"""Return the importance from which on sharing beats keeping the first feature alone.

    .. math:: I = \frac{p}{2-\tfrac52p}, \qquad p < \tfrac45

    By symmetry sharing beats keeping the second alone up to 1/I. The two meet at I = 1, p = 4/7:
    for denser features the closed form never shares.

    Args:
        density: p, below 4/5.

    Example:
        >>> round(float(sharing_pays(torch.tensor(4 / 7))), 6)
        1.0
    """
    return density / (2 - 2.5 * density)


def expected_loss(
    W: Float[Tensor, "instance 1 2"],
    b: Float[Tensor, "instance 2"],
    *,
    importance: Float[Tensor, " instance"],
    density: Float[Tensor, " instance"],
    points: int = 100,
) -> Float[Tensor, " instance"]:
    """Return the exact loss of models, without the noise of samples.

    The expectation over which features are on is a sum of four cases, that over their values a
    midpoint rule in float64, whose error falls with the square of ``points``.

    Args:
        W: Weights.
        b: Biases.
        importance: I of each model.
        density: p of each model.
        points: Points of the rule along each feature.

    Example:
        >>> W, b = torch.tensor([[[1.0, -1.0]]]), torch.zeros(1, 2)
        >>> at = {"importance": torch.ones(1), "density": torch.ones(1)}
        >>> round(float(expected_loss(W, b, **at)), 4)  # (1 + 1) / 12
        0.1667
    """
    W, b, p = W.double().cpu(), b.double().cpu(), density.double().cpu()
    weight = torch.stack([torch.ones_like(p), importance.double().cpu()], 1)
    values = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    nothing = torch.zeros(1, dtype=torch.float64)

    def mean_loss(first: Tensor, second: Tensor) -> Tensor:
        x = torch.cartesian_prod(first, second).T  # [feature, point]
        error = (x - torch.relu(W.mT @ (W @ x) + b[..., None])).square()
        return (error * weight[..., None]).mean((1, 2))

    one = mean_loss(values, nothing) + mean_loss(nothing, values)
    both, neither = mean_loss(values, values), mean_loss(nothing, nothing)
    return p**2 * both + p * (1 - p) * one + (1 - p) ** 2 * neither
