"""Grade a folder of notebooks.

Every submission becomes one file in `OUT/results`, written whole when it is done. A run that was
killed goes on where it was: what has its result is kept, as long as neither the submission nor the
sheet has changed since; nothing is lost, nothing is graded twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

from residual_stream.cache import cache_dir

from . import feedback, judge
from .confine import Limits
from .pool import Pool, PoolError
from .protections import Protections, measure, require
from .sheet import ASSIGNMENTS, Sheet, read_sheet, sheets
from .submissions import Submission, Unreadable, code_cells, find, read_bytes

_judging = Lock()


class GradeError(RuntimeError):
    """The batch cannot be graded."""


def grade(
    folder: Path,
    out: Path,
    *,
    sheet: str | None = None,
    places: int = 2,
    limits: Limits | None = None,
    allowed: Sequence[str] = (),
    again: bool = False,
    pool: Pool | None = None,
    say: Any = print,
) -> list[dict[str, Any]]:
    """Grade every notebook of a folder; return the records, sorted by student.

    Args:
        folder: The submissions. Nothing is written here.
        out: Where results, pages and tables go.
        sheet: The sheet they answer; None finds it out for each from the names it defines.
        places: Submissions at a time; those of `pool`, if it is given.
        limits: Of each submission.
        allowed: Protections that may be missing.
        again: Whether to grade again what did not run to its end.
        pool: Where submissions run, if one is running already; it stays open. None starts one.
        say: Prints a line of progress.

    Raises:
        GradeError: No folder, no sheet, or another grader at work in `out`.
        Unprotected: A protection is missing.
    """
    folder, out = folder.resolve(), out.resolve()
    if not folder.is_dir():
        raise GradeError(f"grade: no folder {folder}")
    if out == folder or folder in out.parents:
        raise GradeError(f"grade: results in {out} would be taken for submissions next time")
    known = {name: read_sheet(name) for name in ([sheet] if sheet else sheets())}
    if not known:
        raise GradeError(f"grade: no sheets in {ASSIGNMENTS}")
    for part in ("results", "feedback"):
        (out / part).mkdir(parents=True, exist_ok=True)
    out.chmod(0o700)
    by_hand = feedback.read_by_hand(out / "by_hand.csv")
    limits = limits or Limits()
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise GradeError(f"grade: another grader is at work in {out}") from error
        seed = _seed(out)
        batch = find(folder)
        done = {s.key: record for s in batch if (record := _kept(out, s, known, again))}
        todo = [s for s in batch if s.key not in done]
        say(f"{len(batch)} submissions: {len(done)} have their results, {len(todo)} to grade")
        if todo:
            with contextlib.nullcontext(pool) if pool else Pool(places=places) as running:
                state = measure(running, [ASSIGNMENTS, out, folder])
                say(state)
                require(state, allowed)
                if not running.cache:
                    say(
                        f"cells that load the real model will fail: {cache_dir()} is for its owner "
                        "only; set RESIDUAL_STREAM_CACHE to a folder that all can read"
                    )
                with ThreadPoolExecutor(len(running.uids)) as threads:
                    tasks = [
                        threads.submit(_one, s, known, running, limits, seed, out) for s in todo
                    ]
                    for count, task in enumerate(as_completed(tasks), 1):
                        record = task.result()
                        done[record["key"]] = record
                        say(f"{count}/{len(todo)} {_line(record)}")
        records = [done[s.key] for s in batch]
        for record in records:
            page = feedback.page(record, by_hand)
            feedback.write_whole(out / "feedback" / f"{record['key']}.html", page)
        _tables(out, records, known, by_hand)
    return records


def _tables(
    out: Path, records: list[dict[str, Any]], known: dict[str, Sheet],
    by_hand: dict[tuple[str, str], float],
) -> None:  # fmt: skip
    feedback.write_whole(out / "points.csv", feedback.points_table(records, by_hand))
    feedback.write_whole(out / "by_hand.csv", feedback.by_hand_table(records, known, by_hand))
    rubrics = [
        f"# {sheet.title}\n\n" + "\n\n".join(
            f"## {q.title}: {q.points:g} points\n\n{q.rubric}" for q in sheet.questions if q.manual
        )
        for sheet in known.values()
    ]  # fmt: skip
    feedback.write_whole(out / "rubrics.md", "\n\n".join(rubrics) + "\n")


def _seed(out: Path) -> int:
    """The number that this batch's hidden inputs are drawn with; kept, for those graded later."""
    path = out / "seed"
    if not path.exists():
        feedback.write_whole(path, f"{secrets.randbelow(2**31 - 1)}\n")
        path.chmod(0o600)
    return int(path.read_text())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _kept(
    out: Path, submission: Submission, known: dict[str, Sheet], again: bool
) -> dict[str, Any] | None:
    try:
        record = json.loads((out / "results" / f"{submission.key}.json").read_text("utf-8"))
        data = read_bytes(submission.path)
    except (OSError, ValueError):
        return None
    sheet = known.get(record["sheet"])
    same = record["digest"] == _digest(data) and (
        sheet is None or record["source"] == _digest(sheet.source.read_bytes())
    )
    unfinished = record["reported"] or record["ending"] != "finished"
    return record if same and not (again and unfinished) else None


def _one(
    submission: Submission,
    known: dict[str, Sheet],
    pool: Pool,
    limits: Limits,
    seed: int,
    out: Path,
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "student": submission.student, "key": submission.key, "sheet": "", "title": "",
        "source": "", "digest": "", "reported": None, "ending": "", "seconds": 0.0,
        "cells": [], "marks": [],
    }  # fmt: skip
    try:
        data = read_bytes(submission.path)
        record["digest"] = _digest(data)
        cells = code_cells(data)
        sheet = _which(cells, known)
    except Unreadable as error:
        record["reported"] = str(error)
    else:
        job = judge.job(sheet, cells, seed)
        try:
            answer = pool.run(job, limits)
        except PoolError:  # the machine's doing, and perhaps a moment's; a second one ends the run
            answer = pool.run(job, limits)
        with _judging:  # loading a model changes the process's loggers for a moment
            marks = judge.marks(sheet, answer, seed)
        notes = answer.values.get("cells")
        record |= {
            "sheet": sheet.name, "title": sheet.title, "ending": answer.ending,
            "source": _digest(sheet.source.read_bytes()), "seconds": round(answer.seconds, 2),
            "cells": _notes(notes), "marks": [asdict(mark) for mark in marks],
        }  # fmt: skip
    text = json.dumps(record, ensure_ascii=True, indent=1)
    feedback.write_whole(out / "results" / f"{submission.key}.json", text)
    return record


def _notes(notes: Any) -> list[dict[str, Any]]:
    kept = []
    for note in notes[:100] if isinstance(notes, list) else []:
        if isinstance(note, dict) and isinstance(note.get("cell"), int):
            kept.append({"cell": note["cell"], "error": str(note.get("error"))[:400]})
    return kept


def _which(cells: list[str], known: dict[str, Sheet]) -> Sheet:
    """Return the sheet of which a notebook defines most names."""
    if len(known) == 1:
        return next(iter(known.values()))
    code = "\n".join(cells)
    hits = {
        name: sum(
            bool(re.search(rf"^\s*(def {q.name}\b|{q.name}\s*=)", code, re.M))
            for q in sheet.questions
        )
        for name, sheet in known.items()
    }
    best = max(hits.values())
    winners = [name for name, count in hits.items() if count == best]
    if best == 0 or len(winners) > 1:
        raise Unreadable("it can't be told which sheet this answers; grade it with SHEET=…")
    return known[winners[0]]


def _line(record: dict[str, Any]) -> str:
    if record["reported"]:
        return f"{record['student']}: NOT GRADED, {record['reported']}"
    points, waiting = feedback.total(record, {})
    out_of = sum(mark["out_of"] for mark in record["marks"])
    more = f" (+ {waiting:g} by hand)" if waiting else ""
    ending = "" if record["ending"] == "finished" else f", ended by: {record['ending']}"
    return f"{record['student']!a}: {points:g}/{out_of:g}{more}, {record['seconds']:.1f} s{ending}"


def protections(*, places: int = 1) -> Protections:
    """Measure what holds on this machine."""
    with Pool(places=places) as pool:
        return measure(pool, [ASSIGNMENTS])


def summary(records: list[dict[str, Any]], out: Path, since: float) -> str:
    """Return the last lines of a run."""
    reported = [r for r in records if r["reported"]]
    early = [r for r in records if not r["reported"] and r["ending"] != "finished"]
    lines = [f"{len(records)} submissions in {time.monotonic() - since:.0f} s: {out}/points.csv"]
    lines += [f"  not graded: {r['student']!a}: {r['reported']}" for r in reported]
    lines += [f"  ended early: {r['student']!a}: {r['ending']}" for r in early]
    by_hand = feedback.read_by_hand(out / "by_hand.csv")
    texts = [(r["student"], mark["name"]) for r in records for mark in r["marks"] if mark["text"]]
    waiting = sum(text not in by_hand for text in texts)
    if waiting:
        what = "1 text" if waiting == 1 else f"{waiting} texts"
        lines.append(f"  {what} to read: fill in `points` in {out}/by_hand.csv, run again")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run `python -m course grade`; return the exit status."""
    import argparse

    from .protections import PROTECTIONS, Unprotected

    parser = argparse.ArgumentParser("course grade", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="default: FOLDER-graded beside it")
    parser.add_argument("--sheet", help=f"one of {', '.join(sheets())}; default: found out")
    parser.add_argument("--places", type=int, default=min(os.cpu_count() or 1, 16))
    parser.add_argument("--seconds", type=float, default=Limits.seconds, help="per submission")
    parser.add_argument("--cell-seconds", type=float, default=Limits.cell_seconds)
    parser.add_argument("--memory", type=float, default=Limits.memory / 2**30, help="GiB")
    parser.add_argument("--again", action="store_true", help="what did not run to its end")
    for name, what in PROTECTIONS.items():
        parser.add_argument(
            f"--allow-{name}", dest="allowed", action="append_const", const=name, default=[],
            help=f"grade even if submissions are not kept from {what}",
        )  # fmt: skip
    chosen = parser.parse_args(arguments)
    out = chosen.out or chosen.folder.resolve().with_name(chosen.folder.resolve().name + "-graded")
    since = time.monotonic()
    limits = Limits(
        seconds=chosen.seconds, cell_seconds=chosen.cell_seconds, memory=int(chosen.memory * 2**30)
    )
    try:
        records = grade(
            chosen.folder, out, sheet=chosen.sheet, places=chosen.places, limits=limits,
            allowed=chosen.allowed, again=chosen.again,
            say=lambda line: print(line, flush=True),
        )  # fmt: skip
    except (GradeError, Unprotected, PoolError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(summary(records, out, since))
    return 0
