"""Figures of chapter 2: packing, the shared divisor, subspaces, the two shocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import Tensor

from ..divisor import DivisorEffect
from ..packing import PackingTable
from ..report import number
from ..subspaces import Bandwidth
from .style import PALETTE, SEQUENTIAL, panels, styled, zero_line


def shades(count: int) -> list[tuple[float, float, float, float]]:
    """Return colours for things that have none in the palette: dark to light, also in print."""
    return [tuple(color) for color in colormaps[SEQUENTIAL](np.linspace(0.05, 0.8, count))]


@styled
def packing_bounds(
    table: PackingTable, *, simulated: Mapping[int, Mapping[float, int]] | None = None
) -> Figure:
    """Draw how many ε-orthogonal directions there are, by width and ε: four statements.

    Args:
        table: Counts over a range of ε, for two or more widths.
        simulated: For each width, ε and how many random directions were drawn before two came
            closer than that.

    Returns:
        One panel a width, counts on a log axis.
    """
    widths = sorted({row.width for row in table.rows})
    figure, axes = panels(1, len(widths), sharey=True, width=8.4, height=3.4)
    lines = (
        ("a random draw: √½·exp(dε²/4)", "union", ":"),
        ("a random draw, exact", "random", "-"),
        ("some set exists", "exists", "--"),
        ("no set has more (Welch)", "welch", "-."),
    )
    for ax, width in zip(axes, widths, strict=True):
        rows = [row for row in table.rows if row.width == width]
        epsilons = [row.epsilon for row in rows]
        for (label, name, style), color in zip(lines, shades(len(lines)), strict=True):
            powers = [getattr(row, name) / math.log(10) for row in rows]
            ax.plot(epsilons, powers, style, color=color, label=label)
        ax.axhline(math.log10(width), color=PALETTE["other"], linewidth=0.8, zorder=0)
        for epsilon, count in (simulated or {}).get(width, {}).items():
            ax.plot(epsilon, math.log10(count), "o", color=PALETTE["stream"], markersize=4)
        ax.set_ylim(0, 24)
        ax.set_xlabel(f"largest |cos| allowed, ε\n(d = {number(width, 5)})", fontsize=9)
    axes[0].set_ylabel("number of directions (power of ten)")
    widest = max(row.epsilon for row in table.rows)
    axes[0].text(widest, math.log10(widths[0]), "a basis: d", ha="right", va="bottom", fontsize=7)
    names = axes[0].get_legend_handles_labels()
    figure.legend(*names, loc="outside upper center", ncols=4, fontsize=7)
    return figure


@styled
def largest_cosines(
    running: Mapping[int, Float[Tensor, " count"]], medians: Mapping[int, Mapping[int, float]]
) -> Figure:
    """Draw the largest cosine among N random directions, simulated and predicted, by width.

    Args:
        running: For each width, :func:`~residual_stream.packing.running_max_cosine` of one draw.
        medians: For each width and N, :func:`~residual_stream.packing.median_max_cosine`.

    Returns:
        One log axis; dashed lines are the predicted medians, steps the draws.
    """
    figure, (ax,) = panels(height=3.4)
    for (width, values), color in zip(running.items(), shades(len(running)), strict=True):
        ax.step(
            range(1, len(values) + 1), values.cpu().numpy(), where="post", color=color, linewidth=1
        )
        ax.plot(list(medians[width]), list(medians[width].values()), "--", color=color)
        ax.text(
            len(values), float(values[-1]), f" d = {number(width, 5)}", color=color, va="center"
        )
    ax.set_xscale("log")
    ax.set_xlabel("number of random directions N (log scale)")
    ax.set_ylabel("largest |cos| among them")
    ax.set_ylim(0, None)
    return figure


@styled
def divisor_law(effects: Sequence[DivisorEffect]) -> Figure:
    """Draw what is left of a reading after an orthogonal write, by the write's relative size.

    Args:
        effects: Measurements at several sizes.

    Returns:
        One axis: the law as a line, every position's measurement as a point.
    """
    figure, (ax,) = panels(height=3.0, width=5.4)
    largest = max(effect.relative for effect in effects)
    a = np.linspace(0, largest, 200)
    ax.plot(a, 1 / np.sqrt(1 + a**2), color=PALETTE["norm"], label="1/√(1 + a²)")
    for effect in effects:
        points = effect.measured.cpu().numpy()
        ax.plot(np.full(len(points), effect.relative), points, "o", color=PALETTE["stream"], ms=3)
    ax.axhline(1, color=PALETTE["other"], linewidth=0.8, zorder=0)
    ax.text(largest, 1, "untouched", ha="right", va="bottom", color=PALETTE["other"], fontsize=8)
    ax.set_ylim(0, 1.1)
    ax.set_xlabel("size of the orthogonal write relative to the stream, a")
    ax.set_ylabel("what is left of the reading (factor)")
    ax.legend()
    return figure


@styled
def spectra(bandwidths: Mapping[str, Bandwidth], *, colors: Mapping[str, str]) -> Figure:
    """Draw how fast the leading directions fill up: share of squared length by number.

    Args:
        bandwidths: Sets of vectors by name.
        colors: A colour for each name, or the palette's name for one.

    Returns:
        One axis with a line a set.
    """
    figure, (ax,) = panels(height=3.4)
    for name, found in bandwidths.items():
        power = found.singular_values.double().square()
        share = (power.cumsum(0) / power.sum()).cpu().numpy()
        color = PALETTE.get(colors[name], colors[name])
        label = f"{name} (participation ratio {found.participation:.0f})"
        ax.plot(range(1, len(share) + 1), share, color=color, label=label)
    ax.set_xlabel("leading directions counted")
    ax.set_ylabel("share of the squared length")
    ax.set_ylim(0, 1.02)
    ax.legend(fontsize=8)
    return figure


@styled
def overlap_map(
    overlap: Float[Tensor, "row column"], *, chance: float, rows: str, columns: str
) -> Figure:
    """Draw the mean overlap of every pair of blocks, in multiples of what chance gives.

    Args:
        overlap: Mean overlap, by block.
        chance: The overlap of random subspaces of that rank.
        rows: What a row is, for the axis.
        columns: What a column is.

    Returns:
        A heat map with its colour bar.
    """
    figure, (ax,) = panels(width=5.2, height=4.2)
    image = ax.imshow((overlap / chance).cpu().numpy(), origin="lower", vmin=0.5, vmax=2)
    ax.set_xlabel(columns)
    ax.set_ylabel(rows)
    figure.colorbar(image, ax=ax, label="overlap / overlap of random subspaces", extend="max")
    return figure


@styled
def cosine_histograms(samples: Mapping[str, Float[Tensor, " pair"]], *, width: int) -> Figure:
    """Draw the cosines of pairs of vectors against those of random directions.

    Args:
        samples: Cosines by the name of what was compared; at most four.
        width: d, for the random curve of standard deviation 1/√d.

    Returns:
        One axis of densities.
    """
    figure, (ax,) = panels(height=3.2)
    edges = np.linspace(-0.6, 1, 161)
    middle = (edges[1:] + edges[:-1]) / 2
    normal = np.exp(-(middle**2) * width / 2) * math.sqrt(width / (2 * math.pi))
    ax.fill_between(middle, normal, color=PALETTE["other"], alpha=0.35, label="random directions")
    colors = [PALETTE[name] for name in ("embed", "norm", "mlp", "stream")]
    for (name, values), color in zip(samples.items(), colors, strict=False):
        density = np.histogram(values.cpu().numpy(), edges, density=True)[0]
        ax.plot(middle, density, color=color, label=name)
    ax.set_xlabel("cosine of two vectors")
    ax.set_ylabel("density")
    ax.legend(fontsize=8)
    return figure


@styled
def two_shocks(
    kurtosis: Mapping[str, Float[Tensor, " write"]],
    losses: Mapping[str, Float[Tensor, " coordinate"]],
) -> Figure:
    """Draw the two shocks side by side: rotate every coordinate, and zero one.

    Args:
        kurtosis: Median kurtosis of the stream after each write: ``"as trained"``, ``"rotated"``.
        losses: What zeroing single coordinates costs, in nats: the same names; not as many of the
            one as of the other need have been tried.

    Returns:
        Two panels: kurtosis by depth, and the losses in descending order.
    """
    figure, (left, right) = panels(1, 2, height=3.4)
    for name, color in (("as trained", PALETTE["stream"]), ("rotated", shades(3)[2])):
        left.plot(kurtosis[name].cpu().numpy(), color=color, label=name)
        worst_first = losses[name].sort(descending=True).values.cpu().numpy()
        share = np.arange(1, len(worst_first) + 1) / len(worst_first)
        right.plot(share, worst_first, "o-", color=color, ms=3, label=name)
    left.axhline(3, color=PALETTE["other"], linewidth=0.8, zorder=0)
    left.set_yscale("log")
    left.set_xlabel("writes so far")
    left.set_ylabel("kurtosis of the stream (log scale)")
    left.text(0, 2.9, "Gaussian: 3", va="top", fontsize=8, color=PALETTE["other"])
    left.set_ylim(2, None)
    left.legend()
    zero_line(right)
    right.set_xscale("log")
    right.set_xlabel("share of coordinates, worst first (log scale)")
    right.set_ylabel("loss added (nats per token)")
    return figure
