"""Run notebooks as Colab does: the setup cell first, in an environment that has no library yet.

    python tools/colab_check.py             # chapter 1, with the packages of this environment
    python tools/colab_check.py --clean chapters/*.ipynb assignments/student/*.ipynb
                                            # with Colab's versions, fetched: minutes, gigabytes

A virtual environment gets a stand-in for `google.colab`; the notebook lies alone in a folder; the
repository that the setup cell names is answered by a copy of this one, with the tag that it asks
for. A sheet of questions runs up to its first gap. Afterwards no package that Colab brings may be
another version than before, torch and numpy above all.

Colab's versions stand in `colab_packages.txt`, with their source and date. Every notebook finds
them anew, as on Colab, where each has a machine of its own: they are fetched once and linked.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import nbformat

from setup_cell import repository, tag

ROOT = Path(__file__).resolve().parent.parent
#: What Colab brings, as far as it matters here.
COLAB = Path(__file__).with_name("colab_packages.txt")
#: Colab's Python, and those for which all of its versions are built.
PYTHON, PYTHONS = (3, 12), ((3, 11), (3, 12))
#: What pip needs of the repository to install the library.
PACKAGED = ("pyproject.toml", "README.md", "LICENSE", "LICENSE-text", "lib")
#: A line where a student is to write.
GAP = re.compile(r"^\s*(.* = )?\.\.\.$", re.MULTILINE)
VIEW = "application/vnd.jupyter.widget-view+json"
CLAIM = "application/vnd.residual-stream.claim+json"
VERSIONS = """\
import json
from importlib.metadata import distributions, version

names = {d.name.lower().replace("_", "-") for d in distributions()}
versions = {name: version(name) for name in sorted(names)}
"""
ASKED = (
    VERSIONS
    + """\
import sys
from pathlib import Path

import numpy
import residual_stream
import torch

modules = {"torch": torch, "numpy": numpy, "library": residual_stream}
print(json.dumps({
    "versions": versions,
    "imported": {name: module.__version__ for name, module in modules.items()},
    "installed": [n for n, m in modules.items() if Path(m.__file__).is_relative_to(sys.prefix)],
    "stand_in": "google.colab" in sys.modules,
}))"""
)
RUN = """\
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[2])
import execute_notebooks

execute_notebooks.machine_traces = lambda text: []  # where it ran is no matter here
path = Path(sys.argv[1])
text, *_ = execute_notebooks.execute(path, 600)
path.with_suffix(".done").write_text(text, encoding="utf-8")"""


@dataclass(frozen=True)
class ColabRun:
    """What a notebook found in its environment after its setup cell had run.

    Attributes:
        versions: Of every package, by name.
        moved: Of the packages that were there before the setup cell, those that are another version
            now, as "1.0 → 2.0", or gone; and torch and numpy where what was imported is another.
        installed: Which of torch, numpy and the library were imported from the environment itself,
            and not borrowed.
        widgets: How many figures that one can move were shown.
        results: The sentence of each of the notebook's Result cells, by claim.
    """

    versions: dict[str, str]
    moved: dict[str, str]
    installed: list[str]
    widgets: int
    results: dict[str, str]


def colab_python() -> str:
    """Return the command of a Python that Colab's versions install on, its own if there is one.

    Raises:
        RuntimeError: There is none.
    """
    for command in (f"python{PYTHON[0]}.{PYTHON[1]}", sys.executable):
        ask = "import sys; print(*sys.version_info[:2])"
        try:
            done = subprocess.run([command, "-c", ask], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue  # absent, or a version manager's answer that it is not switched on
        if tuple(map(int, done.stdout.split())) in PYTHONS:
            return command
    raise RuntimeError(
        "colab_check: Colab's versions need Python 3.11 or 3.12 (Colab itself has 3.12), and this "
        f"is {sys.version_info[0]}.{sys.version_info[1]}: give one with --python"
    )


def fetch(base: Path, python: str, torch_index: str | None) -> None:
    """Make an environment with what Colab brings; nothing if it is there from an earlier run.

    Args:
        base: Folder of the environment.
        python: Command that makes it.
        torch_index: Where torch's wheel comes from, if not from pip's usual index.
    """
    pins = COLAB.read_text(encoding="utf-8")
    complete = base / "complete.txt"
    if complete.is_file() and complete.read_text(encoding="utf-8") == pins:
        return
    subprocess.run([python, "-m", "venv", "--clear", base], check=True)
    pip = [base / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if torch_index:
        (torch,) = re.findall(r"^torch==\S+$", pins, re.MULTILINE)
        subprocess.run([*pip, "--no-deps", "--index-url", torch_index, torch], check=True)
    subprocess.run([*pip, "-r", COLAB], check=True)
    complete.write_text(pins, encoding="utf-8")


def stand_in(environment: Path, base: Path | None) -> Path:
    """Make a virtual environment that believes to be Colab; return its Python.

    Args:
        environment: Folder to make it in.
        base: Environment to begin with. Without one it sees the packages of this environment; the
            library itself it never sees, for an editable install is not followed.
    """
    python = environment / "bin" / "python"
    if base is None:
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    else:  # pip replaces files and never writes into one, so the base stays as it is
        shutil.copytree(base, environment, symlinks=True, copy_function=os.link)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    packages = Path(done.stdout.strip())
    module = packages / "google" / "colab"
    module.mkdir(parents=True)
    (module / "__init__.py").write_text('"""Not Colab."""\n')
    lines = ["import google.colab"]  # Colab has it loaded before the first cell
    if base is None:  # the library is built with this environment's setuptools, not ensurepip's
        pip = [python, "-m", "pip", "uninstall", "-q", "-y", "setuptools"]
        subprocess.run(pip, capture_output=True, check=True)
        lines.insert(0, str(Path(nbformat.__file__).parents[1]))
    (packages / "stand_in.pth").write_text("\n".join(lines) + "\n")
    return python


def tagged_copy(folder: Path) -> Path:
    """Make a repository with this library under the tag that the setup cell asks for."""
    folder.mkdir()
    for name in PACKAGED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    who = ["-c", "user.name=colab", "-c", "user.email=colab@localhost"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "all"], ["tag", tag()]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def alone(notebook: Path, to: Path) -> None:
    """Put a notebook where nothing else lies, up to its first gap, and ask at its end."""
    cells = nbformat.read(notebook, as_version=4)
    code = [i for i, cell in enumerate(cells.cells) if cell.cell_type == "code"]
    gap = next((i for i in code if GAP.search(cells.cells[i].source)), len(cells.cells))
    cells.cells[gap:] = [nbformat.v4.new_code_cell(ASKED)]
    to.parent.mkdir()
    nbformat.write(cells, to)


def check(notebook: Path, folder: Path, *, base: Path | None = None) -> ColabRun:
    """Run a notebook as Colab does.

    Args:
        notebook: A chapter, or a sheet of questions.
        folder: An empty folder to work in.
        base: An environment that `fetch` made. Without one the packages of this are borrowed.

    Raises:
        RuntimeError: The setup cell or another cell failed.
    """
    python = stand_in(folder / "environment", base)
    # The address stays as it is in the cell; git alone is told that it is here.
    environment = {
        **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "CI")},
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{tagged_copy(folder / 'repository').as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": repository(),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    if base is None:
        environment |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    ask = [python, "-c", VERSIONS + "print(json.dumps(versions))"]
    asked = subprocess.run(ask, capture_output=True, text=True, check=True, env=environment)
    copy = folder / "content" / notebook.name
    alone(notebook, copy)
    done = subprocess.run(
        [python, "-c", RUN, copy, ROOT / "tools"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=copy.parent,
    )
    if done.returncode:
        raise RuntimeError(f"colab_check: {notebook.name} failed:\n{done.stdout}{done.stderr}")
    return _found(nbformat.read(copy.with_suffix(".done"), 4), json.loads(asked.stdout))


def moved(before: dict[str, str], after: dict[str, str], imported: dict[str, str]) -> dict:
    """Return what is another version than before, or gone, as "1.0 → 2.0".

    Example:
        >>> moved({"numpy": "2.0", "six": "1.0"}, {"numpy": "2.0"}, {"numpy": "2.1+cpu"})
        {'numpy': '2.0 → 2.1', 'six': '1.0 → gone'}
    """
    found = {name: after.get(name, "gone") for name in before}
    found |= {name: number for name, number in imported.items() if name in before}
    plain = {name: number.split("+")[0] for name, number in found.items()}
    was = {name: number.split("+")[0] for name, number in before.items()}
    return {n: f"{was[n]} → {plain[n]}" for n in before if was[n] != plain[n]}


def _views(notebook: nbformat.NotebookNode) -> int:
    return sum(VIEW in o.get("data", {}) for c in notebook.cells for o in c.get("outputs", []))


def _sentences(notebook: nbformat.NotebookNode) -> dict[str, str]:
    records = [o.get("data", {}).get(CLAIM) for c in notebook.cells for o in c.get("outputs", [])]
    return {record["claim"]: record["sentence"] for record in records if record}


def _found(notebook: nbformat.NotebookNode, before: dict[str, str]) -> ColabRun:
    said = json.loads(notebook.cells[-1].outputs[0].text)
    if not said["stand_in"]:
        raise RuntimeError("colab_check: the kernel did not have the stand-in for google.colab")
    return ColabRun(
        versions=said["versions"],
        moved=moved(before, said["versions"], said["imported"]),
        installed=said["installed"],
        widgets=_views(notebook),
        results=_sentences(notebook),
    )


def report(notebook: Path, run: ColabRun) -> bool:
    """Say what a run found, beside what the book has; return whether it is as it must be."""
    book = nbformat.read(notebook, as_version=4)
    printed, widgets = _sentences(book), _views(book)
    other = sorted(claim for claim in printed if run.results.get(claim) != printed[claim])
    kept = ("torch", "numpy", "ipywidgets", "anywidget")
    print(
        f"{notebook.name}: {len(run.results)} of {len(printed)} results, "
        f"{f'in other words {other}' if other else 'word for word'}; "
        f"{run.widgets} of {widgets} widgets; "
        f"{f'MOVED {run.moved}' if run.moved else 'nothing moved'}, "
        f"{', '.join(f'{name} {run.versions[name]}' for name in kept)}",
        flush=True,
    )
    whole = run.results.keys() == printed.keys() and run.widgets == widgets
    return whole and not run.moved and "library" in run.installed


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "notebooks", nargs="*", type=Path, default=[ROOT / "chapters" / "01_bus.ipynb"]
    )
    parser.add_argument("--clean", action="store_true", help="with Colab's versions, fetched")
    parser.add_argument("--python", help="with --clean: the Python to use (Colab has 3.12)")
    parser.add_argument("--torch-index", help="with --clean: another place for torch's wheel")
    parser.add_argument("--base", type=Path, help="with --clean: keep what is fetched here")
    options = parser.parse_args(arguments)
    near = options.base.resolve().parent if options.base else None  # where links can reach
    good = True
    with tempfile.TemporaryDirectory(dir=near) as folder:
        base = None
        if options.clean:
            base = options.base.resolve() if near else Path(folder, "base")
            fetch(base, options.python or colab_python(), options.torch_index)
        for count, notebook in enumerate(options.notebooks):
            place = Path(folder, str(count))
            place.mkdir()
            try:
                good = report(notebook, check(notebook.resolve(), place, base=base)) and good
            except RuntimeError as error:
                print(error, flush=True)
                good = False
            shutil.rmtree(place)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
