"""Figures of switched-off writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from .style import PALETTE, panels, styled, zero_line


@styled
def single_switches(names: Sequence[str], shares: Sequence[float], lost: Sequence[float]) -> Figure:
    """Draw what each write gave a logit beside what the logit loses without it.

    Args:
        names: The writes.
        shares: Their shares of the logit.
        lost: What the logit loses when the model runs again without one.

    Returns:
        A figure of one panel, two bars a write.
    """
    figure, (ax,) = panels(width=7.0, height=0.36 * len(names) + 1.1)
    place = np.arange(len(names))
    ax.barh(place - 0.2, shares, height=0.36, color=PALETTE["other"], label="its share")
    ax.barh(place + 0.2, lost, height=0.36, color=PALETTE["stream"], label="lost when run again")
    ax.set_yticks(place, names)
    ax.invert_yaxis()
    zero_line(ax, vertical=True)
    ax.set_xlabel("logits")
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure
