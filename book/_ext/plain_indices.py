"""Hide a data frame's row numbers where they only count the rows.

`0, 1, 2, …` down the side of a table is pandas' default and says nothing. An index that says
something (depths, names, numbers that do not count) stays.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

TABLE = re.compile(r'<table border="1" class="dataframe">.*?</table>', re.DOTALL)
SIDE = re.compile(r"(<tr>\s*)<th>([^<]*)</th>")
CORNER = re.compile(r"(<tr[^>]*>\s*)<th></th>")


def without_counts(page: str) -> str:
    """Return HTML whose data frames have no row numbers that only count.

    >>> row = "<tr><th>{}</th><td>x</td></tr>"
    >>> head = '<table border="1" class="dataframe"><thead><tr><th></th><th>a</th></tr></thead>'
    >>> table = head + "{}</table>"
    >>> "<th>0</th>" in without_counts(table.format(row.format(0) + row.format(1)))
    False
    >>> "<th>2</th>" in without_counts(table.format(row.format(2) + row.format(4)))
    True
    """
    return TABLE.sub(lambda found: _plain(found[0]), page)


def _plain(table: str) -> str:
    head, body, rows = table.partition("</thead>")
    counted = [label for _, label in SIDE.findall(rows)]
    if counted != [str(i) for i in range(len(counted))] or head.count("<tr") != 1:
        return table
    return CORNER.sub(r"\1", head, count=1) + body + SIDE.sub(r"\1", rows)


def clear(app: Sphinx, doctree: nodes.document) -> None:
    """Clear the tables of the page just read."""
    for raw in list(doctree.findall(nodes.raw)):
        text = raw.astext()
        if 'class="dataframe"' in text:
            raw.replace_self(nodes.raw("", without_counts(text), format=raw["format"]))


def setup(app: Sphinx) -> dict:
    """Connect to Sphinx."""
    app.connect("doctree-read", clear)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
