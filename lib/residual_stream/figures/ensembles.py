"""Figures of virtual ensembles: paths, formulas, deletions, and the one number behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from .style import PALETTE, panels, styled, zero_line

if TYPE_CHECKING:
    from ..deletion import Departure
    from ..paths import PathExpansion


@styled
def path_lengths(shares: Sequence[float]) -> Figure:
    """Draw how many paths go through how many branches.

    Args:
        shares: Share of all paths by the number of branches that they enter, from 0.

    Returns:
        A bar chart, the paths that bypass more than half of the branches in a lighter colour.
    """
    figure, (ax,) = panels(height=2.8)
    lengths, half = np.arange(len(shares)), (len(shares) - 1) / 2
    colors = [
        PALETTE["other"] if n < half else PALETTE["stream"] if n > half else PALETTE["norm"]
        for n in lengths
    ]
    ax.bar(lengths, shares, color=colors, width=0.85)
    labels = (
        (0.02, "bypass most branches", PALETTE["other"]),
        (0.78, "enter most branches", PALETTE["stream"]),
    )
    for place, text, color in labels:
        ax.text(place, 0.8, text, color=color, fontsize=9, transform=ax.transAxes)
    ax.set_xlabel("branches on the path")
    ax.set_ylabel("share of all paths")
    return figure


@styled
def formulas(errors: Mapping[str, Float[Tensor, "layer place"]], layers: Sequence[int]) -> Figure:
    """Draw how far each formula for two layers is from what the model does.

    Args:
        errors: By formula the error of the update, over the update's own length.
        layers: The lower of the two layers.

    Returns:
        Medians and middle halves by layer, log axis, with the error of leaving the update out.
    """
    figure, (ax,) = panels(height=3.2)
    for (name, values), key in zip(errors.items(), ("mlp", "attn", "norm"), strict=False):
        low, middle, high = np.quantile(values.double().cpu().numpy(), [0.25, 0.5, 0.75], axis=1)
        ax.fill_between(layers, low, high, color=PALETTE[key], alpha=0.2, linewidth=0)
        ax.plot(layers, middle, color=PALETTE[key], label=name)
    ax.axhline(1, color=PALETTE["other"], linestyle="--", linewidth=1)
    ax.annotate(
        "error of writing nothing at all", (layers[len(layers) // 2], 1), xytext=(0, -11),
        ha="center", color=PALETTE["other"], textcoords="offset points", fontsize=9,
    )  # fmt: skip
    ax.set_yscale("log")
    ax.set_xlabel("the lower of the two layers")
    ax.set_ylabel("error / length of the update (log axis)")
    ax.legend(fontsize=9)
    return figure


@styled
def deletions(runs: Mapping[str, Departure]) -> Figure:
    """Draw what each layer's deletion costs, for several ways to delete.

    Args:
        runs: By what was deleted, in words.

    Returns:
        One row of bars per way: mean KL by layer, log axis, the dearest layers named.
    """
    figure, axes = panels(len(runs), 1, height=1.5 * len(runs) + 0.6, sharex=True, sharey=True)
    for ax, (name, run) in zip(axes, runs.items(), strict=True):
        kl = run.kl.double().cpu().clamp(min=1e-5).cpu().numpy()
        color = PALETTE["position 0"] if "only" in name else PALETTE["stream"]
        ax.bar(np.arange(len(kl)), kl, color=color, width=0.8)
        for layer in np.argsort(kl)[-4:]:
            ax.annotate(
                str(layer), (layer, kl[layer]), xytext=(0, 1), ha="center", fontsize=8,
                textcoords="offset points",
            )  # fmt: skip
        ax.text(0.99, 0.9, name, transform=ax.transAxes, ha="right", fontsize=9)
        ax.set_yscale("log")
        ax.set_ylim(1e-5, 2000)
        ax.set_yticks([1e-4, 1e-2, 1])
    axes[len(axes) // 2].set_ylabel("KL to the intact model (nats, log axis)")
    axes[-1].set_xlabel("deleted layer")
    return figure


@styled
def costs(kl: Mapping[str, float], *, at_start: Sequence[str] = ()) -> Figure:
    """Draw what each of a list of edits costs.

    Args:
        kl: KL in nats by edit, in words, in the order of the story.
        at_start: Edits drawn in the colour of position 0.

    Returns:
        Horizontal bars, the first edit on top.
    """
    figure, (ax,) = panels(height=0.36 * len(kl) + 0.9)
    names = list(kl)[::-1]
    values = [kl[name] for name in names]
    colors = [PALETTE["position 0" if name in at_start else "stream"] for name in names]
    ax.barh(names, values, color=colors, height=0.65)
    for place, value in enumerate(values):
        ax.annotate(
            f"{value:.2f}", (value, place), xytext=(3, 0), va="center", fontsize=9,
            textcoords="offset points",
        )  # fmt: skip
    ax.set_xlim(0, 1.12 * max(values))
    ax.set_xlabel("KL to the intact model (nats)")
    return figure


@styled
def sink(
    weights: Mapping[str, Float[Tensor, " layer"]],
    values: Mapping[str, Float[Tensor, " layer"]],
    layers: Sequence[int],
) -> Figure:
    """Draw how much attention rests on position 0, and how much it brings from there.

    Args:
        weights: By run, mean attention on position 0 over heads and later positions.
        values: By run, the length of position 0's value over that of the others.
        layers: The layers.

    Returns:
        A figure of two panels by layer.
    """
    figure, axes = panels(1, 2, height=3.2)
    for ax, data in zip(axes, (weights, values), strict=True):
        for (name, line), key in zip(
            data.items(), ("position 0", "stream", "mlp", "attn"), strict=False
        ):
            ax.plot(layers, line.cpu().numpy(), color=PALETTE[key], label=name)
        ax.set_xlabel("layer")
    axes[0].set_ylabel("attention on position 0 (share)")
    axes[0].set_ylim(0, 1.35)
    axes[0].set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes[1].set_ylabel("length of its value / the others'")
    axes[1].axhline(1, color=PALETTE["other"], linewidth=0.8, linestyle="--")
    axes[1].set_ylim(bottom=0)
    axes[0].legend(fontsize=8, loc="upper left")
    return figure


@styled
def orders(
    kept: Mapping[str, Sequence[float]],
    sizes: Sequence[int],
    random: Mapping[str, Sequence[Sequence[float]]],
) -> Figure:
    """Draw what survives deletions of one part, swaps of neighbours, and growing random sets.

    Args:
        kept: By what was done to each layer, the share of predictions kept.
        sizes: Sizes of the random sets.
        random: By which layers were drawn from, the share kept in every draw, by size.

    Returns:
        A figure of two panels: share kept by layer; share kept by the size of the set.
    """
    figure, (left, right) = panels(1, 2, height=3.2, sharey=True)
    keys = {"attention": "attn", "MLP": "mlp", "swap": "norm"}
    for name, line in kept.items():
        key = next((keys[word] for word in keys if word in name), "stream")
        left.plot(np.arange(len(line)), line, color=PALETTE[key], label=name, marker=".")
    left.set_xlabel("layer")
    left.set_ylabel("same first token (fraction)")
    left.set_ylim(0, 1.03)
    left.legend(fontsize=8, loc="lower center")
    for (name, draws), key in zip(random.items(), ("stream", "attn"), strict=False):
        cloud = np.array(draws)
        right.plot(sizes, np.median(cloud, axis=1), color=PALETTE[key], label=name)
        right.plot(np.repeat(sizes, cloud.shape[1]), cloud.flatten(), ".", color=PALETTE[key],
                   alpha=0.4)  # fmt: skip
    right.set_xticks(sizes)
    right.set_xlabel("layers deleted together")
    right.legend(fontsize=8)
    return figure


@styled
def expansion(paths: PathExpansion, shares: Float[Tensor, " path"], *, named: int = 12) -> Figure:
    """Draw what each path of an attention-only model puts into the logit of its target.

    Args:
        paths: The expansion.
        shares: Mean share of the target's logit by path.
        named: How many of the largest get a bar.

    Returns:
        Horizontal bars, coloured by the number of heads on the path.
    """
    figure, (ax,) = panels(height=0.27 * named + 0.9)
    largest = shares.abs().argsort(descending=True)[:named].tolist()[::-1]
    color = {0: PALETTE["embed"], 1: PALETTE["attn"], 2: PALETTE["norm"]}
    ax.barh(
        [paths.labels[i] for i in largest],
        [float(shares[i]) for i in largest],
        color=[color.get(len(paths.paths[i]), PALETTE["stream"]) for i in largest],
    )
    zero_line(ax, vertical=True)
    ax.set_xlabel("mean share of the right token's logit (logits)")
    return figure
