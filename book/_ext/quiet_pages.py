"""Pages that load nothing they do not use, ask no other host, and leave the console empty."""

from __future__ import annotations

from sphinx.application import Sphinx


def drop_thebe(app: Sphinx, pagename, templatename, context, doctree) -> None:
    """Take out Thebe's scripts: sphinx-thebe adds one twice, a SyntaxError on every page."""

    def is_thebe(script) -> bool:
        body = getattr(script, "attributes", {}).get("body") or ""
        return "THEBE_JS_URL" in body or "sphinx-thebe" in str(getattr(script, "filename", script))

    context["script_files"] = [s for s in context.get("script_files", []) if not is_thebe(s)]


def load_mathjax(app: Sphinx) -> None:
    """Load MathJax where all pages are one: Sphinx asks if the first of them has a formula."""
    if app.builder.name == "singlehtml":
        app.set_html_assets_policy("always")


def setup(app: Sphinx) -> dict:
    """Connect to Sphinx, after every extension that adds scripts."""
    app.connect("builder-inited", load_mathjax)
    app.connect("html-page-context", drop_thebe, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
