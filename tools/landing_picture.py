"""Draw the picture of the landing page and the README: one sentence climbing through the model.

python tools/landing_picture.py            # writes book/_static/landing.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

import residual_stream as rs
from residual_stream.figures.style import PALETTE, panels, styled

TARGET = Path(__file__).parents[1] / "book" / "_static" / "landing.png"
SENTENCE = "The capital of France is"
SHOWN = (0, 1, 6, 11, 16, 21, 24, 27, 30)


@styled
def picture(sentence: str) -> Figure:
    """Return the grid of a sentence: a column per token, a row per depth, bottom to top.

    Colour is the norm of the stream; the word is what the logit lens reads there.
    """
    model = rs.load("smollm2-135m")
    stream = rs.record(model, sentence)
    before_block = stream.accumulated()[::2, 0]  # [block, pos, d_model]; the last is the top
    with torch.no_grad():
        words = model.unembed(model.ln_final(before_block)).argmax(-1)
    norms = before_block.norm(dim=-1).log10()
    figure, (ax,) = panels(width=8.2, height=4.6)
    grid = norms[list(SHOWN)]
    ax.imshow(grid, origin="lower", aspect="auto", cmap="cividis", vmin=0.4, vmax=3.2)
    for row, depth in enumerate(SHOWN):
        for column in range(grid.shape[1]):
            word = model.to_single_str_token(int(words[depth, column])).strip() or "␣"
            ax.text(
                column,
                row,
                word[:10],
                ha="center",
                va="center",
                color="black" if grid[row, column] > 2.2 else "white",
                fontsize=9,
            )
    tokens = [token.replace("<|im_start|>", "⟨start⟩") for token in stream.str_tokens[0]]
    ax.set_xticks(range(len(tokens)), tokens, color=PALETTE["embed"], fontsize=11)
    ax.set_yticks(
        range(len(SHOWN)),
        ["the row", *(f"after block {depth - 1}" for depth in SHOWN[1:])],
    )
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    figure.colorbar(ax.images[0], ax=ax, label="norm of the stream (log₁₀)", shrink=0.8)
    return figure


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentence", default=SENTENCE)
    arguments = parser.parse_args()
    picture(arguments.sentence).savefig(TARGET, metadata={"Software": None})
    print(TARGET)


if __name__ == "__main__":
    main()
