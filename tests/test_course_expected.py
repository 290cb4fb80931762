"""What is right never enters the process of a submission: one looks everywhere and finds nothing.

The same search finds what a submission is told (the inputs, and the call that asks it), so it would
find the rest.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import residual_stream as rs
from course import judge
from course.attempts import read_attempts
from course.confine import Limits
from course.pool import Pool
from course.sheet import ASSIGNMENTS, ROOT, read_sheet
from course.submissions import code_cells
from course_notebooks import answers, full_marks, notebook
from course_spy import SPY

SHEET, SEED = "01_bus", 424_242
ROOM = Limits(seconds=200.0, cell_seconds=150.0)


def bytes_of(values):
    """Four neighbouring numbers of a tensor that differ, as they lie in memory."""
    flat = values.detach().contiguous().flatten()
    for start in range(len(flat) // 2, len(flat) - 4):
        window = flat[start : start + 4]
        if len(window.unique()) == 4 and bool((window != 0).all()):
            return window.numpy().tobytes()
    raise AssertionError("four numbers that differ")


def right(test):
    """Inputs and expected values of a hidden test, computed here: in the grader's process."""
    space = {"rs": rs, "torch": torch, "SEED": SEED}
    name = test.key.split("/")[0]
    exec(test.inputs, space)
    space[name] = read_attempts(SHEET).right_ones[name][0]
    exec(test.given, space)
    exec(test.compare, space)
    expected = space["expected"]
    return space, torch.stack(expected) if isinstance(expected, list) else expected


@pytest.mark.slow
def test_a_submission_that_looks_everywhere_finds_no_expected_value():
    if sys.platform != "linux":
        pytest.skip("notebooks are graded on Linux")
    sheet = read_sheet(SHEET)
    tests = {t.key: t for q in sheet.questions for t in q.tests}
    spaces = {key: right(test) for key, test in tests.items()}
    secret = {
        f"{key}, line {number}": line.strip().encode()  # no text here: the spy knows the names
        for key, test in tests.items()
        for number, line in enumerate(test.compare.split("\n"))
        if "expected" in line and len(line.strip()) > 24
    }
    secret |= {f"{key}: values": bytes_of(expected) for key, (_, expected) in spaces.items()}
    secret["a rubric"] = next(q.rubric for q in sheet.questions if q.manual)[:40].encode()
    secret["the source's tests"] = b"# BEGIN TEST CONFIG\nhidden"
    told = {f"asked: {key}": test.given.encode() for key, test in tests.items()}
    told["inputs of turn/0"] = bytes_of(spaces["turn/0"][0]["writes"])
    told["the cell's own text"] = b"a sentence of the spy's own, in a cell before it"
    told["a file of the library"] = b"What students call to see where they stand: one plain"
    hidden = {name: bytes(255 - byte for byte in text) for name, text in (secret | told).items()}
    folders = [str(ASSIGNMENTS), str(ROOT / "_build"), str(Path.cwd())]
    names = [q.name for q in sheet.questions if not q.manual]
    spy = [
        "own = 'a sentence of the spy\\'s own, in a cell before it'",
        f"import residual_stream\nLIBRARY = {str(Path(rs.__file__).parent)!r}\n"
        f"FOLDERS = {folders!r}\nHIDDEN = {hidden!r}\n{SPY}",
        "import torch\nkept = []\ndef answer(*args):\n    kept.append(args)\n"
        f"    if len(kept) == {len(tests)}:\n        look()\n    return torch.zeros(1)\n"
        f"{' = '.join(names)} = answer",
    ]
    with Pool(places=1) as pool:
        honest = pool.run(judge.job(sheet, code_cells(answers(sheet, 0).encode()), SEED), ROOM)
        cells = code_cells(notebook(*spy).encode())
        spied = pool.run(judge.job(sheet, cells, SEED), ROOM)
    marks = judge.marks(sheet, honest, SEED)
    assert sum(mark.points or 0 for mark in marks) == full_marks(sheet)
    assert spied.values["cells"] == [], spied.values["cells"]
    report = spied.values["spied"]
    assert all("memory" in report["found"][name] for name in told), report
    assert any("checks/__init__.py" in where for where in report["found"]["a file of the library"])
    assert {name: report["found"][name] for name in secret if report["found"][name]} == {}
    assert report["variables"] == [] and report["reached"] == [], report
    assert report["memory"] > 2**25 and report["files"] > 50
