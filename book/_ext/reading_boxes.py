"""Give the Prediction, Result and Correction of a chapter each a class, for the style sheet.

In the notebooks they are plain block quotes that begin with the bold word, `> **Prediction.** …`
or, written by code, `> **Result · B1 · …`, so that Jupyter and Colab show them too. CSS cannot
select by a text; here the word becomes a class of the block quote.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx

BOXES = ("prediction", "result", "correction")


def kind_of(quote: nodes.block_quote) -> str | None:
    """Return which box a block quote is, by the bold word that it begins with."""
    if not len(quote) or not isinstance(quote[0], nodes.paragraph):
        return None
    inline = [node for node in quote[0] if node.astext()]  # MyST puts an empty text in front
    if not inline or not isinstance(inline[0], nodes.strong):
        return None
    word = inline[0].astext().split()[0].rstrip(".:").lower()
    return word if word in BOXES else None


def mark(app: Sphinx, doctree: nodes.document) -> None:
    """Add the class to every such block quote of the page just read."""
    for quote in doctree.findall(nodes.block_quote):
        kind = kind_of(quote)
        if kind is not None:
            quote["classes"] += ["box", f"box-{kind}"]


def setup(app: Sphinx) -> dict:
    """Connect to Sphinx."""
    app.connect("doctree-read", mark)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
