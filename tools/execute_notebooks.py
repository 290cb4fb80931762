"""Execute notebooks in place and leave nothing in them that another run would write differently.

    python tools/execute_notebooks.py                     # every chapter, written in place
    python tools/execute_notebooks.py chapters/01_bus.ipynb
    python tools/execute_notebooks.py --check --jobs 2    # write nothing; fail on a difference

The kernel is the Python that runs this tool. Two runs on one machine give the same bytes: no times,
no random ids, no software versions in pictures, no path, no name of the machine.

How long a notebook's cells took goes into `times.json` beside it: seconds of processor time, which
a busy machine does not stretch. The site says it; a run within a fifth of the note leaves it.
"""

from __future__ import annotations

import argparse
import base64
import getpass
import hashlib
import json
import os
import re
import resource
import socket
import struct
import sys
from multiprocessing import get_context
from pathlib import Path

import ipykernel.kernelspec
import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets import default

ROOT = Path(__file__).resolve().parent.parent

#: What a kernel is started with, here and under nbval (`chapters/conftest.py`).
KERNEL_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    "PYTHONHASHSEED": "0",
    "SOURCE_DATE_EPOCH": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
}
NOTEBOOK_METADATA = ("accelerator", "widgets")
TRANSIENT_CELL_METADATA = ("ExecuteTime", "collapsed", "colab", "execution", "id", "outputId")
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
TIMES = "times.json"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_TEXT_CHUNKS = (b"tEXt", b"zTXt", b"iTXt", b"tIME", b"eXIf")


class ThisPython(KernelSpecManager):
    """Answers every kernel name with the running interpreter, whatever kernels are installed."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return the specification that starts `sys.executable`."""
        return KernelSpec(
            resource_dir=ipykernel.kernelspec.RESOURCES,
            **ipykernel.kernelspec.get_kernel_dict(),
        )


class Manager(AsyncKernelManager):
    """Starts the kernel of `ThisPython`; nbclient makes one per notebook and ends it."""

    @default("kernel_spec_manager")
    def _this_python(self) -> ThisPython:
        return ThisPython()


def strip_png(data: bytes) -> bytes:
    """Return the PNG without its text, time and EXIF chunks (matplotlib names itself there)."""
    if not data.startswith(PNG_SIGNATURE):
        raise ValueError(f"strip_png: not a PNG: it begins with {data[:8]!r}")
    kept, at = [PNG_SIGNATURE], len(PNG_SIGNATURE)
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        end = at + 12 + length
        if data[at + 4 : at + 8] not in PNG_TEXT_CHUNKS:
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


def merge_streams(outputs: list) -> list:
    """Join neighbouring outputs of one stream: how a kernel cuts them depends on its timing."""
    merged: list = []
    for output in outputs:
        previous = merged[-1] if merged else None
        if (
            previous is not None
            and output.output_type == previous.output_type == "stream"
            and output.name == previous.name
        ):
            previous.text += output.text
        else:
            merged.append(output)
    return merged


def normalise(notebook: nbformat.NotebookNode, key: str) -> str:
    """Return the notebook as text, with everything removed that two runs would write differently.

    Args:
        notebook: an executed notebook; changed in place.
        key: what the ids of its widgets are derived from (its name).
    """
    kept = {k: v for k, v in notebook.metadata.items() if k in NOTEBOOK_METADATA}
    notebook.metadata = nbformat.from_dict(kept)
    notebook.metadata["kernelspec"] = {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    }
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    count = 0
    for position, cell in enumerate(notebook.cells):
        cell["id"] = cell.get("id") or f"cell-{position:03d}"
        for name in TRANSIENT_CELL_METADATA:
            cell.metadata.pop(name, None)
        if cell.cell_type != "code":
            continue
        count += 1
        cell.execution_count = count
        cell.outputs = merge_streams(cell.outputs)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
            picture = output.get("data", {}).get("image/png")
            if picture is not None:
                stripped = base64.b64encode(strip_png(base64.b64decode(picture)))
                output.data["image/png"] = stripped.decode() + "\n"
    text = _written(notebook)
    widgets = notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    for position, model_id in enumerate(widgets):  # in the order in which they were made
        text = text.replace(model_id, hashlib.md5(f"{key}:{position}".encode()).hexdigest())
    text = _written(nbformat.reads(text, as_version=4))  # sorted by the new ids, not the old
    return re.sub(r"/tmp/ipykernel_\d+/\d+\.py", "<cell>", text)


def _written(notebook: nbformat.NotebookNode) -> str:
    return nbformat.writes(notebook, indent=1, ensure_ascii=False) + "\n"


def machine_traces(text: str) -> list[str]:
    """Return what in the text belongs to this machine or to this run alone."""
    places = {str(ROOT), str(Path.home()), socket.gethostname(), getpass.getuser()}
    trivial = {"", "/", "localhost", "root"}
    found = [name for name in sorted(places - trivial) if re.search(rf"{re.escape(name)}\b", text)]
    return found + re.findall(r"\b0x[0-9a-f]{8,16}\b|/tmp/\S+", text)


def printed(notebook: nbformat.NotebookNode) -> str:
    """Return every text that the notebook's cells wrote."""
    parts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            parts.append(str(output.get("text", "")))
            parts += [str(v) for k, v in output.get("data", {}).items() if k != "image/png"]
    return "\n".join(parts)


def note_times(folder: Path, seconds: dict[str, float]) -> None:
    """Write into the folder's `times.json` what changed by more than a fifth, to whole seconds."""
    path = folder / TIMES
    noted = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for name, took in seconds.items():
        if abs(took - noted.get(name, 0)) > 0.2 * noted.get(name, 0):
            noted[name] = round(took)
    path.write_text(json.dumps(noted, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def execute(path: Path, timeout: int) -> tuple[str, float, float]:
    """Run one notebook; return its normalised text, processor seconds and the peak GiB of memory.

    Raises:
        RuntimeError: a cell failed, or an output names this machine.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code" and not cell.source.strip():
            raise RuntimeError(f"{path}: a code cell is empty")
    client = NotebookClient(
        notebook,
        kernel_manager_class=Manager,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        timeout=timeout,
        record_timing=False,
        store_widget_state=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute(env={**os.environ, **KERNEL_ENVIRONMENT})
    except CellExecutionError as error:
        plain = re.sub(r"\x1b\[[\d;]*m", "", str(error))
        raise RuntimeError(f"{path}: {plain}") from None
    text = normalise(notebook, path.stem)
    traces = machine_traces(printed(notebook))
    if traces:
        raise RuntimeError(f"{path}: the outputs name this machine or this run: {traces}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of the kernel, which has ended
    seconds, peak = used.ru_utime + used.ru_stime, used.ru_maxrss
    return text, seconds, peak / (2**30 if sys.platform == "darwin" else 2**20)


def run_one(path: Path, check: bool, timeout: int) -> tuple[bool, float]:
    """Execute a notebook, write or compare it, print a line; return if it is good, and its time."""
    try:
        text, seconds, peak = execute(path, timeout)
    except RuntimeError as error:
        print(error, flush=True)
        return False, 0.0
    same = text == path.read_text(encoding="utf-8")
    if not check and not same:
        unfinished = path.with_suffix(".ipynb.part")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    verdict = "unchanged" if same else ("WOULD CHANGE" if check else "written")
    size = len(text.encode()) / 1e6
    print(f"{path}: {verdict}, {seconds:.1f} s, {peak:.2f} GiB, {size:.2f} MB", flush=True)
    return same or not check, seconds


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: chapters/*.ipynb")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    parser.add_argument("--jobs", type=int, default=1, help="notebooks at a time (default 1)")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one cell")
    options = parser.parse_args(arguments)
    notebooks = options.notebooks or sorted((ROOT / "chapters").glob("*.ipynb"))
    if not notebooks:
        parser.error("no notebook given and none in chapters/")
    # One process per notebook: the peak of one kernel is then not taken for that of the next.
    work = [(path, options.check, options.timeout) for path in notebooks]
    with get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:
        done = pool.starmap(run_one, work, chunksize=1)
    if not options.check:
        for path, (good, seconds) in zip(notebooks, done, strict=True):
            if good:
                note_times(path.parent, {path.stem: seconds})
    return 0 if all(good for good, _ in done) else 1


if __name__ == "__main__":
    sys.exit(main())
