"""Captions where only the website shows them: the same words in plain Markdown below each figure.

    python tools/captions.py             # say what is missing
    python tools/captions.py --write     # put it into every chapter

A figure's caption stands in the metadata of its cell, where MyST finds it and Jupyter and Colab do
not look. So a cell follows that repeats it; the site leaves that cell away (tag `remove-cell`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
TAG = "caption"
#: The site has the caption already.
TAGS = [TAG, "remove-cell"]


def caption(cell: nbformat.NotebookNode) -> str:
    """Return the caption in a cell's metadata, or nothing."""
    return cell.metadata.get("mystnb", {}).get("figure", {}).get("caption", "")


def with_captions(cells: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Return the cells of a notebook with every caption repeated below its figure, and no other.

    Example:
        >>> figure = nbformat.v4.new_code_cell("draw()", id="a")
        >>> figure.metadata["mystnb"] = {"figure": {"caption": "It climbs."}}
        >>> [cell.source for cell in with_captions(with_captions([figure]))]
        ['draw()', '*Figure.* It climbs.']
    """
    found = []
    for cell in cells:
        if TAG in cell.metadata.get("tags", []):
            continue
        found.append(cell)
        if caption(cell):
            said = f"*Figure.* {caption(cell)}"
            below = nbformat.v4.new_markdown_cell(said, metadata={"tags": list(TAGS)})
            below["id"] = f"{cell['id'][:56]}-caption"
            found.append(below)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="write it into every chapter")
    options = parser.parse_args(arguments)
    good = True
    for path in sorted(ROOT.glob("chapters/*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        cells = with_captions(notebook.cells)
        same = cells == notebook.cells
        good = good and (same or options.write)
        if options.write and not same:
            notebook.cells = cells
            text = nbformat.writes(notebook, indent=1, ensure_ascii=False) + "\n"
            path.write_text(text, encoding="utf-8")
        print(path, "unchanged" if same else ("written" if options.write else "WOULD CHANGE"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
