"""Keep together what a line break would part: a number and its percent sign, printed columns."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

PERCENT = re.compile(r"(?<=\d) %")
#: A line of a printed table: a gap between two of its words.
GAP = re.compile(r"\S {2,}\S")
#: What is shown as it was typed.
TYPED = (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.raw)


def kept_together(text: str) -> str:
    """Return a text whose percent signs no line break parts from their numbers.

    >>> kept_together("0.48 (middle 90 %: 0.016 to 0.94)")
    '0.48 (middle 90\\xa0%: 0.016 to 0.94)'
    """
    return PERCENT.sub("\u00a0%", text)


def is_table(printed: str) -> bool:
    """Return whether what a cell printed has columns.

    >>> is_table("layer  kept\\n0      no\\n1      yes"), is_table("two lines\\nof a sentence")
    (True, False)
    """
    return sum(bool(GAP.search(line)) for line in printed.splitlines()) >= 3


class KeptTogether(SphinxPostTransform):
    """Do so all over a page, what cells wrote included."""

    default_priority = 900

    def run(self, **kwargs) -> None:
        """Go through the page."""
        for text in list(self.document.findall(nodes.Text)):
            kept = kept_together(text.astext())
            if kept != text.astext() and not isinstance(text.parent, TYPED):
                text.parent.replace(text, nodes.Text(kept))
        for printed in self.document.findall(nodes.literal_block):
            if "output" in printed["classes"] and is_table(printed.astext()):
                printed["classes"].append("aligned")


def setup(app: Sphinx) -> dict:
    """Connect to Sphinx."""
    app.add_post_transform(KeptTogether)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
