"""Find the notebooks that were handed in, and read what they hold, whatever became of them.

Nothing is run here and no link is followed. What cannot be read is reported by name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: A notebook larger than this is reported, not read: outputs of a whole course fit in.
SIZE_LIMIT = 64 * 2**20
_CELLS, _CODE = 500, 2 * 2**20


class Unreadable(ValueError):
    """A file that cannot be read as a notebook; the message is for the teaching assistant."""


@dataclass(frozen=True)
class Submission:
    """One file that was handed in.

    Attributes:
        student: The file's path without ending, as it stands in the folder; shown, never opened.
        path: Where it is.
        key: A name that is safe for files: letters, digits, and a hash of `student`.
    """

    student: str
    path: Path
    key: str


def find(folder: Path) -> list[Submission]:
    """Return everything that may be a submission, in order: notebooks, and files that should be.

    Hidden files, folders of checkpoints and links to folders are passed over; a link to a file is
    kept, so that it is reported.
    """
    found: list[Submission] = []
    pending = [folder]
    while pending:
        for entry in sorted(os.scandir(pending.pop()), key=lambda e: e.name):
            if entry.name.startswith((".", "__MACOSX")):
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(Path(entry.path))
                continue
            path = Path(entry.path)
            name = path.relative_to(folder).as_posix()
            student = name.removesuffix(".ipynb").encode("utf-8", "replace").decode()
            found.append(Submission(student, path, _key(name)))
    return sorted(found, key=lambda s: s.student)


def _key(name: str) -> str:
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:10]
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name.removesuffix(".ipynb")).strip("-")[:60]
    return f"{plain}-{digest}" if plain else digest


def read_bytes(path: Path) -> bytes:
    """Return a regular file's bytes.

    Raises:
        Unreadable: a link, a device, a pipe, or too large.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        what = "a symbolic link" if path.is_symlink() else f"cannot be opened ({error.strerror})"
        raise Unreadable(what) from error
    with os.fdopen(file, "rb") as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("not a regular file")
        if status.st_size > SIZE_LIMIT:
            raise Unreadable(f"{status.st_size / 1e6:.0f} MB; at most {SIZE_LIMIT / 1e6:.0f}")
        return opened.read(SIZE_LIMIT + 1)


def code_cells(data: bytes) -> list[str]:
    """Return the sources of the code cells, in order; outputs and metadata are not looked at.

    Raises:
        Unreadable: no notebook, or one without code.
    """
    if not data.strip():
        raise Unreadable("an empty file")
    if data[:2] == b"PK":
        raise Unreadable("a zip archive, not a notebook")
    try:
        notebook = json.loads(data.decode(json.detect_encoding(data), "replace"))
    except (ValueError, RecursionError) as error:
        raise Unreadable(
            "not JSON, so not a notebook (cut off, or another kind of file)"
        ) from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if cells is None and isinstance(notebook, dict):  # the format of before 2015
        sheets = notebook.get("worksheets")
        first = sheets[0] if isinstance(sheets, list) and sheets else {}
        cells = first.get("cells") if isinstance(first, dict) else None
    if not isinstance(cells, list):
        raise Unreadable("JSON, but no notebook: it has no cells")
    sources = [text for cell in cells[:_CELLS] if (text := _code(cell)) is not None]
    if not sources:
        raise Unreadable("a notebook without a code cell")
    if sum(map(len, sources)) > _CODE:
        raise Unreadable("more than 2 MB of code")
    return sources


def _code(cell: Any) -> str | None:
    if not isinstance(cell, dict) or cell.get("cell_type", "code") != "code":
        return None
    source = cell.get("source", cell.get("input"))
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    if not isinstance(source, str) or not source.strip():
        return None
    # a surrogate alone is legal JSON and no text
    return source.encode("utf-8", "replace").decode()
