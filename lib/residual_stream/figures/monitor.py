"""Figures of training runs: losses, and what a monitor saw, also while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from ..monitor import StreamMonitor
from .style import DIVERGING, PALETTE, SEQUENTIAL, panels, styled


@styled
def losses(runs: Mapping[str, Sequence[float]], *, smooth: int = 5) -> Figure:
    """Draw the loss curves of several runs, each with its name at its end.

    Args:
        runs: Loss of every step by name, in nats per token.
        smooth: Steps that are averaged.

    Returns:
        A figure with one curve per run.
    """
    figure, (ax,) = panels(height=3.2)
    ends = []
    for (name, values), color in zip(runs.items(), _colors(len(runs)), strict=True):
        curve = np.convolve(np.asarray(values), np.ones(smooth) / smooth, mode="valid")
        steps = np.arange(smooth, len(values) + 1)
        ax.plot(steps, curve, color=color, linewidth=1.4)
        ends.append((len(values), float(curve[-1]), name, color))
    ax.set_xlabel("step")
    ax.set_ylabel("loss (nats per token)")
    low, high = ax.get_ylim()
    placed: list[tuple[int, float]] = []
    for step, value, name, color in sorted(ends, key=lambda end: end[1]):
        near = [y for x, y in placed if x == step]
        at = max([value, *(y + 0.055 * (high - low) for y in near)])
        placed.append((step, at))
        ax.annotate(
            name, (step, at), xytext=(4, 0), textcoords="offset points", color=color, fontsize=9,
            va="center",
        )  # fmt: skip
    return figure


@styled
def vital_signs(monitors: StreamMonitor | Mapping[str, StreamMonitor]) -> Figure:
    """Draw four signs of a run by step and depth, one column per run.

    From the top: what differs between tokens in each write, over the stream that it joins; the
    share of each write that rounding swallowed; how much a relative change of the stream counts
    for the loss, over what it counts at the top; and whether each norm's gain has moved since the
    sample before.

    Args:
        monitors: One monitor, or several by name.

    Returns:
        A figure of four rows of maps, depth upwards and sampled steps to the right.

    Raises:
        ValueError: A monitor that has sampled nothing yet.
    """
    runs = {"": monitors} if isinstance(monitors, StreamMonitor) else dict(monitors)
    for name, monitor in runs.items():
        if not monitor.history.samples:
            raise ValueError(f"vital_signs: monitor {name!r} has sampled no step yet")
    figure, axes = panels(4, len(runs), width=max(4.2, 1.15 * len(runs) + 1.4), height=5.6)
    signs = (
        ("write / stream", LogNorm(1e-3, 10.0), SEQUENTIAL),
        ("share lost", Normalize(0.0, 1.0), SEQUENTIAL),
        ("counts / top", LogNorm(1e-2, 1e2), DIVERGING),
        ("gain moved", Normalize(0.0, 1.0), SEQUENTIAL),
    )
    for column, (name, monitor) in enumerate(runs.items()):
        for row, ((label, norm, cmap), values) in enumerate(
            zip(signs, _signs(monitor), strict=True)
        ):
            ax = axes[row * len(runs) + column]
            low = norm.vmin if isinstance(norm, LogNorm) else None
            shown = np.where(values <= 0, low, values) if low else values
            image = ax.imshow(
                shown, aspect="auto", origin="lower", norm=norm, cmap=cmap, interpolation="nearest",
                extent=(0, values.shape[1], 0, monitor.n_layers),
            )  # fmt: skip
            ax.set_xticks([])
            ax.set_yticks([0, monitor.n_layers] if column == 0 else [])
            ax.set_xlabel(name if row == 3 and name else "")
            if column == 0:
                ax.set_ylabel(f"{label}\n(layer)", fontsize=8)
            if column == len(runs) - 1:
                bar = figure.colorbar(image, ax=ax, pad=0.03, aspect=9)
                bar.ax.tick_params(labelsize=7)
    figure.supxlabel("sampled steps", fontsize=9)
    return figure


@styled
def by_depth(monitor: StreamMonitor) -> Figure:
    """Draw the last sample by depth: lengths, and each write over the stream that it joins.

    Args:
        monitor: A monitor that has sampled a step.

    Returns:
        A figure of two panels: the stream's norm and its first value, position 0 apart, on a log
        axis; and the ratios, on a log axis, with the line at 1.
    """
    frame = monitor.to_frame()
    frame = frame[frame["step"] == frame["step"].max()]
    figure, (left, right) = panels(1, 2, height=3.0)
    stream = frame[frame["part"] == "stream"]
    left.plot(stream["layer"], stream["norm"], color=PALETTE["stream"], label="other positions")
    left.plot(stream["layer"], stream["first"], color=PALETTE["position 0"], label="position 0")
    left.set_ylabel("length of the stream (log axis)")
    for part in [part for part in frame["part"].unique() if part != "stream"]:
        own = frame[(frame["part"] == part) & (frame["ratio"] > 0)]
        right.plot(
            own["layer"], own["ratio"], "o-", ms=3, color=PALETTE.get(part, PALETTE["parallel"]),
            label={"attn": "attention", "mlp": "MLP"}.get(part, part),
        )  # fmt: skip
    right.axhline(1.0, color=PALETTE["other"], linewidth=0.8, zorder=0)
    right.set_ylabel("write / stream (log axis)")
    for ax in (left, right):
        ax.set_yscale("log")
        ax.set_xlabel("depth (layers run)")
        if ax.get_legend_handles_labels()[0]:
            ax.legend(fontsize=8)
    return figure


class Live:
    """A figure of a run that redraws itself in place while the run goes on.

    Call :meth:`draw` after ``monitor.step()``: it redraws when there is a new sample. In a notebook
    the figure is replaced where it stands; without a front end nothing is shown, and
    :attr:`figure` is the latest drawing.

    Args:
        monitor: The monitor.

    Attributes:
        figure: The latest drawing, None before the first sample.
    """

    def __init__(self, monitor: StreamMonitor) -> None:
        """Look at a monitor; nothing is drawn yet."""
        self.monitor = monitor
        self.figure: Figure | None = None
        self._seen = -1
        self._handle: Any = None

    def draw(self) -> Figure | None:
        """Redraw if the monitor has a new sample, and return the figure."""
        samples = self.monitor.history.samples
        if not samples or samples[-1].step == self._seen:
            return self.figure
        self._seen = samples[-1].step
        self.figure = by_depth(self.monitor)
        shell = _shell()
        if shell is not None:
            from IPython.display import display

            if self._handle is None:
                self._handle = display(self.figure, display_id=True)
            else:
                self._handle.update(self.figure)
        return self.figure


def _shell() -> Any:
    """The running IPython shell with a front end that shows figures, or None."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    shell = get_ipython()
    return shell if shell is not None and hasattr(shell, "kernel") else None


def _signs(monitor: StreamMonitor) -> list[np.ndarray]:
    frame = monitor.to_frame()
    writes, streams = frame[frame["part"] != "stream"], frame[frame["part"] == "stream"]
    felt = streams.assign(felt=streams["gradient"] * streams["norm"])
    felt = felt.pivot(index="layer", columns="step", values="felt").to_numpy()
    n_steps = frame["step"].nunique()

    def by_step(values: Any) -> np.ndarray:
        return np.asarray(values, dtype=float).reshape(n_steps, -1).T

    inside = [layer < monitor.n_layers for layer, _ in monitor.history.gains]
    moved = np.array([sample.gain_moved.cpu().numpy() for sample in monitor.history.samples])
    gains = moved[:, inside].T.astype(float)
    return [
        by_step(writes["varies"] / writes["before"]),
        by_step(writes["lost"]),
        felt[:-1] / np.maximum(felt[-1:], np.finfo(float).tiny),
        gains if len(gains) else np.full((1, n_steps), np.nan),
    ]


def _colors(count: int) -> list[tuple[float, float, float, float]]:
    """Shades, not the palette's hues: a run is none of the things that those stand for."""
    return [mpl.colormaps[SEQUENTIAL](0.85 * i / max(count - 1, 1)) for i in range(count)]
