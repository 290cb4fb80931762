"""A list of all that the reader predicted in the book, on a page that is no notebook.

```{looking-back}
```

The boxes are those that the executed chapters list at their ends, so nobody keeps a second list;
each chapter's title leads to its page.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from stored_widget import STATE, place

CHAPTERS = "chapters"


def boxes(path: Path) -> tuple[str, list[str]]:
    """Return a chapter's title and the names of its boxes, in the order of its own list."""
    notebook = nbformat.read(path, as_version=4)
    title = notebook.cells[0].source.splitlines()[0].lstrip("# ")
    states = notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})
    lists = [s["state"]["data"]["chapters"] for s in states.values() if _looks_back(s)]
    return title, [name for chapters in lists for chapter in chapters for name in chapter["names"]]


def _looks_back(state: dict) -> bool:
    return state["state"].get("kind") == "predictions"


class LookingBack(SphinxDirective):
    """The directive; it takes no argument."""

    def run(self) -> list[nodes.Node]:
        """Return the place of the list, and its state."""
        from residual_stream.widgets import look_back

        chapters, links = {}, {}
        up = "../" * self.env.docname.count("/")
        for path in sorted((Path(self.env.srcdir) / CHAPTERS).glob("*.ipynb")):
            self.env.note_dependency(str(path))
            title, names = boxes(path)
            chapters[title], links[title] = names, f"{up}{CHAPTERS}/{path.stem}.html"
        return [place(self, look_back(chapters, links=links))]


def setup(app: Sphinx) -> dict:
    """Connect to Sphinx; `stored_widget` loads the script."""
    app.add_directive("looking-back", LookingBack)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
