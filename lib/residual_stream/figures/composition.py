"""Figures of heads: composition scores, attention patterns, OV eigenvalues, routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Complex, Float
from matplotlib.figure import Figure
from torch import Tensor

from .style import PALETTE, SEQUENTIAL, panels, styled, zero_line


@styled
def composition(
    scores: Float[Tensor, "layer head layer head"],
    *,
    baseline: tuple[float, float],
    marked: Sequence[tuple[tuple[int, int], tuple[int, int]]] = (),
) -> Figure:
    """Draw all composition scores as a map and as a distribution beside chance.

    Args:
        scores: As :func:`residual_stream.composition_scores` returns them.
        baseline: Mean and standard deviation between heads that know nothing of another.
        marked: Pairs (source, reader) to point out.

    Returns:
        A figure of two panels. Pairs that cannot compose (same or earlier layer) are hatched.
    """
    n_layer, n_head = scores.shape[:2]
    size = n_layer * n_head
    flat = scores.reshape(size, size).cpu()
    layer = torch.arange(size) // n_head
    legal = layer[:, None] < layer[None, :]
    figure, (left, right) = panels(1, 2, height=3.4, width_ratios=[1.15, 1])
    left.set_facecolor("#EDEDED")
    image = left.imshow(
        np.ma.masked_where(~legal.cpu().numpy(), flat.cpu().numpy()), cmap=SEQUENTIAL,
        interpolation="nearest", vmin=0, vmax=float(flat.max()),
    )  # fmt: skip
    figure.colorbar(image, ax=left, label="composition score", shrink=0.8)
    step = max(1, n_layer // 6)
    ticks = np.arange(0, n_layer, step)
    for axis in (left.xaxis, left.yaxis):
        axis.set_ticks(ticks * n_head, [str(t) for t in ticks])
    left.set_xlabel("reading head, by layer")
    left.set_ylabel("writing head, by layer")
    left.text(0.03, 0.06, "cannot compose", transform=left.transAxes, fontsize=8, color="#6A6A6A")
    values = flat[legal].cpu().numpy()
    right.hist(values, bins=60, color=PALETTE["attn"], alpha=0.8)
    right.set_yscale("log")
    mean, spread = baseline
    right.axvspan(mean - 3 * spread, mean + 3 * spread, color=PALETTE["other"], alpha=0.4)
    right.set_xlabel("score (grey: chance ± 3 sd)")
    right.set_ylabel("pairs of heads (log axis)")
    # The lowest score gets the lowest label, so that no two lines cross.
    for step, ((l1, h1), (l2, h2)) in enumerate(
        sorted(marked, key=lambda m: float(scores[m[0] + m[1]]))
    ):
        value = float(scores[l1, h1, l2, h2])
        right.annotate(
            f"L{l1}H{h1} → L{l2}H{h2}", (value, 1.0), xytext=(-4, 26 + 15 * step), ha="right",
            textcoords="offset points", fontsize=8, arrowprops={"arrowstyle": "-", "lw": 0.6},
        )  # fmt: skip
        left.plot(l2 * n_head + h2, l1 * n_head + h1, "o", mfc="none", mec=PALETTE["mlp"], ms=8)
    return figure


@styled
def eigenvalues(
    values: Complex[Tensor, "head d_head"], labels: Sequence[str], *, copying: Sequence[float]
) -> Figure:
    """Draw OV eigenvalues of a few heads in the complex plane, symmetric log axes.

    Args:
        values: Eigenvalues, one row per head.
        labels: Name of each head.
        copying: Copying score of each head, written under its name.

    Returns:
        A figure with one panel per head; each is scaled by its largest eigenvalue.
    """
    figure, axes = panels(1, len(labels), height=2.4, sharex=True, sharey=True)
    for ax, row, label, score in zip(axes, values, labels, copying, strict=True):
        scaled = (row / row.abs().max()).cpu().numpy()
        color = [PALETTE["attn"] if x > 0 else PALETTE["mlp"] for x in scaled.real]
        ax.scatter(scaled.real, scaled.imag, s=9, c=color)
        zero_line(ax)
        zero_line(ax, vertical=True)
        ax.set_xscale("symlog", linthresh=1e-2)
        ax.set_yscale("symlog", linthresh=1e-2)
        ax.set_xlim(-1.5, 1.5)
        ax.set_ylim(-1.5, 1.5)
        ax.set_xticks([-1, 0, 1], ["−1", "0", "1"])
        ax.set_yticks([-1, 0, 1], ["−1", "0", "1"])
        ax.minorticks_off()
        ax.text(
            0.04,
            0.95,
            f"{label}\ncopying {score:+.2f}".replace("-", "−"),
            transform=ax.transAxes,
            va="top",
            fontsize=8,
        )
        ax.set_xlabel("real part")
    axes[0].set_ylabel("imaginary part")
    return figure


@styled
def patterns(scores: dict[str, Float[Tensor, "layer head"]]) -> Figure:
    """Draw attention scores of all heads, one map per pattern.

    Args:
        scores: Name of the pattern to its scores, between 0 and 1.

    Returns:
        A figure with one map per pattern, layers upwards.
    """
    figure, axes = panels(1, len(scores), height=3.6, sharey=True)
    for ax, (name, values) in zip(axes, scores.items(), strict=True):
        image = ax.imshow(
            values.cpu().numpy(), origin="lower", aspect="auto", cmap=SEQUENTIAL, vmin=0, vmax=1,
            interpolation="nearest",
        )  # fmt: skip
        ax.set_xlabel(f"head ({name})")
        ax.set_xticks(range(0, values.shape[1], max(1, values.shape[1] // 4)))
    axes[0].set_ylabel("layer")
    figure.colorbar(image, ax=axes, label="share of attention", shrink=0.8)
    return figure


@styled
def routes(losses: dict[str, float], *, reference: str) -> Figure:
    """Draw the loss on the second copy when a head is missing for one reader only.

    Args:
        losses: Name of the intervention to its mean loss in nats.
        reference: The name of the untouched run, drawn as a line.

    Returns:
        A figure with one bar per intervention.
    """
    names = [name for name in losses if name != reference]
    figure, (ax,) = panels(height=0.9 + 0.32 * len(names))
    ax.barh(names[::-1], [losses[name] for name in names[::-1]], color=PALETTE["attn"], height=0.6)
    ax.axvline(losses[reference], color=PALETTE["stream"], linestyle="--", linewidth=1)
    ax.annotate(
        reference, (losses[reference], -0.62), xytext=(3, 0), fontsize=9,
        textcoords="offset points",
    )  # fmt: skip
    ax.set_ylim(-0.8, len(names) - 0.5)
    ax.set_xlabel("loss on the second copy (nats per token)")
    return figure


@styled
def phase(
    steps: Sequence[int],
    losses: Mapping[str, Sequence[float]],
    scores: Mapping[str, Sequence[float]],
    *,
    chance: float,
) -> Figure:
    """Draw what appears when over training: the losses, and what heads do and how they compose.

    Args:
        steps: Training steps of the checkpoints.
        losses: Name to a loss in nats per checkpoint.
        scores: Name to a score between 0 and 1 per checkpoint.
        chance: The composition score of heads that know nothing of another, drawn as a line.

    Returns:
        A figure of two panels over the checkpoints, evenly spaced, with their steps written.
    """
    figure, (left, right) = panels(1, 2, height=3.2)
    looks = (("o", PALETTE["stream"]), ("s", PALETTE["attn"]), ("^", PALETTE["mlp"]))
    for ax, curves in ((left, losses), (right, scores)):
        for (label, values), (marker, color) in zip(curves.items(), looks, strict=False):
            ax.plot(list(values), marker=marker, markersize=4, color=color, label=label)
        ax.set_xticks(range(len(steps)), [str(step) for step in steps], rotation=45)
        ax.set_xlabel("training step (checkpoints, not to scale)")
        ax.legend(fontsize=8)
    right.axhline(chance, color=PALETTE["other"], linestyle="--", linewidth=1)
    right.annotate(
        "chance for composition", (len(steps) - 1, chance), xytext=(0, -11), ha="right",
        textcoords="offset points", fontsize=8, color=PALETTE["other"],
    )  # fmt: skip
    right.set_ylim(0, 1.03)
    left.set_ylabel("loss (nats per token)")
    right.set_ylabel("score (share of attention, or norm)")
    return figure


@styled
def detectors(
    copying: Float[Tensor, "layer head"],
    lifts: Mapping[str, Float[Tensor, "layer head"]],
    *,
    marked: Sequence[tuple[int, int]],
) -> Figure:
    """Draw how far heads lift the token that they read, against their copying score.

    Args:
        copying: As :func:`residual_stream.copying_scores` returns them.
        lifts: What the heads were fed to the lift, in standard deviations over the vocabulary.
        marked: Heads to point out.

    Returns:
        A figure with one scatter plot per input, one dot per head.
    """
    figure, axes = panels(1, len(lifts), height=3.4, sharey=True)
    where = tuple(torch.tensor(marked).T)
    for ax, (fed, values) in zip(axes, lifts.items(), strict=True):
        x, y = copying.cpu(), values.cpu()
        ax.scatter(
            x.flatten().cpu().numpy(), y.flatten().cpu().numpy(), s=8, color=PALETTE["other"]
        )
        ax.scatter(x[where].cpu().numpy(), y[where].cpu().numpy(), s=28, color=PALETTE["attn"])
        zero_line(ax)
        zero_line(ax, vertical=True)
        ax.set_xlabel(f"copying score (fed: {fed})")
    # Named in the last panel only: where the marked heads stand close together, names overlap.
    for (layer, head), u, v in zip(marked, x[where].tolist(), y[where].tolist(), strict=True):
        axes[-1].annotate(
            f"L{layer}H{head}", (u, v), xytext=(4, 4), textcoords="offset points", fontsize=7
        )
    axes[0].set_ylabel("lift of the token read (sd of the logits)")
    return figure
