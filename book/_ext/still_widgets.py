"""Put a widget's still picture and sentence on the page, for where its script does not run.

MyST-NB shows of a cell's output the one form that it likes best: for a widget an empty place that
a script fills. Here that place gets the output's picture and text as well; `static_widgets.js`
hides them when the widget has started. Printed pages keep the picture alone, as MyST-NB does.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PICTURE, TEXT = "image/png", "text/plain"


class KeepStill(SphinxPostTransform):
    """Runs before MyST-NB chooses a form for the builder."""

    default_priority = 3
    formats = ("html",)

    def run(self, **kwargs: object) -> None:
        """Move picture and text into the widget's place."""
        for bundle in list(self.document.findall(nodes.container)):
            if bundle.get("nb_element") != "mime_bundle":
                continue
            forms = {form["mime_type"]: form for form in bundle.children}
            if WIDGET_VIEW in forms:
                forms[WIDGET_VIEW].insert(0, still(forms))


def still(forms: dict[str, nodes.Element]) -> nodes.container:
    """Return what stands in the widget's place until it runs."""
    kept = nodes.container(classes=["rs-still"])
    if PICTURE in forms:
        kept += forms[PICTURE].children
    if TEXT in forms:
        kept += nodes.paragraph("", forms[TEXT].astext(), classes=["rs-still-text"])
    return kept


def setup(app: Sphinx) -> dict:
    """Connect to Sphinx."""
    app.add_post_transform(KeepStill)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
