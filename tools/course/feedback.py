"""Write what the grader found: a table of points, a page per student, a list to grade by hand."""

from __future__ import annotations

import csv
import html
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .sheet import Sheet

Record = dict[str, Any]
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>body{{font:16px/1.5 sans-serif;max-width:46em;margin:2em auto;padding:0 1em;color:#222}}
table{{border-collapse:collapse;width:100%}}td,th{{text-align:left;vertical-align:top;
padding:.4em .8em .4em 0;border-bottom:1px solid #ccc}}td.n{{white-space:nowrap}}
pre{{white-space:pre-wrap;background:#f5f5f5;padding:.6em}}ul{{margin:.2em 0;padding-left:1.2em}}
</style></head><body>
{body}
</body></html>
"""


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def page(record: Record, by_hand: dict[tuple[str, str], float]) -> str:
    """Return a student's page: everything from the submission is escaped, nothing on it runs."""
    title = f"{record['title'] or 'Submission'} · {record['student']}"
    body = [f"<h1>{html.escape(record['title'] or 'Submission')}</h1>"]
    body.append(f"<p>{html.escape(record['student'])}</p>")
    if record["reported"]:
        body.append(f"<p><strong>Not graded:</strong> {html.escape(record['reported'])}.</p>")
        return _PAGE.format(title=html.escape(title), body="\n".join(body))
    if record["ending"] != "finished":
        body.append(
            f"<p><strong>The notebook did not run to its end: {_said(record)}.</strong>"
            " What it had not handed over by then has no points.</p>"
        )
    points, waiting = total(record, by_hand)
    more = f", and up to {waiting:g} that a person gives" if waiting else ""
    out_of = sum(mark["out_of"] for mark in record["marks"])
    body.append(f"<p><strong>{points:g} of {out_of:g} points</strong>{more}.</p>")
    body.append("<table><tr><th>question</th><th>points</th><th>what was found</th></tr>")
    for mark in record["marks"]:
        given = _points(record, mark, by_hand)
        said = "waiting" if given is None else f"{given:g}"
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in mark["notes"])
        text = f"<pre>{html.escape(mark['text'])}</pre>" if mark["text"] else ""
        body.append(
            f"<tr><td>{html.escape(mark['name'])}</td><td class='n'>{said} of {mark['out_of']:g}"
            f"</td><td><ul>{notes}</ul>{text}</td></tr>"
        )
    body.append("</table>")
    if record["cells"]:
        body.append("<h2>Cells that stopped with an error</h2><ul>")
        body += [
            f"<li>code cell {note['cell'] + 1}: {html.escape(note['error'])}</li>"
            for note in record["cells"]
        ]
        body.append("</ul>")
    return _PAGE.format(title=html.escape(title), body="\n".join(body))


def _said(record: Record) -> str:
    limits = {
        "time": "it ran longer than it may",
        "memory": "it used more memory than it may",
        "disk": "it wrote more files than it may",
    }
    return limits.get(record["ending"], "its process ended early")


def _points(record: Record, mark: Record, by_hand: dict[tuple[str, str], float]) -> float | None:
    return by_hand.get((record["student"], mark["name"]), mark["points"])


def total(record: Record, by_hand: dict[tuple[str, str], float]) -> tuple[float, float]:
    """Return the points so far, and those that wait for a person."""
    given = [(_points(record, mark, by_hand), mark["out_of"]) for mark in record["marks"]]
    done = sum(points for points, _ in given if points is not None)
    return done, sum(out_of for points, out_of in given if points is None)


def points_table(records: Iterable[Record], by_hand: dict[tuple[str, str], float]) -> str:
    """Return the CSV of points: one row per submission, one column per question."""
    records = list(records)
    names = list(dict.fromkeys(mark["name"] for record in records for mark in record["marks"]))
    head = ["student", "sheet", "status", "points", "out_of", "waiting", *names, "remark"]
    rows = []
    for record in records:
        points, waiting = total(record, by_hand)
        given = {mark["name"]: _points(record, mark, by_hand) for mark in record["marks"]}
        out_of = sum(mark["out_of"] for mark in record["marks"])
        status = "not graded" if record["reported"] else record["ending"]
        each = ["" if given.get(name) is None else f"{given[name]:g}" for name in names]
        start = [record["student"], record["sheet"], status, f"{points:g}", f"{out_of:g}"]
        rows.append([*start, f"{waiting:g}", *each, record["reported"] or ""])
    return _csv([head, *rows])


def by_hand_table(
    records: Iterable[Record], sheets: dict[str, Sheet], by_hand: dict[tuple[str, str], float]
) -> str:
    """Return the CSV to fill in by hand: a row per text; the column `points` is yours."""
    rows = [["student", "question", "out_of", "points", "text"]]
    for record in records:
        for mark in record["marks"]:
            if mark["text"]:
                given = by_hand.get((record["student"], mark["name"]))
                points = "" if given is None else f"{given:g}"
                row = [record["student"], mark["name"], f"{mark['out_of']:g}", points]
                rows.append([*row, mark["text"]])
    return _csv(rows)


def read_by_hand(path: Path) -> dict[tuple[str, str], float]:
    """Return the points of a list graded by hand, by student and question; empty if none.

    Raises:
        ValueError: a cell of `points` is no number, or more than the question has; a column is
            gone.
    """
    if not path.exists():
        return {}
    try:
        table = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name}: not UTF-8; save it as `CSV UTF-8`") from error
    # a spreadsheet set to a language with decimal commas separates by semicolons
    head = table.split("\n", 1)[0]
    rows = csv.DictReader(io.StringIO(table, ""), delimiter=max(",;\t", key=head.count))
    if lost := {"student", "question", "out_of", "points"} - set(rows.fieldnames or ()):
        raise ValueError(f"{path.name}: no column {', '.join(sorted(lost))} in its first line")
    given = {}
    for row in rows:
        text = (row["points"] or "").strip().replace(",", ".")
        if not text:
            continue
        try:
            points, most = float(text), float(row["out_of"].replace(",", "."))
        except ValueError:
            points, most = -1.0, 0.0
        if not 0 <= points <= most:
            where = f"{path.name}, {row['student']!a}: points {row['points']!r}"
            raise ValueError(f"{where}; from 0 to {row['out_of']}")
        given[(row["student"].removeprefix("'"), row["question"])] = points
    return given


def _csv(rows: list[list[str]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(
        [[_harmless(value) for value in row] for row in rows]
    )
    return buffer.getvalue()


def _harmless(value: str) -> str:
    # A spreadsheet would run a cell that begins like a formula.
    value = value.replace("\0", "")
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
