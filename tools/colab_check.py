"""Run a chapter as Colab does: its setup cell first, in an environment that has no library yet.

    python tools/colab_check.py             # chapter 1, with the packages of this environment
    python tools/colab_check.py --clean     # with Colab's versions, fetched: minutes, gigabytes
    python tools/colab_check.py chapters/02_subspaces.ipynb

A virtual environment gets a stand-in for `google.colab`; the notebook lies alone in a folder; the
repository that the setup cell names is answered by a copy of this one, with the tag that it asks
for. Afterwards torch and numpy must be the ones that were there before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import nbformat

from setup_cell import repository, tag

ROOT = Path(__file__).resolve().parent.parent
#: What Colab brings, as far as it matters here.
COLAB = {"torch": "2.9.0", "numpy": "2.0.2", "ipywidgets": "7.7.1", "anywidget": "0.9.18"}
#: What runs the notebook; Colab has its own.
RUNNERS = ("ipykernel", "jupyter_client", "nbclient", "nbformat")
#: What pip needs of the repository to install the library.
PACKAGED = ("pyproject.toml", "README.md", "LICENSE", "LICENSE-text", "lib")
ASKED = """\
import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy
import residual_stream
import torch

modules = {"torch": torch, "numpy": numpy, "library": residual_stream}
names = ["torch", "numpy", "ipywidgets", "anywidget"]
print(json.dumps({
    "versions": {name: version(name) for name in names},
    "installed": [n for n, m in modules.items() if Path(m.__file__).is_relative_to(sys.prefix)],
    "stand_in": "google.colab" in sys.modules,
}))"""
RUN = """\
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[2])
from execute_notebooks import execute

path = Path(sys.argv[1])
path.with_suffix(".done").write_text(execute(path, 600)[0], encoding="utf-8")"""


@dataclass(frozen=True)
class ColabRun:
    """What a chapter found in its environment after its setup cell had run.

    Attributes:
        versions: Of torch, numpy, ipywidgets and anywidget.
        installed: Which of torch, numpy and the library were imported from the environment itself,
            and not borrowed.
        results: The sentence of each of the chapter's Result cells, by claim.
    """

    versions: dict[str, str]
    installed: list[str]
    results: dict[str, str]


def stand_in(environment: Path, *, borrow: bool) -> Path:
    """Make a virtual environment that believes to be Colab; return its Python.

    Args:
        environment: Folder to make it in.
        borrow: Whether it sees this environment's packages; the library itself it never sees, for
            an editable install is not followed.
    """
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    packages = Path(done.stdout.strip())
    module = packages / "google" / "colab"
    module.mkdir(parents=True)
    (module / "__init__.py").write_text('"""Not Colab."""\n')
    lines = ["import google.colab"]  # Colab has it loaded before the first cell
    if borrow:  # the library is built with this environment's setuptools, not with ensurepip's
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


def check(notebook: Path, folder: Path, *, clean: bool = False) -> ColabRun:
    """Run a notebook as Colab does.

    Args:
        notebook: A chapter.
        folder: An empty folder to work in.
        clean: Fetch Colab's versions instead of borrowing the packages of this environment.

    Raises:
        RuntimeError: The setup cell or another cell failed.
    """
    python = stand_in(folder / "environment", borrow=not clean)
    # The address stays as it is in the cell; git alone is told that it is here.
    environment = {
        **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "CI")},
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{tagged_copy(folder / 'repository').as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": repository(),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    if clean:
        wanted = [f"{name}=={number}" for name, number in COLAB.items()]
        pip = [python, "-m", "pip", "install", "-q", *wanted, *RUNNERS]
        subprocess.run(pip, check=True)
    else:
        environment |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    alone = folder / "content" / notebook.name
    alone.parent.mkdir()
    cells = nbformat.read(notebook, as_version=4)
    cells.cells.append(nbformat.v4.new_code_cell(ASKED))
    nbformat.write(cells, alone)
    done = subprocess.run(
        [python, "-c", RUN, alone, ROOT / "tools"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=alone.parent,
    )
    if done.returncode:
        raise RuntimeError(f"colab_check: {notebook.name} failed:\n{done.stdout}{done.stderr}")
    return _found(nbformat.read(alone.with_suffix(".done"), 4))


def _found(notebook: nbformat.NotebookNode) -> ColabRun:
    said = json.loads(notebook.cells[-1].outputs[0].text)
    if not said["stand_in"]:
        raise RuntimeError("colab_check: the kernel did not have the stand-in for google.colab")
    claim = "application/vnd.residual-stream.claim+json"
    records = [o.get("data", {}).get(claim) for c in notebook.cells for o in c.get("outputs", [])]
    return ColabRun(
        versions=said["versions"],
        installed=said["installed"],
        results={record["claim"]: record["sentence"] for record in records if record},
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "notebooks", nargs="*", type=Path, default=[ROOT / "chapters" / "01_bus.ipynb"]
    )
    parser.add_argument("--clean", action="store_true", help="with Colab's versions, fetched")
    options = parser.parse_args(arguments)
    good = True
    for notebook in options.notebooks:
        with tempfile.TemporaryDirectory() as folder:
            run = check(notebook.resolve(), Path(folder), clean=options.clean)
            expected = COLAB if options.clean else {n: version(n) for n in COLAB}
            moved = {
                name: number
                for name, number in run.versions.items()
                if number.split("+")[0] != expected[name].split("+")[0]
            }
            good = good and not moved and "library" in run.installed
            state = f"moved {moved}" if moved else "nothing moved"
            print(f"{notebook.name}: {len(run.results)} results, {state}, {run.versions}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
