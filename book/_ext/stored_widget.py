"""Put a shipped figure that moves on a page that is no notebook: the landing page.

```{stored-widget} climb
:image: /book/_static/landing.png
:alt: What is to be seen in the picture.
```

The page gets what a notebook's page gets: the figure's state, the place that `static_widgets.js`
fills, and in it the still picture and the sentence for where no script runs.
"""

from __future__ import annotations

import hashlib
import json

from docutils import nodes
from docutils.parsers.rst import directives
from ipywidgets.embed import embed_data
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"
SCRIPT = "static_widgets.js"
MARK = "stored-widget"


class StoredWidget(SphinxDirective):
    """The directive; its argument is a name of `rs.widgets.shelved()`."""

    required_arguments = 1
    option_spec = {"image": directives.uri, "alt": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """Return the picture and the sentence, the place of the figure, and its state."""
        from residual_stream.widgets import stored

        image = nodes.image(uri=self.options["image"], alt=self.options["alt"])
        return [place(self, stored(self.arguments[0]), image)]


def place(directive: SphinxDirective, figure, *images: nodes.image) -> nodes.container:
    """Return the place of a figure on a directive's page, with what stands there till it runs."""
    state, model_id = state_of(figure)
    still = nodes.container(classes=["rs-still"])
    still += [*images, nodes.paragraph("", figure.sentence, classes=["rs-still-text"])]
    view = json.dumps({"version_major": 2, "version_minor": 0, "model_id": model_id})
    held = nodes.container(classes=["rs-place"])
    held += [still, script(VIEW, view), script(STATE, state)]
    directive.env.metadata[directive.env.docname][MARK] = "yes"
    return held


def state_of(figure) -> tuple[str, str]:
    """Return a figure's state as JSON, and its id, the same in every build."""
    model_id = hashlib.md5(figure.kind.encode()).hexdigest()
    state = embed_data([figure], drop_defaults=False)["manager_state"]
    text = json.dumps(state, sort_keys=True, ensure_ascii=False)
    return text.replace(figure.model_id, model_id), model_id


def script(kind: str, text: str) -> nodes.raw:
    """Return a script element that holds data."""
    safe = text.replace("</", "<\\/")
    return nodes.raw("", f'<script type="{kind}">{safe}</script>', format="html")


def load(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Load the script on the pages that have such a figure."""
    if app.env.metadata.get(pagename, {}).get(MARK):
        app.add_js_file(SCRIPT)


def setup(app: Sphinx) -> dict:
    """Connect to Sphinx."""
    app.add_directive(MARK, StoredWidget)
    app.connect("html-page-context", load)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
