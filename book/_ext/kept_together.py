"""Keep a percent sign on the line of its number."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

PERCENT = re.compile(r"(?<=\d) %")
#: What is shown as it was typed.
TYPED = (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.raw)


def kept_together(text: str) -> str:
    """Return a text whose percent signs no line break parts from their numbers.

    >>> kept_together("0.48 (middle 90 %: 0.016 to 0.94)")
    '0.48 (middle 90\\xa0%: 0.016 to 0.94)'
    """
    return PERCENT.sub("\u00a0%", text)


class Percentages(SphinxPostTransform):
    """Do so in all prose of a page, what cells wrote included."""

    default_priority = 900

    def run(self, **kwargs) -> None:
        """Go through the page."""
        for text in list(self.document.findall(nodes.Text)):
            kept = kept_together(text.astext())
            if kept != text.astext() and not isinstance(text.parent, TYPED):
                text.parent.replace(text, nodes.Text(kept))


def setup(app: Sphinx) -> dict:
    """Connect to Sphinx."""
    app.add_post_transform(Percentages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
