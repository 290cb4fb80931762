"""Figures of toy models of superposition: arrangements, dimensionalities, the phase diagram."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

from ..pairs import sharing_pays
from ..superposition import ToyModels
from .geometry import shades
from .style import PALETTE, panels, styled


@styled
def toy_features(toys: ToyModels, *, columns: int = 4) -> Figure:
    """Draw the features of toy models with two hidden dimensions, one panel a model.

    Args:
        toys: At least one model; arrows are coloured by importance.
        columns: Panels in a row.

    Returns:
        Panels in the order of the models, each with its sparsity and geometry.
    """
    count = len(toys.W)
    rows = -(-count // columns)
    figure, axes = panels(rows, columns, width=1.9 * columns, height=2.2 * rows)
    colors = shades(toys.W.shape[2])
    for index, ax in enumerate(axes):
        ax.set_axis_off()
        if index >= count:
            continue
        circle = np.linspace(0, 2 * math.pi, 100)
        ax.plot(np.cos(circle), np.sin(circle), color=PALETTE["other"], linewidth=0.5)
        for (x, y), color in zip(toys.W[index].T.cpu().tolist(), colors, strict=True):
            ax.plot([0, x], [0, y], color=color, linewidth=1.6)
            ax.plot(x, y, "o", color=color, markersize=5)
        ax.set_xlim(-1.35, 1.35)
        ax.set_ylim(-1.35, 1.35)
        ax.set_aspect("equal")
        name = toys.geometries()[index]
        sparsity = float(toys.sparsity[index])
        ax.text(0, -1.33, f"S = {sparsity:.2f}\n{name}", ha="center", va="top", fontsize=8)
    return figure


@styled
def dimensionalities(toys: ToyModels) -> Figure:
    """Draw every feature's dimensionality by sparsity, with the values of simple arrangements.

    Args:
        toys: Models over a range of sparsities.

    Returns:
        One axis; a point a represented feature.
    """
    figure, (ax,) = panels(height=3.4)
    values, kept = toys.dimensionality().cpu(), toys.represented().cpu()
    x = (1 / (1 - toys.sparsity.cpu()))[:, None].expand_as(values)
    ax.plot(
        x[kept].cpu().numpy(), values[kept].cpu().numpy(), ".", color=shades(1)[0], alpha=0.4, ms=4
    )
    for level, name in ((1, "alone"), (0.5, "antipodal pair"), (0.4, "pentagon")):
        ax.axhline(level, color=PALETTE["other"], linewidth=0.8, zorder=0)
        ax.text(float(x.max()), level, name, ha="right", va="bottom", fontsize=8)
    ax.set_xscale("log")
    ax.set_ylim(0, 1.1)
    ax.set_xlabel("1/(1 − S): sparser to the right (log scale)")
    ax.set_ylabel("dimensions a feature has to itself")
    return figure


@styled
def phase_diagram(
    outcomes: Sequence[Sequence[str]], *, importances: Sequence[float], densities: Sequence[float]
) -> Figure:
    """Draw what a model with two features and one dimension does, by importance and density.

    Args:
        outcomes: One row a density, one column an importance, as
            :func:`~residual_stream.arrangements.phase` names them.
        importances: Relative importance of the second feature.
        densities: 1 − S.

    Returns:
        A map with three colours, and as lines where the closed forms of
        :mod:`~residual_stream.pairs` change places.
    """
    figure, (ax,) = panels(width=5.8, height=4.4)
    names = ("first only", "superposition", "second only")
    colors = dict(zip(names, shades(3), strict=True))
    for row, density in zip(outcomes, densities, strict=True):
        for name, importance in zip(row, importances, strict=True):
            color = colors.get(name, PALETTE["other"])
            ax.plot(importance, density, "s", color=color, markersize=9)
    shared = torch.linspace(min(densities), 4 / 7, 200)
    for importance in (sharing_pays(shared), 1 / sharing_pays(shared)):
        inside = (importance >= min(importances)) & (importance <= max(importances))
        ax.plot(
            importance[inside].cpu().numpy(), shared[inside].cpu().numpy(), color=PALETTE["norm"]
        )
    ax.plot([1, 1], [4 / 7, max(densities)], color=PALETTE["norm"], label="closed form")
    for name, color in colors.items():
        ax.plot([], [], "s", color=color, label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("importance of the second feature over the first (log scale)")
    ax.set_ylabel("probability that a feature is on, 1 − S (log scale)")
    figure.legend(loc="outside upper center", ncols=4, fontsize=8)
    return figure
