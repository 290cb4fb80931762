"""The setup cell with which every notebook begins: written here, once.

    python tools/setup_cell.py             # print it
    python tools/setup_cell.py --write     # put it first into every chapter and every sheet

On Colab it installs the library from the repository, at the tag of this version, and holds torch
and numpy where Colab has them. Anywhere else it does nothing. The address comes from
`pyproject.toml` ([project.urls] Repository) and the tag from the version there.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
#: How the first code cell of a notebook begins where it is this one.
FIRST_LINE = "# On Google Colab: install the book's library"

#: The site folds the cell away; every claim of the chapter needs it.
TAGS = ["setup", "hide-input"]

TEMPLATE = """\
{first_line}.
# Colab's own torch and numpy stay. Anywhere else this does nothing.
import sys

if "google.colab" in sys.modules:
    from importlib.metadata import version
    from pathlib import Path
    from shutil import which
    from subprocess import check_call

    kept = [f"{{name}}=={{version(name)}}" for name in ("torch", "numpy")]
    Path("/tmp/kept.txt").write_text("\\n".join(kept))
    repository = "{repository}"
    library = f"residual-stream @ git+{{repository}}@{tag}"
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    check_call([*pip, "-c", "/tmp/kept.txt", library])
    if which("nvidia-smi") is None:
        print("No GPU here, and none is needed. Slower without one: cells")
        print("that train a model, or run the whole model many times.")
"""


def _project_value(name: str) -> str:
    # A line of the file, not tomllib: the oldest Python that we promise (3.10) has none.
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(rf'^{name} = "([^"]+)"$', text, flags=re.MULTILINE)
    if found is None:
        raise ValueError(f'setup_cell: pyproject.toml has no line {name} = "…"')
    return found[1]


def repository() -> str:
    """Return the address of the repository, without a final slash."""
    return _project_value("Repository").rstrip("/")


def homepage() -> str:
    """Return the address of the site, with a final slash."""
    return _project_value("Homepage").rstrip("/") + "/"


def tag() -> str:
    """Return the tag of this version, such as v0.1.0."""
    return "v" + _project_value("version")


def setup_cell() -> str:
    """Return the source of the setup cell."""
    return TEMPLATE.format(first_line=FIRST_LINE, repository=repository(), tag=tag()).rstrip("\n")


def write_into(path: Path) -> bool:
    """Put the cell first among a notebook's code cells; return whether the file changed.

    Raises:
        ValueError: the notebook has no code cell at all.
    """
    notebook = nbformat.read(path, as_version=4)
    at = next((i for i, c in enumerate(notebook.cells) if c.cell_type == "code"), None)
    if at is None:
        raise ValueError(f"{path}: no code cell, so no place for the setup cell")
    cell = nbformat.v4.new_code_cell(setup_cell(), id="setup-colab", metadata={"tags": TAGS})
    if notebook.cells[at].source.startswith(FIRST_LINE):
        if (
            notebook.cells[at].source == cell.source
            and notebook.cells[at].metadata == cell.metadata
        ):
            return False
        cell.execution_count = notebook.cells[at].execution_count  # it does nothing elsewhere
        notebook.cells[at] = cell
    else:
        notebook.cells.insert(at, cell)
    path.write_text(
        nbformat.writes(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return True


def notebooks() -> list[Path]:
    """Return every chapter, and every sheet with its students' version."""
    folders = ("chapters", "assignments", "assignments/student")
    return [path for folder in folders for path in sorted((ROOT / folder).glob("*.ipynb"))]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="write it into chapters and sheets")
    if not parser.parse_args(arguments).write:
        print(setup_cell())
        return 0
    for path in notebooks():
        print(path, "written" if write_into(path) else "unchanged")
    return 0


if __name__ == "__main__":
    sys.exit(main())
