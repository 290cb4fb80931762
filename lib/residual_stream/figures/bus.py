"""Figures of the stream itself: its climb, its writes, its coordinates, one ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from .style import PALETTE, band, color_of, panels, quantile, styled, zero_line


@styled
def climb(norms: Float[Tensor, "write batch pos"], *, layers: Sequence[int]) -> Figure:
    """Draw the norm of the stream after each write: every token, their median, position 0 apart.

    Args:
        norms: ‖x‖ after each write; position 0 must be the first kept.
        layers: The block of each write, −1 for the embedding.

    Returns:
        A figure with one log axis.
    """
    figure, (ax,) = panels(height=3.8)
    x = np.arange(len(norms))
    others = norms[:, :, 1:].flatten(1)
    ax.plot(x, others[:, ::4].cpu().numpy(), color=PALETTE["stream"], alpha=0.06, linewidth=0.8)
    ax.plot(x, quantile(others, 0.5), color=PALETTE["stream"], label="median of the other tokens")
    ax.plot(
        x, norms[:, :, 0].mean(1).cpu().numpy(), color=PALETTE["position 0"], label="position 0"
    )
    ax.set_yscale("log")
    ax.set_xlabel("block that wrote last")
    ax.set_ylabel("norm of the stream, ‖x‖ (log scale)")
    ticks = [index for index, layer in enumerate(layers) if layer % 5 == 0]
    ticks = [index for index in ticks if index == 0 or layers[index] != layers[index - 1]]
    ax.set_xticks(ticks, [str(layers[index]) for index in ticks])
    ax.legend(loc="lower right")
    return figure


@styled
def write_ratio(
    ratios: Mapping[str, Float[Tensor, "layer sample"]],
    first: Mapping[str, Float[Tensor, " layer"]],
) -> Figure:
    """Draw ‖write‖/‖stream it joins‖ by block for attention and MLP, position 0 beside it.

    Args:
        ratios: For each kind of write, the ratio by block and token, position 0 left out.
        first: The same at position 0.

    Returns:
        A figure with two panels on one log axis.
    """
    figure, (left, right) = panels(1, 2, sharey=True, height=3.2)
    for kind, values in ratios.items():
        band(left, range(len(values)), values, color=PALETTE[kind], label=kind)
        right.plot(first[kind].cpu().numpy(), color=PALETTE[kind], label=kind)
    for ax, where in ((left, "positions 1 and up"), (right, "position 0")):
        ax.axhline(1, color=PALETTE["other"], linewidth=0.8, zorder=0)
        ax.set_yscale("log")
        ax.set_xlabel(f"block ({where})")
    left.set_ylabel("‖write‖ / ‖stream it joins‖ (log scale)")
    left.legend()
    return figure


@styled
def row_at_depth(
    cosine: Float[Tensor, "write sample"], share: Float[Tensor, "write sample"]
) -> Figure:
    """Draw how visible the embedding row is in the stream: by direction, and by length.

    Args:
        cosine: Cosine of the row and the stream after each write.
        share: ‖row‖ / ‖stream‖ after each write.

    Returns:
        A figure with two panels.
    """
    figure, (left, right) = panels(1, 2, height=3.0)
    x = range(len(cosine))
    band(left, x, cosine, color=PALETTE["embed"], label="cosine")
    zero_line(left)
    left.set_ylabel("cosine of the row and the stream")
    band(right, x, share, color=PALETTE["embed"], label="share")
    right.set_yscale("log")
    right.set_ylabel("‖row‖ / ‖stream‖ (log scale)")
    for ax in (left, right):
        ax.set_xlabel("writes so far")
    return figure


@styled
def coordinate_story(
    stream: Float[Tensor, " write"],
    writes: Float[Tensor, " write"],
    kinds: Sequence[str],
    *,
    legend: str = "upper left",
) -> Figure:
    """Draw one coordinate of one token's stream: what each write added, and the running value.

    Args:
        stream: The coordinate after each write.
        writes: What each write put there.
        kinds: The kind of each write, for its colour.
        legend: Where the legend stands.

    Returns:
        A figure with bars for the writes and a line for the stream.
    """
    figure, (ax,) = panels(height=3.2)
    for kind in dict.fromkeys(kinds):
        at = [index for index, other in enumerate(kinds) if other == kind]
        heights = writes[at].cpu().numpy()
        ax.bar(at, heights, color=color_of(kind), label=f"{kind} write", width=0.9)
    ax.step(
        range(len(stream)),
        stream.cpu().numpy(),
        where="mid",
        color=PALETTE["stream"],
        label="stream",
    )
    zero_line(ax)
    ax.set_xlabel("writes so far")
    ax.set_ylabel("value of the coordinate")
    ax.legend(loc=legend)
    return figure


@styled
def changed_writes(change: Float[Tensor, "write sample"], kinds: Sequence[str], at: int) -> Figure:
    """Draw how far every write moved after one write was changed.

    Args:
        change: ‖new write − old write‖ / ‖old write‖ by write and token.
        kinds: The kind of each write.
        at: The index of the write that was changed.

    Returns:
        A figure with one point per write.
    """
    figure, (ax,) = panels(height=3.0)
    middle = quantile(change, 0.5)
    for kind in ("attn", "mlp"):
        later = [i for i, other in enumerate(kinds) if other == kind and i != at]
        ax.plot(later, middle[later], "o", markersize=4, color=PALETTE[kind], label=f"{kind} write")
    ax.axvline(at, color=PALETTE["stream"], linewidth=1, linestyle=":")
    ax.annotate("changed here", (at, 0.9), xytext=(at + 1, 0.9), va="center")
    ax.set_xlabel("write, in order")
    ax.set_ylabel("relative change of the write")
    ax.set_ylim(-0.03, 1)
    ax.legend()
    return figure


@styled
def normalised_reads(ratios: Mapping[str, Float[Tensor, "layer sample"]]) -> Figure:
    """Draw how much longer queries, keys and values would be, were they read without the norm.

    Args:
        ratios: For ``"q"``, ``"k"`` and ``"v"``, ‖W x‖ / ‖W norm(x)‖ by block and token.

    Returns:
        A figure with one panel per kind on one log axis.
    """
    names = {"q": "queries", "k": "keys", "v": "values"}
    figure, axes = panels(1, len(ratios), sharey=True, height=2.9)
    for ax, (kind, ratio) in zip(axes, ratios.items(), strict=True):
        band(ax, range(len(ratio)), ratio, color=PALETTE["norm"], label=kind)
        ax.axhline(1, color=PALETTE["other"], linewidth=0.8, zorder=0)
        ax.set_yscale("log")
        ax.set_xlabel(f"block ({names[kind]})")
    axes[0].set_ylabel("length without the norm\n/ length with it (log scale)")
    return figure


@styled
def block_sizes(counts: Mapping[str, tuple[float, float, float]]) -> Figure:
    """Draw the parameters of one block in units of the squared width.

    Args:
        counts: For each model: attention matrices, MLP matrices, and all else (biases, norms), each
            divided by the width squared.

    Returns:
        A figure with one stacked bar per model and a line at twelve.
    """
    figure, (ax,) = panels(height=0.42 * len(counts) + 1.2)
    names = list(counts)
    left = np.zeros(len(names))
    colours = (PALETTE["attn"], PALETTE["mlp"], PALETTE["norm"])
    for part, label in enumerate(("attention matrices", "MLP matrices", "biases and norms")):
        width = np.array([counts[name][part] for name in names])
        ax.barh(names, width, left=left, color=colours[part], label=label)
        left = left + width
    ax.axvline(12, color=PALETTE["stream"], linewidth=1, linestyle=":")
    ax.invert_yaxis()
    ax.set_xlabel("parameters of one block, in units of C² (dotted: 12)")
    ax.legend(loc="upper center", bbox_to_anchor=(0.4, 1.22), ncols=3)
    return figure


@styled
def two_stacks(
    depth: Sequence[int],
    curves: Mapping[str, Mapping[str, Float[Tensor, "stack depth"]]],
) -> Figure:
    """Draw what is left of the input, and of the error signal, by depth, for several stacks.

    Args:
        depth: Number of layers.
        curves: For each panel's y-label and each kind of stack, one curve per stack.

    Returns:
        A figure with one panel per quantity: the median of each kind and the range of all.
    """
    figure, axes = panels(1, len(curves), height=2.9)
    colours = {"residual": PALETTE["stream"], "plain": PALETTE["mlp"]}
    for ax, (label, stacks) in zip(axes, curves.items(), strict=True):
        for name, values in stacks.items():
            lowest, highest = (values.amin(0).cpu().numpy(), values.amax(0).cpu().numpy())
            ax.plot(depth, values.median(0).values.cpu().numpy(), color=colours[name], label=name)
            ax.fill_between(depth, lowest, highest, color=colours[name], alpha=0.25, linewidth=0)
        zero_line(ax)
        ax.set_xlabel("layers")
        ax.set_ylabel(label)
    axes[0].legend()
    return figure


@styled
def ledger(labels: Sequence[str], kinds: Sequence[str], values: Float[Tensor, " part"]) -> Figure:
    """Draw every write's share of one logit, and their running sum.

    Args:
        labels: The writes.
        kinds: The kind of each write.
        values: What each contributes to the logit.

    Returns:
        A figure with a bar per write and the running sum as a line.
    """
    figure, (ax,) = panels(height=3.4)
    x = np.arange(len(values))
    heights = values.cpu().numpy()
    for kind in dict.fromkeys(kinds):
        at = [index for index, other in enumerate(kinds) if other == kind]
        ax.bar(x[at], heights[at], color=color_of(kind), label=kind)
    ax.step(x, heights.cumsum(), where="mid", color=PALETTE["stream"], label="running sum")
    zero_line(ax)
    # Named on the empty side of the zero line, in rows, so that no name hides the running sum.
    for row, index in enumerate(sorted(values.abs().topk(3).indices.tolist())):
        away = -1 if heights[index] > 0 else 1
        ax.annotate(
            labels[index],
            (index, 0),
            xytext=(0, away * (20 + 12 * (row % 2))),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8,
            arrowprops={"arrowstyle": "-", "color": PALETTE["other"], "linewidth": 0.6},
        )
    ax.set_xlabel("write, in order")
    ax.set_ylabel("share of the logit")
    ax.margins(y=0.18)
    ax.legend(loc="upper left")
    return figure
