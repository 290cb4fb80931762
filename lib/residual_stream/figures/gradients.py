"""Figures of the gradient on its way down: spectra, highways, path lengths, depth and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from .style import PALETTE, panels, styled

if TYPE_CHECKING:
    from ..gradients import StreamGradients
    from ..jacobian import BlockJacobian
    from ..path_gradients import PathGradients

VARIANT_COLORS = {"plain": "other", "residual": "attn", "highway": "embed"}


def _variant_style(name: str) -> dict[str, object]:
    key = next((VARIANT_COLORS[word] for word in VARIANT_COLORS if word in name), "stream")
    return {"color": PALETTE[key], "linestyle": "-" if "LN" in name else "--", "label": name}


#: Singular values below this are rounding of a float32 matrix whose largest are 10 to 100.
ROUNDED = 1e-4


@styled
def spectra(ordinary: Sequence[BlockJacobian], start: Sequence[BlockJacobian]) -> Figure:
    """Draw the singular values of blocks' Jacobians, at an ordinary position and at position 0.

    Args:
        ordinary: Jacobians by layer at one position after 0.
        start: The same at position 0.

    Returns:
        Two panels of range (pale), middle nine tenths and median (dot) by layer, log axis.
    """
    figure, axes = panels(1, 2, height=3.2, sharey=True)
    for ax, some, key, name in (
        (axes[0], ordinary, "stream", "an ordinary position"),
        (axes[1], start, "position 0", "position 0"),
    ):
        x = np.arange(len(some))
        values = np.stack([one.singular_values.cpu().numpy() for one in some]).clip(min=ROUNDED)
        low, five, middle, most, high = np.quantile(values, [0, 0.05, 0.5, 0.95, 1], axis=1)
        ax.vlines(x, low, high, color=PALETTE[key], alpha=0.35, linewidth=4)
        ax.vlines(x, five, most, color=PALETTE[key], linewidth=4)
        ax.plot(x, middle, "o", color="white", markeredgecolor=PALETTE[key], markersize=6)
        ax.set_xticks(x, [str(one.layer) for one in some])
        ax.axhline(1, color=PALETTE["other"], linewidth=0.8, linestyle="--")
        ax.set_yscale("log")
        ax.set_xlabel(f"layer, at {name}")
    axes[0].set_ylim(bottom=ROUNDED)
    axes[0].set_ylabel("singular values (log axis)")
    return figure


@styled
def highway(gradients: StreamGradients, *, first: int = 1) -> Figure:
    """Draw the length of the gradient after every write, with what the identity path carries.

    Args:
        gradients: As :func:`residual_stream.stream_gradients` returns them.
        first: The first position drawn as ordinary; position 0 is drawn apart.

    Returns:
        Median and middle nine tenths over places, log axis; the identity's part as a line.
    """
    figure, (ax,) = panels(height=3.2)
    norms = gradients.norms.double().cpu().numpy()
    places = norms[:, :, first:].reshape(len(norms), -1)
    low, middle, high = np.quantile(places, [0.05, 0.5, 0.95], axis=1)
    x = np.arange(len(norms))
    ax.fill_between(x, low, high, color=PALETTE["stream"], alpha=0.2, linewidth=0)
    ax.plot(x, middle, color=PALETTE["stream"], label="the whole gradient")
    ax.plot(x, np.median(norms[:, :, 0], axis=1), color=PALETTE["position 0"], label="position 0")
    ax.plot(x, np.full(len(x), middle[-1]), color=PALETTE["attn"], linestyle="--",
            label="the identity path's part")  # fmt: skip
    ax.set_yscale("log")
    ax.set_xlabel("writes below (the top is on the right)")
    ax.set_ylabel("gradient's length (log axis)")
    ax.legend(fontsize=9)
    return figure


@styled
def by_length(parts: Mapping[str, PathGradients], *, most: int = 45) -> Figure:
    """Draw the size of the gradient's parts by path length, over the size of the whole.

    Args:
        parts: By model, as :func:`residual_stream.gradient_by_path_length` returns them; the
            untrained ones first.
        most: Path lengths shown.

    Returns:
        Two panels: parts over the whole, log axis, with the whole at 1; and how far the sum of the
        paths of up to m branches is from the whole.
    """
    figure, (left, right) = panels(1, 2, height=3.4)
    for (name, one), key in zip(parts.items(), ("embed", "mlp", "norm"), strict=False):
        places = slice(1, None)  # position 0 is reported apart
        whole = one.direct[:, places].double().norm(dim=-1)
        size = (one.norms[:, :, places].double() / whole).flatten(1).median(1).values
        lengths = np.arange(min(most, len(size)))
        left.plot(lengths, size[: len(lengths)].cpu().numpy(), color=PALETTE[key], label=name)
        running = one.values[:, :, places].double().cumsum(0) - one.direct[:, places].double()
        missing = (running.norm(dim=-1) / whole).flatten(1).median(1).values
        right.plot(lengths, missing[: len(lengths)].clamp(min=1e-9).cpu().numpy(),
                   color=PALETTE[key])  # fmt: skip
    for ax in (left, right):
        ax.axhline(1, color=PALETTE["other"], linewidth=0.8, linestyle="--")
        ax.set_yscale("log")
    left.set_ylim(1e-6, None)
    right.set_ylim(1e-6, None)
    left.set_xlabel("branches on the path")
    left.set_ylabel("part / whole gradient (log axis)")
    right.set_xlabel("paths of up to so many branches")
    right.set_ylabel("error of their sum / whole (log axis)")
    left.legend(fontsize=9)
    return figure


@styled
def descent(parts: Mapping[str, PathGradients], names: Mapping[str, str] | None = None) -> Figure:
    """Draw how the parts outgrow their sum on the way down.

    Args:
        parts: By model, as :func:`residual_stream.gradient_by_path_length` returns them.
        names: For each model the palette's name of its colour.

    Returns:
        Median ratio over places after position 0 by branches passed, log axis.
    """
    figure, (ax,) = panels(height=3.0)
    keys = names or dict(zip(parts, ("embed", "mlp", "norm", "attn"), strict=False))
    for name, one in parts.items():
        line = one.descent[:, :, 1:].double().flatten(1).median(1).values.cpu().numpy()
        ax.plot(np.arange(len(line)), line, color=PALETTE[keys[name]], label=name)
    ax.set_yscale("log")
    ax.set_xlabel("branches passed on the way down")
    ax.set_ylabel("parts / sum (log axis)")
    ax.legend(fontsize=9)
    return figure


@styled
def depth(
    depths: Sequence[int], loss: Mapping[str, Sequence[Sequence[float]]], *, chance: float
) -> Figure:
    """Draw the training loss of stacks by depth.

    Args:
        depths: Blocks.
        loss: By variant, for every depth the loss from each seed, in nats.
        chance: Loss of a uniform guess.

    Returns:
        Medians over seeds as lines, seeds as dots, log axis of depth.
    """
    figure, (ax,) = panels(height=3.2)
    for name, rows in loss.items():
        cloud = np.array(rows)
        style = _variant_style(name)
        ax.plot(depths, np.median(cloud, axis=1), **style)
        ax.plot(np.repeat(depths, cloud.shape[1]), cloud.flatten(), ".", color=style["color"])
    ax.axhline(chance, color=PALETTE["other"], linewidth=0.8, linestyle=":")
    ax.annotate("uniform guess", (depths[0], chance), xytext=(0, -12), fontsize=9,
                color=PALETTE["other"], textcoords="offset points")  # fmt: skip
    ax.set_xscale("log")
    ax.set_xticks(depths, [str(depth) for depth in depths])
    ax.minorticks_off()
    ax.set_xlabel("blocks (log axis)")
    ax.set_ylabel("training loss (nats)")
    ax.legend(fontsize=9)
    return figure


@styled
def shattering(
    correlation: Mapping[str, Float[Tensor, " lag"]],
    lengths: Mapping[str, Float[Tensor, " depth"]],
) -> Figure:
    """Draw how alike neighbouring gradients are, and how long gradients are by depth.

    Args:
        correlation: By variant, the mean cosine of input gradients by lag.
        lengths: By variant, the gradient's length at the input of every block, over that at the
            top.

    Returns:
        A figure of two panels.
    """
    figure, (left, right) = panels(1, 2, height=3.2)
    for name, line in correlation.items():
        left.plot(np.arange(len(line)), line.cpu().numpy(), **_variant_style(name))
    for name, line in lengths.items():
        right.plot(np.arange(len(line)), line.cpu().numpy(), **_variant_style(name))
    left.set_xlabel("steps between two inputs")
    left.set_ylabel("cosine of their gradients")
    left.axhline(0, color=PALETTE["other"], linewidth=0.8)
    right.set_yscale("log")
    right.set_xlabel("block")
    right.set_ylabel("gradient's length / at the top (log axis)")
    left.legend(fontsize=9)
    return figure
