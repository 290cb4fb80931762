"""Notebooks as they are handed in: made of answers, and damaged as notebooks are damaged."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import nbformat

from course.attempts import Attempts, read_attempts
from course.sheet import ASSIGNMENTS, Sheet, read_sheet
from course.versions import solution, student, text_of


def notebook(*cells: str) -> str:
    """A notebook of code cells."""
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(source) for source in cells]
    return text_of(made)


def write(folder: Path, name: str, text: str) -> Path:
    """Put a file into the folder of submissions."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def answers(sheet: Sheet, which: int) -> str:
    """A notebook of the `which`-th right answer to every question, from the file of attempts."""
    attempts: Attempts = read_attempts(sheet.name)
    file = (ASSIGNMENTS / "attempts" / f"{sheet.name}.py").read_text(encoding="utf-8")
    file = file.replace(
        "from course.attempts import Attempts\n",
        inspect.cleandoc("""
            class Attempts:
                def right(self, name): return lambda function: function
                def wrong(self, *args): return lambda function: function
        """)
        + "\n",
    )
    names = [
        f"{name} = {given[which % len(given)].__name__}"
        for name, given in attempts.right_ones.items()
    ]
    texts = [f"{q.name} = 'About ten sentences.'" for q in sheet.questions if q.manual]
    return notebook(file, "\n".join(names), "\n".join(texts))


def full_marks(sheet: Sheet) -> float:
    """What a right notebook gets without a person."""
    return sum(question.points for question in sheet.questions if not question.manual)


def damaged(sheet: Sheet) -> dict[str, tuple[str, float | None]]:
    """Damaged notebooks by name, with the points they still have; None: reported by name."""
    whole: dict[str, Any] = json.loads(text_of(solution(sheet)))
    # Without the cells that measure on the real model: seconds each, and no points.
    whole["cells"] = [c for c in whole["cells"] if "smollm2-135m" not in "".join(c["source"])]
    full = full_marks(sheet)
    first = sheet.questions[0]

    def changed(change: Any) -> str:
        copy = json.loads(json.dumps(whole))
        change(copy)
        return json.dumps(copy)

    def cells(copy: dict[str, Any], keep: Any) -> None:
        copy["cells"] = [cell for cell in copy["cells"] if keep("".join(cell["source"]))]

    def no_metadata(copy: dict[str, Any]) -> None:
        copy["metadata"] = {}
        copy.pop("nbformat_minor")
        for cell in copy["cells"]:
            cell.pop("metadata")
            cell.pop("id", None)

    def old_format(copy: dict[str, Any]) -> None:
        made = [
            {"cell_type": "code", "input": cell["source"], "language": "python"}
            for cell in copy["cells"]
            if cell["cell_type"] == "code"
        ]
        copy.clear()
        copy.update({"nbformat": 3, "worksheets": [{"cells": made}]})

    def colab(copy: dict[str, Any]) -> None:
        copy["metadata"]["colab"] = {"provenance": [], "toc_visible": True}
        for cell in copy["cells"]:
            cell["metadata"] = {"id": "AbC", "outputId": "x"}
            if cell["cell_type"] == "code" and "import torch" in "".join(cell["source"]):
                cell["source"] = [
                    "#@title Setup\n", "from google.colab import drive\n",
                    "drive.mount('/content/drive')\n", *cell["source"],
                ]  # fmt: skip

    def outputs(copy: dict[str, Any]) -> None:
        for cell in copy["cells"]:
            if cell["cell_type"] == "code":
                stream = {"output_type": "stream", "name": "stdout", "text": ["x" * 2**20] * 2}
                cell["outputs"] = [stream]

    def half_run(copy: dict[str, Any]) -> None:
        for cell in copy["cells"][: len(copy["cells"]) // 2]:
            if cell["cell_type"] == "code":
                cell["execution_count"] = 99
        copy["cells"].append({"cell_type": "code", "source": "1 / 0\n", "metadata": {}})

    def twice(copy: dict[str, Any]) -> None:
        copy["cells"] = [cell for cell in copy["cells"] for _ in range(2)]

    def junk(copy: dict[str, Any]) -> None:
        copy["cells"][3:3] = [
            None,
            7,
            {"cell_type": "code", "source": {"a": 1}},
            {"source": "\ud800 = "},
        ]

    def backwards(copy: dict[str, Any]) -> None:
        code = [cell for cell in copy["cells"] if cell["cell_type"] == "code"]
        copy["cells"] = [*code[1:][::-1], code[0]]  # imports last

    def before_first(text: str) -> Any:
        def change(copy: dict[str, Any]) -> None:
            at = next(i for i, c in enumerate(copy["cells"])
                      if f"def {first.name}(" in "".join(c["source"]))  # fmt: skip
            copy["cells"].insert(at, {"cell_type": "code", "source": text, "metadata": {}})

        return change

    def quoted(copy: dict[str, Any]) -> None:
        for cell in copy["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code" and f"def {first.name}(" in source:
                cell["source"] = f"print(“done”)\n{source}"

    def all_text(copy: dict[str, Any]) -> None:
        for cell in copy["cells"]:
            cell["cell_type"] = "markdown"

    tricks = "%matplotlib inline\n%%time\n!pip install -q einops\n!nvidia-smi"
    leaves = "import sys, os\nos.chdir('/')\nsys.argv.clear()\nname = input('who? ')"
    conflict = changed(lambda copy: None).replace(
        '"cells"', '<<<<<<< HEAD\n"cells": [],\n=======\n"cells"', 1
    )
    lost = changed(lambda copy: cells(copy, lambda s: f"def {first.name}(" not in s))
    return {
        "cells deleted": (lost, full - first.points),
        "cells copied": (changed(twice), full),
        "metadata lost": (changed(no_metadata), full),
        "old format": (changed(old_format), full),
        "half run": (changed(half_run), full),
        "from Colab": (changed(colab), full),
        "huge outputs": (changed(outputs), full),
        "junk between the cells": (changed(junk), full),
        "byte order mark": ("\ufeff" + changed(lambda copy: None), full),
        "nothing done": (text_of(student(sheet)), 0.0),
        "not JSON": (changed(lambda copy: None)[:-50], None),
        "JSON but no notebook": ("[1, 2, 3]", None),
        "empty": ("", None),
        "no code": (changed(lambda copy: copy.update(cells=[])), None),
        "deep": ("[" * 100_000, None),
        "zip": ("PK\x03\x04 and so on", None),
        "cells in another order": (changed(backwards), full),
        "magics and a shell": (changed(before_first(tricks)), full),
        "asks for input": (changed(before_first(leaves)), full),
        "exits half-way": (changed(before_first("import sys\nsys.exit()")), full),
        "quits half-way": (changed(before_first("quit()")), full),
        "typographic quotes": (changed(quoted), full - first.points),
        "UTF-16": ("\ufeff" + changed(lambda copy: None), full),
        "merge conflict": (conflict, None),
        "a page to sign in": ("<!doctype html><title>Sign in</title>", None),
        "all cells made text": (changed(all_text), None),
    }


__all__ = ["answers", "damaged", "full_marks", "notebook", "read_sheet", "write"]
