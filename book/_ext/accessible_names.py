"""Mend what the theme and two extensions write that a screen reader stumbles on.

axe-core finds these on every page (tests/test_site.py runs it): names that leave out the words on
the button, and a list whose entries are hidden from it. They stand in other people's templates, so
they are mended in the finished page.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

#: What is found on some page of the book, and what stands there afterwards.
REPAIRS = {
    # the sidebar's search button says "Search Ctrl+K"
    r'(search-button-field[^>]*?) title="Search" aria-label="Search"': r"\1",
    # its symbols bring names of their own, "Light", "Dark" and "System Settings"
    r'(<i class="theme-switch [^>]*?)\s+title="[^"]*"(?=></i>)': r'\1 aria-hidden="true"',
    # a folded cell says "Show code cell source"
    r'<summary aria-label="Toggle hidden content">': "<summary>",
    # the bibliography: a list may hold list items only, and the entries' role is deprecated
    r'<div role="list" class="citation-list">': '<div class="citation-list">',
    r'(<div class="citation" id="[^"]*") role="doc-biblioentry"': r"\1",
}


def repaired(page: str) -> str:
    """Return the page with every repair made."""
    for found, instead in REPAIRS.items():
        page = re.sub(found, instead, page)
    return page


def repair(app: Sphinx, exception: Exception | None) -> None:
    """Mend every page."""
    if exception is None and app.builder.name == "html":
        for path in Path(app.outdir).rglob("*.html"):
            page = path.read_text(encoding="utf-8")
            path.write_text(repaired(page), encoding="utf-8")


def setup(app: Sphinx) -> dict:
    """Connect to Sphinx."""
    app.connect("build-finished", repair)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
