r"""How features share a few dimensions: their dimensionality, and names for simple arrangements.

Source: Elhage et al. 2022, *Toy Models of Superposition*; the dimensionality is of its section on
geometry.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

GEOMETRIES = ("orthogonal", "pair and one", "antipodal pairs", "pentagon", "other")


def feature_dimensionality(
    W: Float[Tensor, "*lead hidden feature"],
) -> Float[Tensor, "*lead feature"]:
    r"""Return what share of a dimension every feature has to itself.

    .. math:: D_i = \frac{\lVert W_i\rVert^2}{\sum_j (\hat W_i\cdot W_j)^2}

    1 for a feature orthogonal to all others, 1/2 in an antipodal pair, 2/5 in a regular pentagon,
    0 for a feature that is not represented. They sum to at most the number of dimensions.

    Example:
        >>> pair_and_one = torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> feature_dimensionality(pair_and_one).tolist()
        [0.5, 0.5, 1.0]
    """
    square = W.square().sum(-2)
    shared = (W.mT @ W).square().sum(-1)  # Σ_j (W_i·W_j)²
    return torch.where(square > 0, square.square() / shared.clamp_min(1e-30), 0.0)


def geometry(W: Float[Tensor, "2 feature"], *, threshold: float = 0.5) -> str:
    r"""Name the arrangement of features in a plane.

    Features with :math:`\lVert W_i\rVert` above ``threshold`` count. Then

    * ``"orthogonal"``: two, with \|cos\| < 0.2;
    * ``"pair and one"``: three, a pair with cos < −0.9 and one with \|cos\| < 0.3 to both;
    * ``"antipodal pairs"``: four, two pairs with cos < −0.9, and \|cos\| < 0.3 between pairs;
    * ``"pentagon"``: five, neighbours 72° ± 15° apart;
    * ``"other"``: anything else, for example three features at 120°.

    Args:
        W: Two hidden dimensions, one column a feature.
        threshold: Length above which a feature counts.

    Returns:
        One of :data:`GEOMETRIES`.

    Example:
        >>> angles = torch.arange(5) * 2 * math.pi / 5
        >>> geometry(torch.stack([angles.cos(), angles.sin()]))
        'pentagon'
    """
    kept = W[:, W.norm(dim=0) > threshold].cpu()
    unit = kept / kept.norm(dim=0)
    cosine = unit.T @ unit - 2 * torch.eye(kept.shape[1])  # −1 on the diagonal is not looked at
    off = cosine[~torch.eye(kept.shape[1], dtype=torch.bool)]
    if kept.shape[1] == 2 and bool((off.abs() < 0.2).all()):
        return "orthogonal"
    opposite = off < -0.9
    across = bool((off[~opposite].abs() < 0.3).all())
    if kept.shape[1] == 3 and int(opposite.sum()) == 2 and across:
        return "pair and one"
    if kept.shape[1] == 4 and int(opposite.sum()) == 4 and across:
        return "antipodal pairs"
    if kept.shape[1] == 5:
        angle = torch.atan2(unit[1], unit[0]).sort().values
        gaps = torch.cat([angle.diff(), angle[:1] + 2 * math.pi - angle[-1:]])
        if bool(((gaps - 2 * math.pi / 5).abs() < math.radians(15)).all()):
            return "pentagon"
    return "other"


def phase(W: Float[Tensor, "instance 1 2"], *, threshold: float = 0.5) -> list[str]:
    """Name what a model with two features and one dimension does with them.

    Returns:
        Per instance ``"first only"``, ``"second only"``, ``"superposition"`` (both, in opposite
        directions), ``"neither"`` or ``"both the same way"``.

    Example:
        >>> phase(torch.tensor([[[1.0, -1.0]], [[1.0, 0.0]]]))
        ['superposition', 'first only']
    """
    names = {(True, False): "first only", (False, True): "second only", (False, False): "neither"}
    found = []
    for first, second in W[:, 0].tolist():
        both = "superposition" if first * second < 0 else "both the same way"
        found.append(names.get((abs(first) > threshold, abs(second) > threshold), both))
    return found


def aligned(W: Float[Tensor, "2 feature"]) -> Float[Tensor, "2 feature"]:
    """Return the features turned so that two pictures of one arrangement look alike.

    The first feature points up and the second lies to its right: a turn and at most one reflection,
    under which a toy model computes the same.

    Args:
        W: Two hidden dimensions, one column a feature; at least two features.

    Example:
        >>> turned = aligned(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        >>> turned.abs().round(decimals=6).tolist()
        [[0.0, 1.0], [2.0, 0.0]]
    """
    up = W[:, 0] / W[:, 0].norm().clamp_min(1e-12)
    turned = torch.stack([torch.stack([up[1], -up[0]]), up]) @ W
    side = torch.where(turned[0, 1] < 0, -1.0, 1.0)
    return torch.stack([side * turned[0], turned[1]])


def turned_onto(
    W: Float[Tensor, "hidden feature"], target: Float[Tensor, "hidden feature"]
) -> Float[Tensor, "hidden feature"]:
    r"""Return the features turned, and reflected if that helps, as close to ``target`` as they go.

    The rotation or reflection R that makes :math:`\lVert RW - T\rVert` smallest (orthogonal
    Procrustes); under it a toy model computes the same.

    Args:
        W: One column a feature.
        target: What to come close to.

    Source: Schönemann 1966, *A generalized solution of the orthogonal Procrustes problem*.

    Example:
        >>> turned_onto(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.eye(2)).round().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    u, _, vh = torch.linalg.svd(target @ W.T)
    return u @ vh @ W
