"""Figures of attribution: shares of a logit, the lens by depth, self-repair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from .style import PALETTE, SEQUENTIAL, band, panels, styled, zero_line

if TYPE_CHECKING:
    from ..ablation import SelfRepair
    from ..attribution import Attribution
    from ..lens import LensByDepth

_NAMES = {"embed": "embedding", "attn": "attention", "mlp": "MLP", "head": "attention"}


@styled
def waterfall(split: Attribution, *, row: int = 0) -> Figure:
    """Draw one logit built up part by part, from zero to the model's own.

    Args:
        split: A logit at unit ``"layer"`` or ``"sublayer"``.
        row: Which place, counted over batch rows and positions.

    Returns:
        A figure with one bar per part, each starting where the one before ended.
    """
    values = split.values.reshape(len(split.labels), -1)[:, row].double().cpu().numpy()
    ends = values.cumsum()
    figure, (ax,) = panels(height=3.4)
    colors = [PALETTE.get(kind, PALETTE["stream"]) for kind in split.kinds]
    places = np.arange(len(values))
    ax.bar(places, values, bottom=ends - values, color=colors, width=0.85)
    ax.axhline(ends[-1], color=PALETTE["stream"], linewidth=0.8, linestyle=":")
    ax.annotate(
        f"the model's own logit {ends[-1]:.1f}", (0, ends[-1]), xytext=(0, 4),
        textcoords="offset points", fontsize=9,
    )  # fmt: skip
    zero_line(ax)
    blocks = [i for i, layer in enumerate(split.layers) if layer >= 0]
    firsts = {split.layers[i]: i for i in reversed(blocks)}
    shown = [layer for layer in sorted(firsts) if layer % 5 == 0]
    ax.set_xticks([firsts[layer] for layer in shown], [str(layer) for layer in shown])
    ax.set_xlabel("layer")
    origin = "the vocabulary's mean" if split.center else "zero"
    ax.set_ylabel(f"logit from {origin} (logits)")
    kinds = [kind for kind in dict.fromkeys(split.kinds) if kind in _NAMES]
    for step, kind in enumerate(kinds):
        ax.text(
            0.86, 0.3 - 0.08 * step, _NAMES[kind], color=PALETTE.get(kind, PALETTE["attn"]),
            transform=ax.transAxes, fontsize=9,
        )  # fmt: skip
    return figure


@styled
def shares(split: Attribution, raw: Attribution | None = None) -> Figure:
    """Draw every layer's share of the logit over many tokens, position 0 left out by the caller.

    Args:
        split: Logits of many places at unit ``"layer"``, from the vocabulary's mean.
        raw: The same from zero, drawn beside it.

    Returns:
        A figure with the median and the middle half and nine tenths of the shares by layer.
    """
    figure, axes = panels(1, 1 if raw is None else 2, height=3.4, sharey=True)
    for ax, one, origin in zip(axes, (split, raw), ("the vocabulary's mean", "zero"), strict=False):
        assert one is not None
        inside = [i for i, layer in enumerate(one.layers) if layer >= 0 and one.kinds[i] != "bias"]
        values = one.values.reshape(len(one.labels), -1)[inside]
        layers = [one.layers[i] for i in inside]
        band(ax, layers, values, color=PALETTE["stream"], ranges={0.9: 0.15, 0.5: 0.3})
        zero_line(ax)
        ax.set_xlabel("layer")
        ax.set_ylabel(f"share, from {origin} (logits)")
    return figure


@styled
def share_of_the_last_third(fractions: Float[Tensor, " token"], *, published: float) -> Figure:
    """Draw how the last third's fraction of the logit is spread over tokens.

    Args:
        fractions: One fraction per token; outside 0 to 1 where parts of both signs cancel.
        published: The single figure quoted for one token of another model.

    Returns:
        A histogram with the median and the published figure marked.
    """
    values = fractions.double().cpu().clamp(-0.5, 1.5).cpu().numpy()
    figure, (ax,) = panels(height=2.8)
    ax.hist(values, bins=np.linspace(-0.5, 1.5, 41), color=PALETTE["stream"], alpha=0.7)
    ax.set_ylim(0, 1.25 * ax.get_ylim()[1])
    marks = (
        (float(np.median(values)), "median here", PALETTE["attn"], "right"),
        (published, "one token of a 4-billion model", PALETTE["mlp"], "left"),
    )
    for value, text, color, side in marks:
        ax.axvline(value, color=color)
        ax.annotate(
            text, (value, ax.get_ylim()[1]), xytext=(3 if side == "left" else -3, -10), ha=side,
            color=color, fontsize=9, textcoords="offset points",
        )  # fmt: skip
    ax.set_xlabel("fraction of the logit written by the last third of the layers")
    ax.set_ylabel("tokens")
    return figure


@styled
def lens(reading: LensByDepth) -> Figure:
    """Draw agreement with the model's own prediction and KL by depth.

    Args:
        reading: As :func:`residual_stream.lens_by_depth` returns it, position 0 left out.

    Returns:
        A figure of two panels: share of places that agree; KL in nats, log axis, with the uniform
        guess as a line.
    """
    depth = np.arange(len(reading.labels))
    figure, (left, right) = panels(1, 2, height=3.0)
    left.plot(depth, reading.agrees.float().mean((1, 2)).cpu().numpy(), color=PALETTE["stream"])
    left.set_xlabel("depth (layers run)")
    left.set_ylabel("same first token (fraction)")
    left.set_ylim(0, 1.03)
    places = reading.kl.reshape(len(depth), -1)[:-1]
    band(right, depth[:-1], places, color=PALETTE["stream"], ranges={0.5: 0.25})
    level = float(reading.uniform_kl.median())
    right.axhline(level, color=PALETTE["other"], linestyle="--", linewidth=1)
    right.annotate(
        "uniform guess", (0, level), xytext=(0, -11), textcoords="offset points", fontsize=9,
        color=PALETTE["other"],
    )  # fmt: skip
    right.set_yscale("log")
    right.set_xlabel("depth (layers run)")
    right.set_ylabel("KL to the model (nats, log axis)")
    return figure


@styled
def direct_and_effect(split: SelfRepair, *, named: int = 6) -> Figure:
    """Draw what each head wrote beside what is lost without it, and where the difference went.

    Args:
        split: As :func:`residual_stream.self_repair` returns it.
        named: How many heads of largest direct share get their name and a bar.

    Returns:
        A figure of two panels: effect against direct share, one dot per head, with the line of no
        repair; and the direct share of the named heads cut into effect, later writes and norm.
    """
    frame = split.to_frame()
    figure, (left, right) = panels(1, 2, height=3.4)
    layer = np.array([layer for layer, _ in split.heads])
    dots = left.scatter(frame["direct"], frame["effect"], c=layer, cmap=SEQUENTIAL, s=14)
    figure.colorbar(dots, ax=left, label="layer", shrink=0.8, ticks=MaxNLocator(integer=True))
    ends = [min(0.0, frame["direct"].min()), frame["direct"].max()]
    left.plot(ends, ends, color=PALETTE["other"], linewidth=0.8, linestyle="--")
    zero_line(left)
    zero_line(left, vertical=True)
    left.set_xlabel("direct share (mean logits)")
    left.set_ylabel("lost when taken out (mean logits)")
    best = frame.sort_values("direct", ascending=False).head(named).iloc[::-1]
    lost_most = frame[frame["effect"] > frame["direct"]].nlargest(2, "effect")
    for named_here, shift, side in (
        (best.iloc[-3:], (-4, 5), "right"),
        (lost_most, (6, 0), "left"),
    ):
        for _, one in named_here.iterrows():
            left.annotate(
                one["head"], (one["direct"], one["effect"]), xytext=shift, fontsize=8,
                textcoords="offset points", ha=side, va="center",
            )  # fmt: skip
    places = np.arange(len(best))
    pieces = (
        ("effect", "stays lost", PALETTE["attn"]),
        ("later", "later writes give back", PALETTE["mlp"]),
        ("norm", "the divisor gives back", PALETTE["norm"]),
    )
    for shift, (name, label, color) in zip((0.27, 0.0, -0.27), pieces, strict=True):
        right.barh(places + shift, best[name], height=0.25, color=color, label=label)
    right.plot(best["direct"], places, "|", color=PALETTE["stream"], ms=22, label="direct share")
    right.set_yticks(places, best["head"])
    zero_line(right, vertical=True)
    right.set_xlabel("mean logits")
    right.set_ylim(-2.1, len(best) - 0.4)
    right.legend(
        fontsize=8, loc="lower center", ncols=2, columnspacing=0.8, handlelength=1.2,
        handletextpad=0.5, markerscale=0.4,
    )  # fmt: skip
    return figure


@styled
def omissions(
    logit: Float[Tensor, "*place"],
    exact: Float[Tensor, "*place"],
    without: Mapping[str, Float[Tensor, "*place"]],
) -> Figure:
    """Draw the sum of the shares beside the logit, whole and with something left out.

    Args:
        logit: The model's own logit at each place.
        exact: The sum of the shares.
        without: What was left out to the sum without it; the first is drawn beside the exact sum,
            the others apart, on a log axis.

    Returns:
        A figure of two scatter plots with the line of equality.
    """
    figure, (left, right) = panels(1, 2, height=3.4)
    x = logit.flatten().cpu().numpy()
    colors = (PALETTE["mlp"], PALETTE["norm"], PALETTE["attn"])
    left.scatter(x, exact.flatten().cpu().numpy(), s=8, color=PALETTE["stream"], label="whole")
    for step, ((what, values), color) in enumerate(zip(without.items(), colors, strict=False)):
        ax = right if step else left
        y = values.flatten().cpu().numpy()
        ax.scatter(x, y, s=6, alpha=0.6, color=color, label=f"without {what}")
    ends = [0.0, float(x.max())]
    left.plot(ends, ends, color=PALETTE["other"], linewidth=0.8, zorder=0)
    right.plot([x.min(), x.max()], [x.min(), x.max()], color=PALETTE["other"], linewidth=0.8)
    right.annotate(
        "equal", (x.max(), x.max()), xytext=(0, 5), ha="right", color=PALETTE["other"],
        textcoords="offset points", fontsize=9,
    )  # fmt: skip
    zero_line(left)
    right.set_yscale("log")
    left.set_ylabel("sum of the shares (logits)")
    right.set_ylabel("sum of the shares (logits, log axis)")
    for ax in (left, right):
        ax.set_xlabel("the model's own logit (logits)")
        ax.legend(fontsize=8, loc="upper left" if ax is left else "lower right")
    return figure


@styled
def grain(up: Mapping[str, float], down: Mapping[str, float]) -> Figure:
    """Draw what raises and what lowers one logit, by the unit that it is split into.

    Args:
        up: The sum of the positive shares by unit.
        down: The sum of the negative shares by unit.

    Returns:
        A figure with one bar up and one down per unit, and the net as a line.
    """
    figure, (ax,) = panels(height=2.8)
    places = np.arange(len(up))
    ax.bar(places, list(up.values()), color=PALETTE["stream"], alpha=0.55, width=0.5)
    ax.bar(places, list(down.values()), color=PALETTE["other"], alpha=0.55, width=0.5)
    net = [up[unit] + down[unit] for unit in up]
    ax.hlines(net, places - 0.25, places + 0.25, color=PALETTE["stream"], linewidth=2)
    for place, value in zip(places, net, strict=True):
        ax.annotate(
            f"net {value:.1f}", (place + 0.27, value), va="center", fontsize=9,
        )  # fmt: skip
    zero_line(ax)
    ax.set_xlim(-0.5, len(up) - 0.2)
    ax.set_xticks(places, [f"{unit}s" for unit in up])
    ax.set_xlabel("split into")
    ax.set_ylabel("shares added up (logits)")
    return figure


@styled
def lens_and_shares(
    lens_logit: Float[Tensor, "depth place"], cumulative: Float[Tensor, "depth place"]
) -> Figure:
    """Draw a token's lens logit by depth beside the sum of its shares so far.

    Args:
        lens_logit: What the lens reads at each depth, with the divisor there.
        cumulative: The shares up to that depth, with the divisor of the top.

    Returns:
        A figure with the median and the middle half of both.
    """
    figure, (ax,) = panels(height=3.2)
    lines = (
        (lens_logit, "lens, divided there", PALETTE["norm"]),
        (cumulative, "shares so far, divided at the top", PALETTE["stream"]),
    )
    for values, label, color in lines:
        band(ax, range(len(values)), values, color=color, label=label, ranges={0.5: 0.2})
    zero_line(ax)
    ax.set_xlabel("depth (layers run)")
    ax.set_ylabel("logit of the winning token (logits)")
    ax.legend(loc="upper left")
    return figure
