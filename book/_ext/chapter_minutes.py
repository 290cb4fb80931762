"""The chapters, each with its question and the measured time of its cells.

`tools/execute_notebooks.py` notes in `chapters/times.json` how long each notebook took when it was
last executed. Here that becomes a sentence under "Time" on the chapter's page, and the table of
chapters where a page has the line `% chapters`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
from docutils import nodes
from sphinx.application import Sphinx

FOLDER = "chapters/"
MARK = re.compile(r"^% chapters$", re.MULTILINE)
ABLE = re.compile(r"^\*\*You will be able to\*\* (.+?)\.?$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def measured(chapters: Path) -> dict[str, float]:
    """Return the seconds of processor time of every chapter that was executed and timed."""
    path = chapters / "times.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def in_words(seconds: float) -> str:
    """Return a time to the half minute: it depends on the machine.

    >>> in_words(20), in_words(58), in_words(95)
    ('half a minute', '1 minute', '1.5 minutes')
    """
    halves = max(1, round(seconds / 30))
    if halves == 1:
        return "half a minute"
    return f"{halves / 2:g} minute{'s' if halves > 2 else ''}"


def table(chapters: Path) -> str:
    """Return the table of chapters in Markdown."""
    times = measured(chapters)
    rows = ["| chapter | you will be able to | its cells run in |", "|---|---|---|"]
    for path in sorted(chapters.glob("*.ipynb")):
        opening = nbformat.read(path, as_version=4).cells[0].source
        title = opening.splitlines()[0].removeprefix("# ")
        able = ABLE.search(opening)
        able = LINK.sub(r"\1", able[1]) if able else ""
        time = in_words(times[path.stem]) if path.stem in times else "not measured"
        rows.append(f"| [{title}](../{FOLDER}{path.name}) | {able} | {time} |")
    return "\n".join(rows)


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the table where a page asks for it."""
    if MARK.search(source[0]):
        source[0] = MARK.sub(lambda _: table(Path(app.srcdir) / FOLDER), source[0])


def say(app: Sphinx, doctree: nodes.document) -> None:
    """Say under a chapter's "Time" what was measured."""
    name = app.env.docname
    seconds = measured(Path(app.srcdir) / FOLDER).get(name.removeprefix(FOLDER))
    if not name.startswith(FOLDER) or seconds is None:
        return
    for paragraph in doctree.findall(nodes.paragraph):
        if paragraph.astext().startswith("Time:"):
            said = f" When last executed, all cells took {in_words(seconds)} of processor time."
            paragraph += nodes.Text(said)
            return


def setup(app: Sphinx) -> dict:
    """Connect to Sphinx."""
    app.connect("source-read", fill)
    app.connect("doctree-read", say)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
