"""The page of claims gets its verdicts and measured sentences from the executed chapters.

`book/claims.md` lists what the source texts say, one row a claim: `| B1 | claim | said by |`. When
the site is built, each row gets its link, its verdict and the sentence that the chapter's code
wrote, so the page cannot say anything else than the chapter does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import nbformat
from sphinx.application import Sphinx

CLAIM_MIME = "application/vnd.residual-stream.claim+json"
MARKS = {"true": "✓", "true with a caveat": "◐", "wrong as stated": "✗"}
PAGE = "book/claims"
_HEAD = re.compile(r"^\| \| claim \| said by \|\n\|---\|---\|---\|$", re.MULTILINE)
_ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+) \| (.+) \|$", re.MULTILINE)


class Reached(NamedTuple):
    """What a chapter found about a claim."""

    chapter: str
    verdict: str
    sentence: str


def reached(chapters: Path) -> dict[str, Reached]:
    """Return the verdict and the sentence of every claim that an executed chapter tests."""
    found = {}
    for path in sorted(chapters.glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                if record := output.get("data", {}).get(CLAIM_MIME):
                    found[record["claim"]] = Reached(
                        path.name, record["verdict"], record["sentence"]
                    )
    return found


def listed(page: str) -> list[str]:
    """Return the claims that the page lists, in order."""
    return [match[1] for match in _ROW.finditer(page)]


def filled(page: str, results: dict[str, Reached]) -> str:
    """Return the page with a link, a verdict and a measured sentence in every row."""

    def row(match: re.Match[str]) -> str:
        claim, text, by = match.groups()
        if claim not in results:
            return f"| {claim} | {text} *{by}* | not tested yet | |"
        chapter, verdict, sentence = results[claim]
        link = f"[{claim}](../chapters/{chapter}#claim-{claim.lower()})"
        sentence = sentence.replace("|", "\\|")
        return f"| {link} | {text} *{by}* | {MARKS[verdict]} {verdict} | {sentence} |"

    page = _HEAD.sub("| | claim | verdict | measured |\n|---|---|---|---|", page)
    return _ROW.sub(row, page)


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    """Fill the page of claims while Sphinx reads it."""
    if docname == PAGE:
        source[0] = filled(source[0], reached(Path(app.srcdir) / "chapters"))


def setup(app: Sphinx) -> dict:
    """Connect to Sphinx."""
    app.connect("source-read", fill)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
