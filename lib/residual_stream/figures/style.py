"""The look of every figure: one palette, opaque background, readable in print.

The hues are Okabe and Ito's (2008), told apart with any common colour blindness; what each stands
for is fixed for the whole book.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from types import MappingProxyType
from typing import ParamSpec

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

PALETTE: dict[str, str] = {
    "embed": "#009E73",
    "attn": "#0072B2",
    "mlp": "#D55E00",
    "parallel": "#8C5A2B",
    "stream": "#2B2B2B",
    "norm": "#CC79A7",
    "position 0": "#E69F00",
    "other": "#8A8A8A",
}
PALETTE["pos_embed"] = "#56B4E9"
#: The same hues, lighter, for the widgets of :mod:`residual_stream.widgets` on a dark page.
PALETTE_DARK: dict[str, str] = {
    "embed": "#35C29A",
    "attn": "#58AEEB",
    "mlp": "#F28B45",
    "parallel": "#C79A6B",
    "stream": "#E4E4E4",
    "norm": "#E3A3C7",
    "position 0": "#F2BC4B",
    "other": "#9A9A9A",
    "pos_embed": "#8CCDF2",
}

Parameters = ParamSpec("Parameters")

# Diverging around zero, blue to vermilion through white.
DIVERGING = mpl.colors.LinearSegmentedColormap.from_list(
    "residual_stream", ["#00466E", "#0072B2", "#F7F7F7", "#D55E00", "#7A3600"]
)
SEQUENTIAL = "cividis"

_RC = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.transparent": False,
    "figure.dpi": 130,
    "savefig.dpi": 130,
    "figure.constrained_layout.use": True,
    # The fonts that matplotlib ships, so that a figure is the same on every machine.
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelsize": 10,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "image.cmap": SEQUENTIAL,
    "svg.hashsalt": "residual-stream",
}


def color_of(kind: str) -> str:
    """Return the colour of a kind of write; one for all mixers that are not attention.

    Example:
        >>> color_of("attn"), color_of("linear_attn") == color_of("mixer")
        ('#0072B2', True)
    """
    return PALETTE.get(kind, "#7A9CC6")


@contextmanager
def book_style() -> Iterator[None]:
    """Apply the book's style inside a ``with`` block, and nothing outside it."""
    with mpl.rc_context(_RC):
        yield


def styled(draw: Callable[Parameters, Figure]) -> Callable[Parameters, Figure]:
    """Make a function that draws a figure draw all of it in the book's style."""

    @wraps(draw)
    def in_style(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Figure:
        with book_style():
            return draw(*args, **kwargs)

    return in_style


def panels(
    rows: int = 1, columns: int = 1, *, width: float = 7.2, height: float = 3.4, **options: object
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and its axes in reading order; call it from a `styled` function.

    Args:
        rows: Number of rows of axes.
        columns: Number of columns of axes.
        width: Width in inches.
        height: Height in inches.
        options: Passed to ``matplotlib.figure.Figure.subplots`` (``sharex``, ``width_ratios`` …).

    Returns:
        The figure and a flat list of its axes.
    """
    figure = plt.figure(figsize=(width, height))
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    # The notebook shows the returned figure once; pyplot must not show it a second time.
    plt.close(figure)
    return figure, list(axes.flat)


def zero_line(ax: Axes, *, vertical: bool = False) -> None:
    """Draw the line at zero, for quantities whose sign matters."""
    draw = ax.axvline if vertical else ax.axhline
    draw(0, color=PALETTE["other"], linewidth=0.8, zorder=0)


def quantile(values: Float[Tensor, "step sample"], q: float) -> Float[np.ndarray, " step"]:
    """Return a quantile of every step's sample, as matplotlib takes it."""
    # NumPy: matplotlib's arithmetic on tensors warns.
    return np.quantile(values.double().cpu().numpy(), q, axis=1)


def band(
    ax: Axes,
    x: Sequence[int] | Int[np.ndarray, " step"],
    values: Float[Tensor, "step sample"],
    *,
    color: str,
    label: str | None = None,
    ranges: Mapping[float, float] = MappingProxyType({0.9: 0.18}),
) -> None:
    """Draw the median of a sample along ``x`` over the range of its middle part.

    Args:
        ax: Where to draw.
        x: The steps.
        values: A sample at every step.
        color: Of line and band.
        label: Of the line, for a legend.
        ranges: Which middle part of the sample each band spans, with the band's opacity.
    """
    for share, alpha in ranges.items():
        low, high = (quantile(values, 0.5 + side * share / 2) for side in (-1, 1))
        ax.fill_between(x, low, high, color=color, alpha=alpha, linewidth=0)
    ax.plot(x, quantile(values, 0.5), color=color, label=label)
