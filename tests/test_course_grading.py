"""The grader: no attack gains a point or touches anything, and honest work beside it is marked."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from course.confine import Limits, members, out_of_reach
from course.feedback import read_by_hand
from course.grade import GradeError, grade
from course.plain import NotPlain, frame, frames
from course.pool import Pool, PoolError
from course.protections import PROTECTIONS, Protections, Unprotected, measure, require
from course.sheet import ASSIGNMENTS, ROOT, read_sheet
from course.submissions import find
from course_notebooks import answers, damaged, full_marks, notebook, write
from hostile_submissions import HOSTILE

SHEET = "01_bus"
#: `make test-course` runs everything, `make test` one attack of each kind and a few damages.
FULL = os.environ.get("COURSE_TESTS") == "full"
SHORT = (
    "endless loop that will not be told", "memory bomb", "fork bomb", "file deletion", "network",
    "reading the tests", "patching the comparison", "forged frames", "code in the answer",
)  # fmt: skip
ATTACKS = list(HOSTILE) if FULL else list(SHORT)
SOME_DAMAGE = ("cells deleted", "metadata lost", "from Colab", "not JSON", "deep", "nothing done")
FAST = Limits(seconds=6.0, cell_seconds=2.5, memory=2**30, processes=24, disk=64 * 2**20)
ROOM = Limits(seconds=90.0, cell_seconds=45.0)


def silent(line):
    """Progress that nobody reads."""


def points(record):
    """What a record gives without a person."""
    return sum(mark["points"] or 0 for mark in record["marks"])


def by_student(records):
    """Records by what was handed in."""
    return {record["student"]: record for record in records}


def batch(folder, out, pool, **options):
    """Grade a folder for the sheet of these tests."""
    return by_student(grade(folder, out, sheet=SHEET, say=silent, pool=pool, **options))


@pytest.fixture(scope="module")
def sheet():
    """The sheet that these tests grade."""
    return read_sheet(SHEET)


@pytest.fixture(scope="module")
def pool():
    """One clean process for all batches of these tests: each would spend seconds importing."""
    if sys.platform != "linux":
        pytest.skip("notebooks are graded on Linux")
    with Pool(places=2) as running:
        yield running


@pytest.fixture(scope="module")
def protected(pool):
    """What holds on this machine; without it there is nothing to test, but CI has to have it."""
    state = measure(pool, [ASSIGNMENTS])
    if state.missing and not os.environ.get("CI"):
        pytest.skip(f"not protected on this machine: {state.missing}")
    assert not state.missing, str(state)
    return state


@pytest.fixture(scope="module")
def attacked(tmp_path_factory, sheet, pool, protected):
    """A batch of every attack with honest work beside it, and what was outside before."""
    base = tmp_path_factory.mktemp("attacked")
    folder, out, canary = base / "in", base / "out", base / "canary.txt"
    canary.write_text("untouched")
    base.chmod(0o755)
    canary.chmod(0o666)
    heard = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.5)
        stop = threading.Event()

        def listen():
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    heard.append(listener.accept()[1])

        thread = threading.Thread(target=listen)
        thread.start()
        names = {
            "CANARY": str(canary), "SECRETS": [str(ASSIGNMENTS), str(out), str(folder)],
            "PORT": listener.getsockname()[1],
        }  # fmt: skip
        start = "\n".join(f"{name} = {value!r}" for name, value in names.items())
        for name in ATTACKS:
            write(folder, f"hostile {name}.ipynb", notebook(start, HOSTILE[name]))
        for which in range(3):
            write(folder, f"honest {which}.ipynb", answers(sheet, which))
        (folder / "hostile link to the source.ipynb").symlink_to(sheet.source)
        os.mkfifo(folder / "hostile pipe.ipynb")
        for name in ("..", "-rf", "a\nb", "=1+1", "x.ipynb", "é" * 60, "' or 1"):
            write(folder, f"{name} twin.ipynb", notebook("1"))
        write(folder, "deep/down/points.csv", "student,points\nme,20\n")
        before = {path: path.stat().st_mtime_ns for path in outside(folder)}
        records = batch(folder, out, pool, limits=FAST)
        stop.set()
        thread.join()
    return folder, out, canary, heard, before, records


def outside(folder):
    """Files that an attack might change: the submissions, the sheets, the library."""
    places = [folder, ASSIGNMENTS, ROOT / "lib"]
    return [path for place in places for path in place.rglob("*") if path.is_file()]


def test_there_are_twenty_attacks_and_some_of_each_kind_in_the_short_form():
    assert len(set(HOSTILE.values())) >= 20 and set(SHORT) < set(HOSTILE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_gains_a_point(attacked, name):
    records = attacked[-1]
    assert points(records[f"hostile {name}"]) == 0


@pytest.mark.slow
def test_honest_work_beside_the_attacks_gets_its_marks(attacked, sheet):
    records = attacked[-1]
    for which in range(3):
        record = records[f"honest {which}"]
        assert record["ending"] == "finished" and points(record) == full_marks(sheet), record


@pytest.mark.slow
def test_no_attack_touches_anything_outside_its_folder(attacked):
    folder, _, canary, heard, before, _ = attacked
    assert canary.read_text() == "untouched"
    assert heard == []
    assert {path: path.stat().st_mtime_ns for path in outside(folder)} == before


@pytest.mark.slow
def test_no_attack_leaves_a_process_behind(attacked, pool):
    if os.geteuid() != 0:
        pytest.skip("without root the processes cannot be told apart by user id")
    assert [p for uid in pool.uids for p in members(uid, None)] == []


@pytest.mark.slow
def test_links_and_pipes_are_reported_and_not_opened(attacked):
    records = attacked[-1]
    assert records["hostile link to the source"]["reported"] == "a symbolic link"
    assert records["hostile pipe"]["reported"] == "not a regular file"
    assert "not a notebook" in records["deep/down/points.csv"]["reported"]


@pytest.mark.slow
def test_every_page_is_in_its_folder_and_holds_no_markup_of_a_student(attacked):
    _, out, _, _, _, records = attacked
    pages = {path.name for path in (out / "feedback").iterdir()}
    assert pages == {f"{record['key']}.html" for record in records.values()}
    assert len(pages) == len(records)
    for path in (out / "feedback").iterdir():
        assert "<script" not in path.read_text("utf-8")
    rows = (out / "points.csv").read_text("utf-8").splitlines()
    assert not any(row.startswith(("=", "+", "-", "@")) for row in rows)


@pytest.mark.slow
def test_the_batch_ends_what_goes_on_for_too_long(attacked):
    records = attacked[-1]
    assert records["hostile endless loop that will not be told"]["ending"] == "time"
    assert records["hostile memory bomb"]["ending"] in ("finished", "memory")


@pytest.mark.slow
def test_a_damaged_notebook_is_graded_for_what_it_holds_or_reported(
    tmp_path, sheet, pool, protected
):
    cases = {k: v for k, v in damaged(sheet).items() if FULL or k in SOME_DAMAGE}
    for name, (text, _) in cases.items():
        path = tmp_path / "in" / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        encoding = "utf-16-le" if name == "UTF-16" else "utf-8"
        path.write_bytes(text.encode(encoding, "surrogatepass"))
    records = batch(tmp_path / "in", tmp_path / "out", pool, limits=ROOM)
    for name, (_, expected) in cases.items():
        record = records[name]
        if expected is None:
            assert record["reported"], name
        else:
            assert not record["reported"] and points(record) == expected, (name, record)


@pytest.mark.slow
def test_a_batch_that_was_killed_goes_on_where_it_was(tmp_path, sheet, pool, protected):
    folder, out = tmp_path / "in", tmp_path / "out"
    for number in range(10):
        write(folder, f"student {number}.ipynb", notebook("import time; time.sleep(0.3)"))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'lib'}{os.pathsep}{ROOT / 'tools'}"}
    line = [
        sys.executable,
        "-m",
        "course",
        "grade",
        str(folder),
        "--out",
        str(out),
        "--sheet",
        SHEET,
    ]
    with subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL) as first:
        limit = time.monotonic() + 120
        while len(list((out / "results").glob("*.json"))) < 3 and time.monotonic() < limit:
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
    done = {path: path.stat().st_mtime_ns for path in (out / "results").glob("*.json")}
    assert 3 <= len(done) < 10
    said = []
    records = grade(
        folder, out, sheet=SHEET, limits=FAST, pool=pool, say=lambda line: said.append(str(line))
    )
    assert said[0] == f"10 submissions: {len(done)} have their results, {10 - len(done)} to grade"
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert [record["student"] for record in records] == [f"student {n}" for n in range(10)]
    with (out / "points.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 10


@pytest.mark.slow
def test_what_has_changed_is_graded_again_and_hand_marks_are_kept(tmp_path, sheet, pool, protected):
    folder, out = tmp_path / "in", tmp_path / "out"
    write(folder, "ada.ipynb", answers(sheet, 0))
    write(folder, "bob.ipynb", notebook("x = 1"))
    first = batch(folder, out, pool, limits=ROOM)
    manual = [q.name for q in sheet.questions if q.manual]
    assert first["ada"]["marks"][-1]["points"] is None and points(first["bob"]) == 0
    table = out / "by_hand.csv"
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert [row[:2] for row in rows[1:]] == [["ada", name] for name in manual]
    rows[1][3] = "2.5"
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    write(folder, "bob.ipynb", answers(sheet, 1))
    second = batch(folder, out, pool, limits=ROOM)
    assert points(second["bob"]) == full_marks(sheet)
    assert read_by_hand(table) == {("ada", manual[0]): 2.5}
    with (out / "points.csv").open() as file:
        ada = next(row for row in csv.DictReader(file) if row["student"] == "ada")
    assert float(ada["points"]) == full_marks(sheet) + 2.5 and ada[manual[0]] == "2.5"


@pytest.mark.parametrize("points", ["4", "-1", "nan", "many"])
def test_hand_marks_beyond_the_question_are_refused(tmp_path, points):
    table = tmp_path / "by_hand.csv"
    table.write_text(f"student,question,out_of,points,text\nada,plan,3,{points},x\n")
    with pytest.raises(ValueError, match=rf"'ada': points '{points}'; from 0 to 3"):
        read_by_hand(table)


@pytest.mark.parametrize(("comma", "half"), [(",", "2.5"), (";", "2,5"), ("\t", "2,5")])
def test_hand_marks_are_read_as_a_spreadsheet_saves_them(tmp_path, comma, half):
    rows = [
        ["student", "question", "out_of", "points", "text"],
        ["ada; x", "plan", "3", half, "one,\ntwo; three"], ["'=bob", "plan", "3", "", "x"],
    ]  # fmt: skip
    with (tmp_path / "by_hand.csv").open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=comma, lineterminator="\r\n").writerows(rows)
    assert read_by_hand(tmp_path / "by_hand.csv") == {("ada; x", "plan"): 2.5}


def test_a_table_of_hand_marks_that_lost_a_column_or_its_letters_is_refused_by_name(tmp_path):
    table = tmp_path / "by_hand.csv"
    table.write_text("student,question,points\nada,plan,3\n")
    with pytest.raises(ValueError, match=r"by_hand.csv: no column out_of"):
        read_by_hand(table)
    table.write_bytes("student,question,out_of,points\nZoë,plan,3,2\n".encode("latin-1"))
    with pytest.raises(ValueError, match="CSV UTF-8"):
        read_by_hand(table)


def test_results_in_the_folder_of_submissions_are_refused(tmp_path):
    with pytest.raises(GradeError, match="would be taken for submissions"):
        grade(tmp_path, tmp_path / "out", sheet=SHEET, say=silent)
    with pytest.raises(GradeError, match="no folder"):
        grade(tmp_path / "nowhere", tmp_path / "out", sheet=SHEET, say=silent)


def test_a_missing_protection_is_refused_unless_it_is_typed():
    state = Protections({"network": "connected", "reading": "/secret"}, False)
    with pytest.raises(Unprotected, match="--allow-network --allow-reading"):
        require(state, [])
    with pytest.raises(Unprotected, match="--allow-reading"):
        require(state, ["network"])
    require(state, ["network", "reading"])
    assert "MISSING  network" in str(state) and "holds    memory" in str(state)


@pytest.mark.slow
def test_the_measure_sees_a_protection_that_is_missing(tmp_path):
    class Open(Pool):
        """A pool whose process was not confined at all."""

        def __init__(self):
            self.uids, self.namespaces = [], False

        def run(self, job, limits):
            from course.pool import Answer

            found = {
                "connects": True, "socket": True, "reads": ["/secret"], "leaves": [],
                "memory": True, "disk": True, "root": True, "grader": True, "remount": True,
                "processes": 10**6,
            }  # fmt: skip
            for path in re.findall(rf"{tmp_path}/[^']+", job["cells"][0]):
                Path(path).touch()
            return Answer("finished", 0.1, {"found": {"given": found}})

    state = measure(Open(), [tmp_path])
    assert set(state.missing) == set(PROTECTIONS)


@pytest.mark.slow
def test_protections_hold_here_without_namespaces_too(protected):
    """As in a container: user ids, Landlock and the call filter alone."""
    if os.geteuid() != 0 or any(
        not p.stat().st_mode & 0o001 for p in Path(sys.base_prefix).parents
    ):
        pytest.skip("without root, or where others cannot reach this Python, there is no such way")
    with Pool(places=1, namespaces=False) as pool:
        state = measure(pool, [ASSIGNMENTS])
    assert not state.missing, str(state)


def test_programs_that_a_notebook_could_not_read_are_refused_by_name():
    if os.geteuid() != 0:
        pytest.skip("only root gives notebooks a user id of their own")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        top, inside = Path(folder), Path(folder, "closed", "in")
        inside.mkdir(parents=True)
        for path, mode in ((top, 0o755), (inside.parent, 0o700)):
            path.chmod(mode)
        asked = [str(inside), str(top), str(top / "nowhere")]
        assert [path for path in out_of_reach(asked) if path in asked] == [str(inside)]
    if sys.base_prefix in out_of_reach([]):
        with pytest.raises(PoolError, match=f"cannot read .*{re.escape(sys.base_prefix)}"):
            Pool(places=1, namespaces=False)


def test_plain_data_comes_back_as_it_went_and_nothing_else_goes():
    import numpy as np
    import torch

    value = {"a": [torch.arange(3), 1.5, None, "text"], "b": np.ones((2, 2)), "c": np.float32(2)}
    ((key, back),) = frames(frame("k", value))
    assert (
        key == "k" and back["a"][0].tolist() == [0, 1, 2] and back["a"][1:] == [1.5, None, "text"]
    )
    assert back["b"].shape == (2, 2) and float(back["c"]) == 2
    for bad in (object(), torch.ones(2).to_sparse(), print, np.array([object()]), {"x": {1, 2}}):
        with pytest.raises(NotPlain):
            frame("k", bad)


@pytest.mark.parametrize("torn", [1, 9, 40, -1])
def test_torn_frames_end_the_reading_without_an_error(torn):
    whole = frame("first", 1)
    assert list(frames(whole + frame("second", 2)[:torn])) == [("first", 1)]
    assert list(frames(whole[:torn])) == []


def test_submissions_are_found_under_safe_names_that_differ(tmp_path):
    for name in ("a b", "a-b", "A/x", "ü", "..x", "x" * 200):
        write(tmp_path, f"{name}.ipynb", "{}")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    write(tmp_path, ".ipynb_checkpoints/a b.ipynb", "{}")
    found = find(tmp_path)
    assert [s.student for s in found] == sorted(["a b", "a-b", "A/x", "ü", "x" * 200])
    keys = {s.key for s in found}
    assert len(keys) == len(found) and all(
        k.replace("-", "").isalnum() and k.isascii() for k in keys
    )


def test_gradescope_gets_its_results(tmp_path, sheet):
    from course.gradescope import results

    mark = {"name": "ledger", "points": 3.0, "out_of": 4.0, "notes": ["test 1 …"], "text": None}
    hand = {"name": "plan", "points": None, "out_of": 4.0, "notes": [], "text": "…"}
    record = {"reported": None, "ending": "time", "cells": [], "marks": [mark, hand]}
    found = json.loads(json.dumps(results(record)))
    assert [t["score"] for t in found["tests"]] == [3.0, 0] and "time" in found["output"]
    assert Path(ASSIGNMENTS).is_dir() and sheet.points == sum(q.points for q in sheet.questions)
