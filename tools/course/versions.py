"""Write what comes from the source of a sheet: the student's notebook, the solution, the packages.

The student's notebook is committed (`assignments/student/`), so that a link to Colab opens it; a
test holds it against the source. Everything else goes to `_build/course/SHEET/`.
"""

from __future__ import annotations

import argparse
import copy
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from .sheet import ASSIGNMENTS, ROOT, Sheet, SheetError, read_sheet, sheets

STUDENT = ASSIGNMENTS / "student"
BUILT = ROOT / "_build" / "course"
_BEGIN = re.compile(r"^(\s*)# BEGIN SOLUTION( NO PROMPT)?$")
_END = re.compile(r"^\s*# END SOLUTION$")
_LINE = re.compile(r"^(\s*)(?:(.*?\s=)\s.*|.*)\s*# SOLUTION$")


def without_solution(source: str) -> str:
    """Return a code cell as students get it: `...` where a solution was, as otter does it.

    Example:
        >>> print(without_solution("x = 1  # SOLUTION\\n# BEGIN SOLUTION\\ny = x\\n# END SOLUTION"))
        x = ...
        ...
    """
    kept: list[str] = []
    inside = False
    for line in source.split("\n"):
        begin = _BEGIN.match(line)
        if begin:
            if inside:
                raise SheetError(f"a solution begins inside a solution:\n{source}")
            inside = True
            if not begin[2]:
                kept.append(f"{begin[1]}...")
        elif _END.match(line):
            if not inside:
                raise SheetError(f"a solution ends that did not begin:\n{source}")
            inside = False
        elif not inside:
            whole = _LINE.match(line)
            if whole:
                line = f"{whole[1]}{whole[2]} ..." if whole[2] else f"{whole[1]}..."
            kept.append(line)
    if inside:
        raise SheetError(f"a solution without an end:\n{source}")
    return "\n".join(kept)


def with_solution(source: str) -> str:
    """Return a code cell without the marks of its solutions."""
    lines = [line for line in source.split("\n") if not (_BEGIN.match(line) or _END.match(line))]
    return "\n".join(re.sub(r"\s*# SOLUTION$", "", line) for line in lines)


def student(sheet: Sheet) -> NotebookNode:
    """Return the student's notebook: the source less solutions, hidden tests and their bounds."""
    return _notebook(sheet, solutions=False)


def solution(sheet: Sheet) -> NotebookNode:
    """Return the notebook with its solutions and rubrics, without hidden tests."""
    return _notebook(sheet, solutions=True)


def _notebook(sheet: Sheet, *, solutions: bool) -> NotebookNode:
    notebook = nbformat.v4.new_notebook()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for part, cell in sheet.cells:
        if part == "solution" and not solutions:
            continue
        if part == "prompt" and solutions:
            continue
        cell = copy.deepcopy(cell)
        if cell.cell_type == "code":
            cell.source = (with_solution if solutions else without_solution)(cell.source)
            cell.outputs, cell.execution_count = [], None
        notebook.cells.append(cell)
    return notebook


def text_of(notebook: NotebookNode) -> str:
    """Return a notebook as it is written."""
    return nbformat.writes(notebook, indent=1, ensure_ascii=False) + "\n"


def student_path(sheet: Sheet) -> Path:
    """Return where the student's notebook is committed."""
    return STUDENT / f"{sheet.name}.ipynb"


def build(sheet: Sheet, *, otter: str | None = None) -> list[Path]:
    """Write every version of a sheet; return the files.

    Args:
        sheet: The sheet.
        otter: Path of `otter` (otter-grader 7.0.0), for otter's own package as well.
    """
    from .attempts import KEPT, write_fingerprints
    from .gradescope import write_package

    folder = BUILT / sheet.name
    folder.mkdir(parents=True, exist_ok=True)
    STUDENT.mkdir(exist_ok=True)
    written = [student_path(sheet), folder / "solution.ipynb"]
    for path, notebook in zip(written, (student(sheet), solution(sheet)), strict=True):
        path.write_text(text_of(notebook), encoding="utf-8")
    write_fingerprints(sheet)
    written.append(KEPT / f"{sheet.check}.json")
    written.append(write_package(sheet, folder / "gradescope.zip"))
    if otter is not None:
        written.append(assign(sheet, folder / "otter", otter))
    return written


def assign(sheet: Sheet, folder: Path, otter: str, *, seed: int | None = None) -> Path:
    """Run `otter assign` on the source, with the batch's number drawn; return its folder.

    Otter runs hidden tests in the process of the submission: its package is for courses that have
    otter already, and keeps from a student only what otter keeps.
    """
    import secrets

    source = nbformat.read(sheet.source, as_version=4)
    drawn = str(secrets.randbelow(2**31) if seed is None else seed)
    for cell in source.cells:
        if cell.cell_type == "code" and "# END TEST CONFIG" in cell.source:
            cell.source = re.sub(r"\bSEED\b", drawn, cell.source)
        elif cell.cell_type == "raw" and cell.source.startswith("# ASSIGNMENT CONFIG"):
            # with a name otter grades its own student version only, and refuses ours
            cell.source = re.sub(r"^name: .*\n", "", cell.source, flags=re.M)
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / f"{sheet.name}.ipynb"
        nbformat.write(source, path)
        subprocess.run([otter, "assign", str(path), str(folder), "--no-run-tests"], check=True)
    return folder


def main(arguments: list[str]) -> int:
    """Run `python -m course build`; return the exit status."""
    parser = argparse.ArgumentParser("course build", description=__doc__.split("\n\n")[0])
    parser.add_argument("sheets", nargs="*", help=f"of {', '.join(sheets())}; default: all")
    parser.add_argument("--otter", help="path of otter, to write its package as well")
    chosen = parser.parse_args(arguments)
    try:
        for name in chosen.sheets or sheets():
            for path in build(read_sheet(name), otter=chosen.otter):
                print(path)
    except SheetError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
