"""The picture of a sentence climbing through a model."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from .style import PALETTE, SEQUENTIAL, panels, styled


@styled
def climbing(
    tokens: Sequence[str],
    depths: Sequence[str],
    norms: Float[Tensor, "depth pos"],
    words: Sequence[Sequence[str]],
) -> Figure:
    """Draw a grid of tokens against depth: colour is the stream's length, the word the lens's.

    Args:
        tokens: The text.
        depths: Names of the depths, from the bottom up.
        norms: Norm of the stream at each.
        words: What the logit lens reads at each.

    Returns:
        A figure of one panel.
    """
    figure, (ax,) = panels(width=8.2, height=0.42 * len(depths) + 0.9)
    grid = norms.log10()
    image = ax.imshow(grid.numpy(), origin="lower", aspect="auto", cmap=SEQUENTIAL)
    middle = float(grid.min() + grid.max()) / 2
    for row, line in enumerate(words):
        for column, word in enumerate(line):
            ax.text(
                column,
                row,
                word.strip()[:10] or "␣",
                ha="center",
                va="center",
                fontsize=9,
                color="black" if grid[row, column] > middle else "white",
            )
    ax.set_xticks(range(len(tokens)), tokens, color=PALETTE["embed"], fontsize=11)
    ax.set_yticks(range(len(depths)), depths)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    figure.colorbar(image, ax=ax, label="norm of the stream (log₁₀)", shrink=0.8)
    return figure
