"""Figures of the residual variants: gradients and growth at the start, and what training makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from .style import PALETTE, panels, styled, zero_line

#: One look per variant in every figure: colour and line.
LOOKS: dict[str, tuple[str, str]] = {
    "pre-LN": (PALETTE["attn"], "-"),
    "GPT-2": (PALETTE["attn"], "--"),
    "post-LN": (PALETTE["mlp"], "-"),
    "DeepNorm": (PALETTE["mlp"], "--"),
    "LayerScale": (PALETTE["norm"], "-"),
    "ReZero": (PALETTE["embed"], "-"),
    "Fixup": (PALETTE["embed"], "--"),
    "residual": (PALETTE["stream"], ":"),
}


@styled
def by_depth(
    curves: Mapping[str, Float[Tensor, "seed depth"]],
    depths: Sequence[int],
    *,
    what: str,
    top: float | int | None = None,
) -> Figure:
    """Draw a quantity at the start of training against the depth of the stack, on log axes.

    Args:
        curves: Variant to the values, one row per seed.
        depths: Blocks of each stack.
        what: The quantity, with its unit.
        top: Upper end of the axis, if a curve leaves the picture.

    Returns:
        A figure with a line of means and a dot per seed for every variant.
    """
    figure, (ax,) = panels(height=3.4)
    for name, values in curves.items():
        color, line = LOOKS[name]
        ax.plot(depths, values.mean(0).cpu().numpy(), line, color=color, label=name)
        for row in values:
            ax.plot(depths, row.cpu().numpy(), ".", color=color, ms=4)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_ylim(top=top)
    ax.set_xticks(depths, [str(depth) for depth in depths])
    ax.set_xlabel("layers (log axis)")
    ax.set_ylabel(f"{what} (log axis)")
    ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), handlelength=2.6)
    return figure


@styled
def cures(runs: pd.DataFrame, *, best: float, top: float | int) -> Figure:
    """Draw the last loss of every run against the learning rate, one panel per depth.

    Args:
        runs: Rows with ``variant``, ``n_layers``, ``rate`` and ``last``.
        best: The loss that nobody can go below.
        top: What a run scores that did not end, or ended above it: drawn at the upper edge.

    Returns:
        A figure with one panel per depth, log axis for the learning rate.
    """
    depths = sorted(runs.n_layers.unique())
    figure, axes = panels(1, len(depths), height=3.4, sharey=True)
    for ax, depth in zip(axes, depths, strict=True):
        for name, (color, line) in LOOKS.items():
            some = runs[(runs.variant == name) & (runs.n_layers == depth)].sort_values("rate")
            if len(some):
                last = some["last"].astype(float).fillna(top).clip(upper=top)
                ax.plot(some.rate, last, line, marker=".", color=color, label=name)
        ax.axhline(best, color=PALETTE["other"], linestyle=":", linewidth=1)
        ax.set_xscale("log")
        ax.set_xlabel(f"learning rate (log axis)\n{depth} layers")
    axes[0].set_ylabel("loss after training (nats)")
    axes[-1].legend(
        fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), handlelength=3.4, markerscale=0.6
    )
    return figure


@styled
def factors(
    depths: Sequence[int],
    skip: Sequence[float],
    weights: Sequence[float],
    learned: Mapping[str, Sequence[float]],
) -> Figure:
    """Draw DeepNorm's two constants by depth, and the factors that ReZero learned.

    Args:
        depths: Depths of the left panel.
        skip: The factor on the skip at each.
        weights: The factor on the weights at each.
        learned: Name of a run to its branches' factors, from the bottom up.

    Returns:
        A figure of two panels.
    """
    figure, (left, right) = panels(1, 2, height=3.2)
    left.plot(depths, skip, color=PALETTE["stream"])
    left.plot(depths, weights, color=PALETTE["mlp"])
    left.axhline(1, color=PALETTE["other"], linewidth=0.8, linestyle=":")
    middle = len(depths) // 2
    for values, text, shift in ((skip, "α, on the skip", 6), (weights, "β, on the weights", -16)):
        left.annotate(
            text, (depths[middle], values[middle]), xytext=(0, shift), ha="right",
            textcoords="offset points", fontsize=9,
        )  # fmt: skip
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel("layers (log axis)")
    left.set_ylabel("factor (log axis)")
    for (name, values), mark in zip(learned.items(), ("o", "s"), strict=False):
        size = np.abs(values)
        right.plot(np.arange(0, len(values), 2) / 2, size[::2], mark, color=PALETTE["attn"], ms=4,
                   label=f"attention, {name}")  # fmt: skip
        right.plot(np.arange(1, len(values), 2) / 2, size[1::2], mark, color=PALETTE["mlp"], ms=4,
                   label=f"MLP, {name}")  # fmt: skip
    zero_line(right)
    right.set_xlabel("layer")
    right.set_ylabel("learned factor, size")
    right.set_ylim(-0.01, 1.45 * max(np.abs(list(learned.values())).max(), 1e-3))
    right.legend(fontsize=8, ncols=1, loc="upper right")
    return figure


@styled
def shapes(
    curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    *,
    best: Mapping[str, float],
    stride: int,
) -> Figure:
    """Draw training curves of stacks of several shapes, one panel per task.

    Args:
        curves: Task to shape to one curve per seed.
        best: Task to the loss that nobody can go below.
        stride: Steps between two values of a curve.

    Returns:
        A figure with one panel per task.
    """
    figure, axes = panels(1, len(curves), height=3.4)
    looks = (
        (PALETTE["attn"], "-"), (PALETTE["stream"], "-"), (PALETTE["mlp"], "-"),
        (PALETTE["mlp"], "--"), (PALETTE["mlp"], ":"),
    )  # fmt: skip
    for ax, (task, by_shape) in zip(axes, curves.items(), strict=True):
        for (name, seeds), (color, line) in zip(by_shape.items(), looks, strict=False):
            for number, values in enumerate(seeds):
                steps = stride * (np.arange(len(values)) + 1)
                label = name if number == 0 else None
                ax.plot(steps, values, line, color=color, linewidth=1.3, label=label)
        ax.axhline(best[task], color=PALETTE["other"], linestyle=":", linewidth=1)
        ax.set_xlabel(f"training step ({task})")
    axes[0].set_ylabel("loss (nats)")
    axes[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
