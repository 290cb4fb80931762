"""Let Markdown links reach `<a id="…"></a>` anchors and the entries of the bibliography.

Chapters are read in Jupyter and on Colab too, so they use plain anchors and plain links,
`[Elhage et al. 2021](../book/references.md#elhage2021)`, and no roles. MyST knows headings and
its own labels only, and warns about every other fragment. Here each anchor of a page is made known
to it, so that the strict build still finds a link that leads nowhere.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

ANCHOR = re.compile(r"<a\s+id=\"([^\"]+)\"")
REFERENCES = "book/references"


def anchors_of(app: Sphinx, doctree: nodes.document) -> list[str]:
    """Return the ids of a page's raw anchors and, on the references page, of its entries."""
    found = [name for raw in doctree.findall(nodes.raw) for name in ANCHOR.findall(raw.astext())]
    if app.env.docname == REFERENCES:
        found += list(app.env.get_domain("cite").bibdata.data.entries)
    return found


def register(app: Sphinx, doctree: nodes.document) -> None:
    """Make the anchors of the page just read known to `page#anchor` and `#anchor` links."""
    page = app.env.docname
    slugs = app.env.metadata[page].setdefault("myst_slugs", {})
    labels = app.env.get_domain("std").anonlabels
    for name in anchors_of(app, doctree):
        slugs[name] = (0, name, name)
        labels.setdefault(name, (page, name))


def setup(app: Sphinx) -> dict:
    """Connect to Sphinx."""
    app.connect("doctree-read", register)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
