"""The package for Gradescope, and for any container that is given one submission at a time.

It holds this grader, the library and one sheet. In the container `setup.sh` installs once,
`run_autograder` grades `/autograder/submission` and writes `/autograder/results/results.json`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from .sheet import ROOT, Sheet

_SETUP = """\
#!/usr/bin/env bash
# Once, with a network: an environment with the library, and the model in its cache.
set -euo pipefail
cd /autograder/source
apt-get update -q && apt-get install -y -q --no-install-recommends python3 python3-venv
python3 -m venv /opt/course
/opt/course/bin/pip install -q --index-url https://download.pytorch.org/whl/cpu torch \\
  || /opt/course/bin/pip install -q torch
/opt/course/bin/pip install -q . ipython pyyaml nbformat
mkdir -p /opt/cache && export RESIDUAL_STREAM_CACHE=/opt/cache
/opt/course/bin/python -c "import residual_stream as rs; rs.load('smollm2-135m')"
chmod -R a+rX /opt/course /opt/cache
chmod 700 /autograder/source/assignments
"""
_RUN = """\
#!/usr/bin/env bash
# As root, once per submission.
export RESIDUAL_STREAM_CACHE=/opt/cache PYTHONPATH=/autograder/source/tools
exec /opt/course/bin/python -m course gradescope {sheet}
"""


def write_package(sheet: Sheet, path: Path) -> Path:
    """Write the zip to upload; the same source gives the same bytes."""
    files = {
        "setup.sh": _SETUP.encode(),
        "run_autograder": _RUN.format(sheet=sheet.name).encode(),
        f"assignments/{sheet.name}.ipynb": sheet.source.read_bytes(),
    }
    for name in ("pyproject.toml", "README.md", "LICENSE", "LICENSE-text"):
        files[name] = (ROOT / name).read_bytes()
    for folder in ("lib/residual_stream", "tools/course"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                files[file.relative_to(ROOT).as_posix()] = file.read_bytes()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name in ("setup.sh", "run_autograder") else 0o644) << 16
            package.writestr(entry, data)
    return path


def results(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of the grader as Gradescope's results."""
    if record["reported"]:
        return {"score": 0, "output": f"Not graded: {record['reported']}.", "tests": []}
    tests = [
        {
            "name": mark["name"],
            "score": mark["points"] or 0,
            "max_score": mark["out_of"],
            "output": "\n".join(mark["notes"]),
            "visibility": "visible",
        }
        for mark in record["marks"]
    ]
    ending = record["ending"]
    said = "" if ending == "finished" else f"The notebook did not run to its end: {ending}.\n"
    said += "\n".join(f"code cell {c['cell'] + 1}: {c['error']}" for c in record["cells"])
    return {"output": said, "tests": tests, "stdout_visibility": "hidden"}


def main(arguments: list[str], *, autograder: Path = Path("/autograder")) -> int:
    """Grade the one submission of a container; return the exit status.

    Args:
        arguments: The sheet, and `--allow-…` options.
        autograder: Where Gradescope puts things.
    """
    from .grade import GradeError, grade
    from .pool import PoolError
    from .protections import Unprotected

    sheet, *options = arguments
    allowed = [option.removeprefix("--allow-") for option in options]
    with tempfile.TemporaryDirectory() as out:
        try:
            records = grade(
                autograder / "submission", Path(out), sheet=sheet, places=1, allowed=allowed,
                say=lambda line: print(line, file=sys.stderr),
            )  # fmt: skip
            found = results(records[0]) if records else {"score": 0, "output": "No file."}
        except (GradeError, PoolError, Unprotected) as error:
            found = {"score": 0, "output": "The grader refused; tell your instructor."}
            print(error, file=sys.stderr)
    target = autograder / "results" / "results.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0
