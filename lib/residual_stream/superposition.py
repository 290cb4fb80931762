r"""Toy models of superposition: more features than dimensions, trained many at once.

A toy model squeezes n features through m dimensions and reads them out again,

.. math:: h = Wx,\qquad x' = \mathrm{ReLU}(W^\top h + b),\qquad
          L = \mathbb E\Big[\tfrac1n\sum_i I_i\,(x_i - x'_i)^2\Big],

where feature i is 0 with probability S (the sparsity) and else uniform on [0, 1], and
:math:`I_i` is its importance. Models differ in sparsity, importance and seed; all of them are one
batched computation. Every instance draws its start and its data from a generator of its own, on
the CPU, so a batch gives the same models as a loop over single ones.

Source: Elhage et al. 2022, *Toy Models of Superposition*; the feature dimensionality is of its
section on geometry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .arrangements import aligned, feature_dimensionality, geometry, turned_onto

#: Samples on which models are compared, and where they are drawn from: the same for all.
COMPARED, COMPARED_SEED = 65_536, 2_022


@dataclass(frozen=True, kw_only=True)
class ToyRecipe:
    """How toy models are trained: Adam with a rate that falls linearly to zero.

    Attributes:
        steps: Optimiser steps.
        batch: Samples in a step.
        rate: Learning rate at the start.
    """

    steps: int = 2000
    batch: int = 128
    rate: float = 0.04

    def block(self, features: int) -> int:
        """Return how many steps' data are drawn at once."""
        return max(1, 16384 // (features * self.batch))


@dataclass(frozen=True, eq=False, repr=False)
class ToyModels:
    """Trained toy models, one per instance.

    Attributes:
        W: The features' directions in the hidden space, one a column.
        b: Bias of every feature.
        sparsity: S, the probability that a feature is 0.
        importance: Weight of every feature in the loss.
        loss: Loss on fresh data, drawn from the same uniform numbers for all.
        seeds: One seed an instance.
    """

    W: Float[Tensor, "instance hidden feature"]
    b: Float[Tensor, "instance feature"]
    sparsity: Float[Tensor, " instance"]
    importance: Float[Tensor, "instance feature"]
    loss: Float[Tensor, " instance"]
    seeds: tuple[int, ...]

    def represented(self, *, threshold: float = 0.5) -> Bool[Tensor, "instance feature"]:
        r"""Return which features are represented: :math:`\lVert W_i\rVert` above ``threshold``."""
        return self.W.norm(dim=1) > threshold

    def dimensionality(self) -> Float[Tensor, "instance feature"]:
        """Return every feature's share of a dimension: :func:`feature_dimensionality`."""
        return feature_dimensionality(self.W)

    def geometries(self) -> list[str]:
        """Return the geometry of every instance (two hidden dimensions only)."""
        return [geometry(weights) for weights in self.W]

    def aligned(self) -> ToyModels:
        """Return the same models turned alike in the plane; see :func:`aligned`."""
        return replace(self, W=torch.stack([aligned(weights) for weights in self.W]))

    def best_of(self, size: int) -> ToyModels:
        """Return, of every ``size`` neighbouring instances, the one with the lowest loss.

        Raises:
            ValueError: The number of instances is not a multiple of ``size``.
        """
        if size < 1 or len(self.W) % size:
            raise ValueError(f"ToyModels.best_of: {len(self.W)} instances do not divide by {size}")
        groups = torch.arange(len(self.W)).view(-1, size)
        best = self.loss.cpu().view(-1, size).argmin(1)
        return self.pick(groups.gather(1, best[:, None])[:, 0].tolist())

    def in_step(self, size: int, *, tolerance: float = 0.02) -> ToyModels:
        """Return one of every ``size`` neighbours so that the features move little between groups.

        Many arrangements are as good as each other: which features lie opposite is mostly chance.
        Of each group those within ``tolerance`` of its lowest loss may be taken; the path through
        the groups along which the features move least (the sum of squared distances, each model
        turned onto the one before) is returned, turned so; the first as :meth:`aligned` does.

        Args:
            size: Models in a group.
            tolerance: How far above the group's lowest loss, as a share of it.

        Raises:
            ValueError: As :meth:`best_of`.
        """
        self.best_of(size)  # its checks
        loss, weights = self.loss.cpu().view(-1, size), self.W.cpu()
        allowed = loss <= (1 + tolerance) * loss.min(1, keepdim=True).values
        members = [(size * i + row.nonzero()[:, 0]).tolist() for i, row in enumerate(allowed)]
        cost, paths = [0.0] * len(members[0]), [[m] for m in members[0]]
        for before, now in pairwise(members):
            steps = [
                [cost[i] + _moved(weights[a], weights[b]) for i, a in enumerate(before)]
                for b in now
            ]
            best = [min(range(len(before)), key=row.__getitem__) for row in steps]
            paths = [[*paths[i], member] for i, member in zip(best, now, strict=True)]
            cost = [row[i] for i, row in zip(best, steps, strict=True)]
        path = paths[min(range(len(paths)), key=cost.__getitem__)]
        turned = [aligned(weights[path[0]])]
        for member in path[1:]:
            turned.append(turned_onto(weights[member], turned[-1]))
        return replace(self.pick(path), W=torch.stack(turned))

    def pick(self, index: Sequence[int]) -> ToyModels:
        """Return the instances at ``index``, in that order."""
        names = ("W", "b", "sparsity", "importance", "loss")
        picked = {name: getattr(self, name)[list(index)] for name in names}
        return replace(self, **picked, seeds=tuple(self.seeds[i] for i in index))

    def __repr__(self) -> str:
        """One line: how many models of which shape."""
        count, hidden, features = self.W.shape
        return f"ToyModels({count} models, {features} features in {hidden} dimensions)"


def train_toys(
    *,
    features: int,
    hidden: int,
    sparsity: Sequence[float] | Float[Tensor, " instance"],
    importance: Float[Tensor, "instance feature"] | float = 1.0,
    seeds: Sequence[int] | None = None,
    recipe: ToyRecipe | None = None,
    device: str | torch.device = "cpu",
) -> ToyModels:
    r"""Train one toy model per sparsity, all at once.

    Args:
        features: n, the number of features.
        hidden: m, the number of dimensions.
        sparsity: S of every instance, in [0, 1).
        importance: Of every feature in every instance; one number r stands for :math:`I_i = r^i`.
        seeds: One per instance; 0, 1, 2, … if None.
        recipe: How to train; :class:`ToyRecipe`'s defaults if None.
        device: Where to train; the draws are made on the CPU.

    Returns:
        The trained models.

    Raises:
        ValueError: A sparsity outside [0, 1), or as many seeds or importances as there are not
            instances.

    Example:
        >>> toys = train_toys(features=5, hidden=2, sparsity=[0.0, 0.9], recipe=ToyRecipe(steps=10))
        >>> toys
        ToyModels(2 models, 5 features in 2 dimensions)
    """
    recipe = recipe or ToyRecipe()
    sparse = torch.as_tensor(sparsity, dtype=torch.float32)
    seeds = tuple(range(len(sparse))) if seeds is None else tuple(seeds)
    weight = _importance(importance, len(sparse), features)
    _require(sparse, seeds, features, hidden)
    draws = [torch.Generator().manual_seed(seed) for seed in seeds]
    W = torch.stack([torch.randn(hidden, features, generator=g) for g in draws]) / features**0.5
    W = W.to(device).requires_grad_()  # [instance, hidden, feature]
    b = torch.zeros(len(seeds), features, device=device, requires_grad=True)
    optimiser = torch.optim.Adam([W, b], lr=recipe.rate)
    weight = weight.to(device)
    taken, block = 0, recipe.block(features)
    while taken < recipe.steps:
        data = _draw(draws, sparse, block, features, recipe.batch).to(device)
        for x in data.unbind(1)[: recipe.steps - taken]:  # [instance, feature, sample]
            optimiser.param_groups[0]["lr"] = recipe.rate * (1 - taken / recipe.steps)
            optimiser.zero_grad()
            # A sum over instances: each gets its own gradient, and Adam works entry by entry.
            _loss(W, b, weight, x).sum().backward()
            optimiser.step()
            taken += 1
    with torch.no_grad():
        loss = _compared(W, b, weight, sparse)
    return ToyModels(W.detach(), b.detach(), sparse.to(device), weight, loss, seeds)


def draw_features(
    generator: torch.Generator, *, sparsity: float, steps: int, features: int, batch: int
) -> Float[Tensor, "{steps} {features} {batch}"]:
    """Return the data of one toy model: each feature 0 with probability S, else uniform on [0, 1].

    Args:
        generator: A CPU generator; it is advanced.
        sparsity: S.
        steps: Batches to draw.
        features: n.
        batch: Samples in a batch.

    Example:
        >>> x = draw_features(
        ...     torch.Generator().manual_seed(0), sparsity=0.9, steps=10, features=5, batch=100
        ... )
        >>> round(float((x == 0).float().mean()), 1)
        0.9
    """
    # One uniform number a feature: below 1 − S it is, rescaled, the feature's uniform value.
    uniform = torch.rand(steps, features, batch, generator=generator)
    return (uniform / (1 - sparsity)) * (uniform < 1 - sparsity)


def _loss(W: Tensor, b: Tensor, importance: Tensor, x: Tensor) -> Tensor:
    hidden = W @ x  # [instance, hidden, sample]
    out = torch.relu(W.mT @ hidden + b[..., None])  # [instance, feature, sample]
    return ((x - out).square() * importance[..., None]).mean(dim=(1, 2))


def _compared(W: Tensor, b: Tensor, importance: Tensor, sparsity: Tensor) -> Tensor:
    """Return the loss on data that differ between models in nothing but their sparsity."""
    blocks = COMPARED // 4096
    draw = torch.Generator().manual_seed(COMPARED_SEED)
    total = torch.zeros(len(W), device=W.device)
    on = (1 - sparsity)[:, None, None]
    for uniform in torch.rand(blocks, W.shape[2], 4096, generator=draw):
        x = (uniform / on) * (uniform < on)  # as draw_features makes them
        total += _loss(W, b, importance, x.to(W.device))
    return total / blocks


def _moved(before: Tensor, now: Tensor) -> float:
    return float((turned_onto(now, before) - before).square().sum())


def _draw(
    draws: list[torch.Generator], sparsity: Tensor, steps: int, features: int, batch: int
) -> Tensor:
    shape = {"steps": steps, "features": features, "batch": batch}
    each = zip(draws, sparsity.tolist(), strict=True)
    return torch.stack([draw_features(g, sparsity=s, **shape) for g, s in each])


def _importance(importance: Tensor | float, instances: int, features: int) -> Tensor:
    if isinstance(importance, Tensor):
        if importance.shape != (instances, features):
            raise ValueError(
                f"train_toys: importance is {tuple(importance.shape)}; pass [instance, feature] = "
                f"({instances}, {features}), or one number r for I_i = r^i"
            )
        return importance.float()
    return (float(importance) ** torch.arange(features)).repeat(instances, 1)


def _require(sparsity: Tensor, seeds: Sequence[int], features: int, hidden: int) -> None:
    if features < 1 or hidden < 1:
        raise ValueError(
            f"train_toys: features = {features}, hidden = {hidden}; both must be at least 1"
        )
    if sparsity.ndim != 1 or len(sparsity) == 0 or bool(((sparsity < 0) | (sparsity >= 1)).any()):
        raise ValueError("train_toys: sparsity must be a non-empty list of numbers in [0, 1)")
    if len(seeds) != len(sparsity):
        raise ValueError(
            f"train_toys: {len(seeds)} seeds for {len(sparsity)} instances; pass one each"
        )
