"""Figures of one prediction's story: updates, deletions, the lens, and many prompts at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import matplotlib as mpl
import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.ft2font import FT2Font
from torch import Tensor

from .style import PALETTE, panels, styled, zero_line


@styled
def updates(of_row: Float[Tensor, " layer"], of_stream: Float[Tensor, " layer"]) -> Figure:
    """Draw how long every layer's update is beside the row, and beside the stream it joins.

    Args:
        of_row: ‖update‖ / ‖row‖.
        of_stream: ‖update‖ / ‖stream it joins‖.

    Returns:
        A figure with one log axis.
    """
    figure, (ax,) = panels(height=3.0)
    for values, color, label in (
        (of_row, PALETTE["embed"], "÷ the row"),
        (of_stream, PALETTE["stream"], "÷ the stream it joins"),
    ):
        ax.plot(values.cpu().numpy(), "o-", markersize=4, color=color, label=label)
    ax.axhline(1, color=PALETTE["other"], linewidth=0.8, zorder=0)
    ax.set_yscale("log")
    ax.set_xlabel("layer")
    ax.set_ylabel("length of the update (log scale)")
    ax.legend()
    return figure


@styled
def deletions(
    margin: Float[Tensor, " layer"],
    *,
    intact: float,
    becomes: Sequence[str],
    names: bool = True,
) -> Figure:
    """Draw how far the prediction stays ahead of its best rival without each layer.

    Args:
        margin: Logit of the intact model's prediction over the best rival, by deleted layer.
        intact: The same with every layer in place.
        becomes: What is predicted without each layer.
        names: Whether to write the new prediction under the bars that lose the old one.

    Returns:
        A figure with one bar per layer; those below zero lose the prediction.
    """
    figure, (ax,) = panels(height=3.4)
    heights = margin.double().cpu().numpy()
    colors = [PALETTE["stream"] if height > 0 else PALETTE["mlp"] for height in heights]
    ax.bar(range(len(heights)), heights, color=colors, width=0.8)
    ax.axhline(intact, color=PALETTE["other"], linestyle="--", linewidth=1)
    ax.annotate(
        "nothing deleted", (len(heights) - 0.5, intact), xytext=(0, 4), ha="right", fontsize=9,
        textcoords="offset points", color=PALETTE["other"],
    )  # fmt: skip
    zero_line(ax)
    if names:
        for layer, height in enumerate(heights):
            if height <= 0:
                ax.annotate(
                    shown(becomes[layer]), (layer, height), xytext=(0, -3), va="top", ha="center",
                    rotation=90, fontsize=7, textcoords="offset points", color=PALETTE["mlp"],
                )  # fmt: skip
        low, high = ax.get_ylim()
        ax.set_ylim(low - 0.3 * (high - low), high + 0.08 * (high - low))
    ax.set_xlabel("deleted layer")
    ax.set_ylabel("lead over the best rival (logits)")
    return figure


@styled
def lens_of_one(kl: Float[Tensor, " depth"], *, reads: Sequence[str], predicted: str) -> Figure:
    """Draw how far the lens is from the prediction at every depth, and what it reads there.

    Args:
        kl: KL(top ‖ lens) in nats after 0, 1, … layers; the last is 0.
        reads: What the lens reads at each depth.
        predicted: The model's prediction.

    Returns:
        A figure with one bar per depth; the word changes where one is written.
    """
    figure, (ax,) = panels(height=3.2)
    heights = kl.double().cpu().numpy()
    colors = [PALETTE["attn"] if word == predicted else PALETTE["other"] for word in reads]
    ax.bar(range(len(heights)), heights, color=colors, width=0.8)
    for depth, word in enumerate(reads):
        if depth == 0 or word != reads[depth - 1]:
            ax.annotate(
                shown(word), (depth, heights[depth]), xytext=(0, 3), ha="center", va="bottom",
                rotation=90, fontsize=7, textcoords="offset points",
                color=colors[depth] if word == predicted else None,
            )  # fmt: skip
    ax.set_ylim(0, 1.35 * max(float(heights.max()), 1e-3))
    ax.set_xlabel("depth (layers run)")
    ax.set_ylabel("KL of the lens to the prediction (nats)")
    return figure


@styled
def survival(kept: Bool[Tensor, "prompt layer"], *, prompts: Sequence[str]) -> Figure:
    """Draw which deletions keep the prediction, prompt by prompt.

    Args:
        kept: Whether the prediction stays.
        prompts: A few words for each prompt, with what it predicts.

    Returns:
        A figure with one row per prompt and one column per deleted layer.
    """
    figure, (ax,) = panels(height=0.28 * len(prompts) + 1.0)
    colors = mpl.colors.ListedColormap([PALETTE["mlp"], "#E4E4E4"])
    values = kept.cpu().numpy().astype(float)
    ax.pcolormesh(values, cmap=colors, vmin=0, vmax=1, edgecolors="white", linewidth=1)
    ax.set_yticks(np.arange(len(prompts)) + 0.5, list(prompts), fontsize=8)
    ticks = np.arange(0, values.shape[1], 5)
    ax.set_xticks(ticks + 0.5, [str(tick) for tick in ticks])
    ax.invert_yaxis()
    ax.set_xlabel("deleted layer")
    return figure


def shown(word: str) -> str:
    """Return a token as a figure can draw it: blanks made visible, what has no glyph as a dot.

    Example:
        >>> shown(" the"), shown("$x"), shown("\u96e8")
        ('␣the', '\\\\$x', '·')
    """
    word = word.replace(" ", "␣").replace("\n", "⏎")
    word = "".join(one if ord(one) in _glyphs() else "·" for one in word)
    return word.replace("$", r"\$") or "∅"


@cache
def _glyphs() -> frozenset[int]:
    """The characters of the book's font."""
    return frozenset(FT2Font(findfont("DejaVu Sans")).get_charmap())


@styled
def survival_by_lead(
    lead: Float[Tensor, " place"],
    survived: Float[Tensor, " place"],
    *,
    groups: Int[Tensor, " place"],
    published: float,
) -> Figure:
    """Draw the share of deletions that keep a prediction against how far ahead it was.

    Args:
        lead: Logit of the prediction over its best rival, with nothing deleted.
        survived: Share of the deletions that keep it.
        groups: The group of each place, by rising lead.
        published: A single figure to draw beside them.

    Returns:
        A scatter plot with the groups' medians.
    """
    figure, (ax,) = panels(height=3.2)
    x, y = lead.double().cpu().numpy(), survived.double().cpu().numpy()
    ax.scatter(x, y, s=10, alpha=0.45, color=PALETTE["stream"], linewidths=0)
    at = [groups.cpu().numpy() == group for group in range(int(groups.max()) + 1)]
    ax.plot(
        [np.median(x[one]) for one in at], [np.median(y[one]) for one in at], "o-",
        color=PALETTE["attn"], label="medians of the groups",
    )  # fmt: skip
    ax.axhline(published, color=PALETTE["mlp"], linestyle="--", linewidth=1)
    ax.annotate(
        "published, one position", (x.max(), published), xytext=(0, 4), ha="right", fontsize=9,
        textcoords="offset points", color=PALETTE["mlp"],
    )  # fmt: skip
    ax.set_ylim(-0.03, 1.08)
    ax.set_xlabel("lead over the best rival, nothing deleted (logits)")
    ax.set_ylabel("deletions survived (fraction)")
    ax.legend(loc="lower right")
    return figure
