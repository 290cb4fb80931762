"""Figures of the stream's scale: growth, ratios, what is common, what rounding loses, removals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, SupportsFloat

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from .style import PALETTE, SEQUENTIAL, panels, styled, zero_line

if TYPE_CHECKING:
    from ..growth import GrowthFit
    from ..norms import StreamNorms


def _middle(values: Tensor) -> np.ndarray:
    return values.flatten(1).median(1).values.double().cpu().numpy()


def _band(ax: Axes, x: Sequence[float] | np.ndarray, values: Tensor, color: str) -> None:
    """The median over places and, as a band, their middle half."""
    flat = values.flatten(1).double().cpu().numpy()
    low, middle, high = np.quantile(flat, [0.25, 0.5, 0.75], axis=1)
    ax.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    ax.plot(x, middle, color=color)


def _say(
    ax: Axes, x: SupportsFloat, y: SupportsFloat, text: str, color: str, **options: object
) -> None:
    settings = {"xytext": (4, 4), "ha": "left"} | options
    ax.annotate(
        text, (float(x), float(y)), color=color, fontsize=9, textcoords="offset points", **settings
    )


@styled
def growth(
    start: Sequence[Float[Tensor, " depth"]],
    trained: Float[Tensor, " depth"],
    first: Float[Tensor, " depth"],
    laws: Mapping[str, Float[Tensor, " depth-1"]],
) -> Figure:
    """Draw the mean square length by depth, at random weights and after training.

    Args:
        start: One curve per set of random weights.
        trained: Median square length of the trained stream, position 0 left out.
        first: The same at position 0.
        laws: Name of a law to its fit of ``trained``, from depth 1 on.

    Returns:
        A figure of two panels: linear axis at random weights, log axis after training.
    """
    figure, (left, right) = panels(1, 2, height=3.4)
    depth = np.arange(len(trained))
    for curve in start:
        left.plot(depth, curve.cpu().numpy(), color=PALETTE["stream"], alpha=0.6, linewidth=1.2)
    left.set_ylabel("mean square length")
    right.plot(depth, first.cpu().numpy(), color=PALETTE["position 0"])
    right.plot(depth, trained.cpu().numpy(), color=PALETTE["stream"])
    last = len(depth) - 1
    styles = zip(laws.items(), (":", "--"), (PALETTE["attn"], PALETTE["mlp"]), strict=True)
    for (name, fit), line, color in styles:
        right.plot(depth[1:], fit.cpu().numpy(), line, color=color, linewidth=1.4)
        at, shift = (24, (0, -13)) if float(fit[-1]) < float(trained[-1]) / 4 else (5, (0, -20))
        _say(right, at, float(fit[at - 1]), name, color, xytext=shift)
    right.set_yscale("log")
    _say(right, 14, float(first[14]), "position 0", PALETTE["position 0"])
    _say(right, last, float(trained[-1]), "other positions", PALETTE["stream"], ha="right",
         xytext=(-18, 2))  # fmt: skip
    right.set_ylabel("square length (log axis)")
    for ax in (left, right):
        ax.set_xlabel("depth (layers run)")
    return figure


@styled
def updates(
    start: Sequence[StreamNorms],
    trained: StreamNorms,
    common: Float[Tensor, " write"],
    kinds: Sequence[str],
    layers: Sequence[int],
) -> Figure:
    """Draw how far squares fail to add up, and what of each write is the same at all tokens.

    Args:
        start: Norms at random weights, by sublayer, position 0 left out.
        trained: The same after training.
        common: Share of each write's mean square that is common to all tokens, after training.
        kinds: The kind of each write.
        layers: The block of each write.

    Returns:
        A figure of two panels.
    """
    figure, (left, right) = panels(1, 2, height=3.4)
    depth = np.arange(len(trained.labels) + 1) / 2
    for one in start:
        excess = _middle(one.lengths.square() / one.sum_of_squares)
        left.plot(depth, excess, color=PALETTE["other"], linewidth=1.2)
    excess = _middle(trained.lengths.square() / trained.sum_of_squares)
    left.plot(depth, excess, color=PALETTE["stream"])
    left.axhline(1, color=PALETTE["other"], linewidth=0.8, linestyle=":")
    _say(left, depth[-1], 1, "random weights", PALETTE["other"], ha="right", xytext=(0, -14))
    place = int(0.75 * len(depth))
    _say(left, depth[place], excess[place], "trained", PALETTE["stream"], ha="right")
    left.set_ylabel("square length over sum of squares")
    left.set_xlabel("depth (layers run)")
    for kind, name in (("attn", "attention"), ("mlp", "MLP")):
        chosen = [i for i, one in enumerate(kinds) if one == kind]
        right.plot([layers[i] for i in chosen], common[chosen].cpu().numpy(), "o-",
                   color=PALETTE[kind], ms=3.5, linewidth=1, label=name)  # fmt: skip
    right.set_ylim(0, 1.03)
    right.set_ylabel("share common to all tokens")
    right.set_xlabel("layer")
    right.legend(fontsize=9, loc="upper center")
    return figure


@styled
def ratios(start: Sequence[StreamNorms], trained: StreamNorms) -> Figure:
    """Draw each layer's write relative to the stream that it finds.

    Args:
        start: Norms at random weights, by layer.
        trained: The same after training.

    Returns:
        A figure of two panels, from layer 1 on: other positions with a band over places, linear
        axis; position 0, log axis.
    """
    figure, (left, right) = panels(1, 2, height=3.2, width_ratios=(1.4, 1))
    layers = np.array(trained.layers)[1:]
    for one in start:
        left.plot(layers, _middle(one.later.ratio[1:]), color=PALETTE["other"], linewidth=1.2)
    _band(left, layers, trained.later.ratio[1:], PALETTE["stream"])
    left.set_ylim(bottom=0)
    _say(left, layers[1], _middle(start[0].later.ratio[2:3])[0], "random weights", PALETTE["other"])
    _say(left, layers[-6], _middle(trained.later.ratio[-6:-5])[0], "trained", PALETTE["stream"],
         ha="right", xytext=(-4, 8))  # fmt: skip
    left.set_ylabel("write over stream")
    right.plot(layers, _middle(trained.first.ratio[1:]), color=PALETTE["position 0"])
    right.set_yscale("log")
    right.set_ylabel("write over stream, position 0 (log axis)")
    for ax in (left, right):
        ax.set_xlabel("layer")
    return figure


@styled
def over_training(profiles: Mapping[int, StreamNorms]) -> Figure:
    """Draw the length of a small model's stream after each write, at steps of its training.

    Args:
        profiles: Training step to the norms by sublayer.

    Returns:
        A figure of two panels, position 0 in the second.
    """
    figure, axes = panels(1, 2, height=3.2, sharey=True)
    shades = mpl.colormaps[SEQUENTIAL](np.linspace(0, 0.9, len(profiles)))
    some = next(iter(profiles.values()))
    names = ["start", *(label.removesuffix("_out").replace("_", " ") for label in some.labels)]
    for (step, norms), shade in zip(profiles.items(), shades, strict=True):
        for ax, part in zip(axes, (norms.later, norms.first), strict=True):
            ax.plot(_middle(part.lengths), "o-", color=shade, ms=3, label=f"step {step}")
    for ax, name in zip(axes, ("other positions", "position 0"), strict=True):
        ax.set_xticks(range(len(names)), names, rotation=60, fontsize=8)
        ax.set_yscale("log")
        ax.set_xlabel(f"after the write ({name})")
    axes[0].set_ylabel("length of the stream (log axis)")
    axes[1].spines["bottom"].set_color(PALETTE["position 0"])
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=6, fontsize=8
    )
    return figure


@styled
def rounding(losses: Mapping[str, Float[Tensor, "update batch pos"]]) -> Figure:
    """Draw the share of every write that rounding keeps from the stream, position 0 apart.

    Args:
        losses: Name of a number format to the shares at all positions, the first of them 0.

    Returns:
        A figure with one panel per format.
    """
    figure, axes = panels(1, len(losses), height=3.2, sharey=True)
    for ax, (name, loss) in zip(axes, losses.items(), strict=True):
        depth = np.arange(len(loss)) / 2
        _band(ax, depth, loss[:, :, 1:].clamp(min=1e-5), PALETTE["stream"])
        ax.plot(depth, _middle(loss[:, :, 0].clamp(min=1e-5)), color=PALETTE["position 0"])
        ax.set_yscale("log")
        ax.set_xlabel(f"layer ({name})")
    axes[0].set_ylabel("share of the write lost (log axis)")
    _say(axes[0], depth[len(depth) // 2], 1, "position 0", PALETTE["position 0"], xytext=(0, 2))
    _say(axes[0], depth[len(depth) // 2], _middle(losses[next(iter(losses))][:, :, 1:])[30],
         "other positions", PALETTE["stream"], xytext=(0, -22))  # fmt: skip
    return figure


@styled
def removals(
    kl: Mapping[str, float], kinds: Sequence[str], split: Mapping[str, tuple[float, float]]
) -> Figure:
    """Draw what removing each branch costs, and where it acts for those that cost most.

    Args:
        kl: Label of a write to the median KL to the whole model, in nats.
        kinds: The kind of each.
        split: Label to the KL when it is removed at position 0 only, and everywhere else only.

    Returns:
        A figure of two panels, log axes.
    """
    figure, (left, right) = panels(1, 2, height=3.4, width_ratios=(1.5, 1))
    values, labels = np.array(list(kl.values())), list(kl)
    for kind, name in (("attn", "attention"), ("mlp", "MLP")):
        chosen = [i for i, one in enumerate(kinds) if one == kind]
        left.plot([i / 2 for i in chosen], values[chosen], "o", color=PALETTE[kind], ms=4,
                  label=name)  # fmt: skip
    for i in values.argsort()[-4:]:
        _say(left, i / 2, values[i], labels[i].removesuffix("_out").replace("_", " "),
             PALETTE[kinds[i]], xytext=(5, -3))  # fmt: skip
    left.set_yscale("log")
    left.set_ylabel("KL to the whole model (nats, log axis)")
    left.set_xlabel("layer of the removed branch")
    left.legend(fontsize=9, loc="upper right")
    left.set_xlim(-1, len(values) / 2 + 3)
    places = np.arange(len(split))
    at_first, elsewhere = np.array(list(split.values())).T
    right.barh(places + 0.15, at_first, height=0.2, color=PALETTE["position 0"])
    right.barh(places - 0.15, elsewhere, height=0.2, color=PALETTE["stream"])
    names = [label.removesuffix("_out").replace("_", " ") for label in split]
    right.set_yticks(places, names)
    right.set_xscale("log")
    right.set_xlim(left=0.01)  # what costs less has no bar
    right.set_xlabel("KL, removed at position 0 only\nor elsewhere only (log axis)")
    return figure


@styled
def laws(fits: Mapping[str, GrowthFit]) -> Figure:
    """Draw how well each law does on each scale.

    Args:
        fits: What was fitted to its fits.

    Returns:
        A figure of two panels, one per scale; 1 is a perfect fit.
    """
    figure, axes = panels(1, 2, height=2.6, sharey=True)
    places = np.arange(len(fits))
    for ax, scale in zip(axes, ("y", "log y"), strict=True):
        linear = [fit.r2_linear[scale] for fit in fits.values()]
        other = [fit.r2_exponential[scale] for fit in fits.values()]
        ax.barh(places + 0.2, linear, height=0.38, color=PALETTE["attn"], label="linear")
        ax.barh(places - 0.2, other, height=0.38, color=PALETTE["mlp"], label="exponential")
        ax.set_yticks(places, list(fits))
        ax.set_xlim(0, 1.03)
        ax.set_xticks([0, 0.5, 1])
        ax.set_xlabel("R² on the square length" if scale == "y" else "R² on its logarithm")
        zero_line(ax, vertical=True)
    axes[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
