"""The setup cell: on Colab it installs the library and holds torch and numpy; elsewhere nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path

import nbformat
import pytest
from claims_table import reached
from packaging.requirements import Requirement

from colab_check import COLAB, ColabRun, alone, check, moved, report
from setup_cell import notebooks, repository, setup_cell, tag, write_into

ROOT = Path(__file__).resolve().parent.parent

# Stands in for Colab's own Python: run as a script it is Colab with a pip that only writes down
# what it is asked for.
STAND_IN = """
import json, subprocess, sys, types
from pathlib import Path

calls = []


def check_call(command):
    constraints = Path(command[command.index("-c") + 1]).read_text()
    calls.append({"command": command, "constraints": constraints})


subprocess.check_call = check_call
if sys.argv[1] == "colab":
    google = types.ModuleType("google")
    google.colab = types.ModuleType("google.colab")
    sys.modules.update({"google": google, "google.colab": google.colab})
exec(compile(sys.stdin.read(), "setup cell", "exec"), {"__name__": "__main__"})
print(json.dumps({"calls": calls, "torch": "torch" in sys.modules}))
"""


def run_cell(where: str, tmp_path: Path, path: str | None = None) -> dict:
    """Run the setup cell in a process of its own; return what it asked pip for and what it said."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    environment = {**os.environ, "PIP_NO_INDEX": "1"}
    if path is not None:
        environment["PATH"] = path
    done = subprocess.run(
        [sys.executable, str(script), where],
        input=setup_cell(),
        text=True,
        capture_output=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    *said, last = done.stdout.splitlines()
    return {**json.loads(last), "said": " ".join(said)}


def test_on_colab_it_installs_from_the_repository_at_the_tag_of_this_version(tmp_path):
    (call,) = run_cell("colab", tmp_path)["calls"]
    assert call["command"][:4] == [sys.executable, "-m", "pip", "install"]
    assert call["command"][-1] == f"residual-stream @ git+{repository()}@{tag()}"


def test_on_colab_it_holds_torch_and_numpy_where_they_are(tmp_path):
    (call,) = run_cell("colab", tmp_path)["calls"]
    expected = {f"{name}=={version(name)}" for name in ("torch", "numpy")}
    assert set(call["constraints"].split()) == expected


def test_on_colab_it_imports_neither_of_them_before_the_install(tmp_path):
    assert not run_cell("colab", tmp_path)["torch"]


def test_on_colab_it_says_what_is_slow_where_there_is_no_gpu_and_nothing_where_there_is(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "cells that train a model" in run_cell("colab", tmp_path, str(empty))["said"]
    (empty / "nvidia-smi").touch(mode=0o755)
    assert run_cell("colab", tmp_path, str(empty))["said"] == ""


def test_elsewhere_it_does_nothing(tmp_path):
    assert run_cell("elsewhere", tmp_path)["calls"] == []


@pytest.mark.real
@pytest.mark.slow
def test_a_whole_chapter_runs_from_a_tag_and_torch_and_numpy_stay(tmp_path):
    run = check(ROOT / "chapters" / "01_bus.ipynb", tmp_path)
    assert run.moved == {}
    assert {n: run.versions[n] for n in ("torch", "numpy")} == {
        "torch": version("torch"),
        "numpy": version("numpy"),
    }
    assert run.installed == ["library"]  # from the tag; torch and numpy are those that were there
    committed = reached(ROOT / "chapters")
    expected = {c: r.sentence for c, r in committed.items() if r.chapter == "01_bus.ipynb"}
    assert run.results == expected


def colab_versions() -> dict[str, str]:
    lines = COLAB.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("library", ["residual-stream", "transformer-lens"])
def test_colab_need_not_move_a_package_for_the_library(library):
    """What Colab has is new enough for every requirement that it answers at all."""
    there = {name.lower().replace("_", "-"): number for name, number in colab_versions().items()}
    needed = [Requirement(text) for text in requires(library)]
    colab = {"python_version": "3.12", "extra": ""}
    asked = [n for n in needed if n.name in there and (not n.marker or n.marker.evaluate(colab))]
    assert len(asked) >= 8
    assert [str(n) for n in asked if there[n.name] not in n.specifier] == []


def test_a_package_that_moved_or_went_is_found_and_one_that_came_is_not():
    before = {"torch": "2.11.0", "numpy": "2.0.2", "six": "1.17.0"}
    builds = {"torch": "2.11.0+cu128", "numpy": "2.0.2", "library": "0.1.0"}
    assert moved(before, {**before, "gguf": "0.19.0"}, builds) == {}
    assert moved(before, {**before, "numpy": "2.1.0"}, {}) == {"numpy": "2.0.2 → 2.1.0"}
    assert moved(before, before, {"numpy": "2.1.0"}) == {"numpy": "2.0.2 → 2.1.0"}
    assert moved(before, {"torch": "2.11.0", "numpy": "2.0.2"}, {}) == {"six": "1.17.0 → gone"}


def small_notebook(path: Path) -> Path:
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "a"}, "text/plain": "S."}
    outputs = [nbformat.v4.new_output("display_data", view)]
    cells = [
        nbformat.v4.new_code_cell("show()", outputs=outputs),
        nbformat.v4.new_code_cell("def ledger(model):\n    ..."),
        nbformat.v4.new_code_cell("ledger(bench)"),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_a_sheet_runs_up_to_its_first_gap(tmp_path):
    alone(small_notebook(tmp_path / "sheet.ipynb"), tmp_path / "content" / "sheet.ipynb")
    sources = [cell.source for cell in nbformat.read(tmp_path / "content" / "sheet.ipynb", 4).cells]
    assert sources[:-1] == ["show()"] and "stand_in" in sources[-1]


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"moved": {"numpy": "2.0.2 → 2.1.0"}}, False),
        ({"installed": []}, False),
        ({"widgets": 0}, False),
        ({"results": {"B1": "It is so."}}, False),
    ],
)
def test_a_run_is_good_only_if_nothing_moved_and_nothing_is_missing(tmp_path, change, good):
    kept = ("torch", "numpy", "ipywidgets", "anywidget")
    run = {
        "versions": dict.fromkeys(kept, "1.0"),
        "moved": {},
        "installed": ["library"],
        "widgets": 1,
        "results": {},
    }
    assert report(small_notebook(tmp_path / "sheet.ipynb"), ColabRun(**{**run, **change})) == good


def test_the_tag_is_that_of_the_installed_version():
    import residual_stream

    assert tag() == f"v{version('residual-stream')}" == f"v{residual_stream.__version__}"


def test_every_notebook_that_colab_can_open_begins_with_the_cell():
    found = {path.relative_to(ROOT).as_posix() for path in notebooks()}
    listed = subprocess.run(
        ["git", "ls-files", "*.ipynb"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found == set(listed.stdout.split())
    for path in notebooks():
        code = [c.source for c in nbformat.read(path, 4).cells if c.cell_type == "code"]
        assert code[0] == setup_cell(), path


def test_the_cell_is_put_before_the_first_code_cell_and_renewed_in_place(tmp_path):
    make = nbformat.v4
    path = tmp_path / "chapter.ipynb"
    cells = [make.new_markdown_cell("# A title"), make.new_code_cell("import torch")]
    nbformat.write(make.new_notebook(cells=cells), path)
    assert write_into(path)
    sources = [cell.source for cell in nbformat.read(path, 4).cells]
    assert sources == ["# A title", setup_cell(), "import torch"]

    notebook = nbformat.read(path, 4)
    notebook.cells[1].source += "\nprint('an older one')"
    notebook.cells[1].execution_count = 1
    nbformat.write(notebook, path)
    assert write_into(path)
    assert [cell.source for cell in nbformat.read(path, 4).cells] == sources
    assert nbformat.read(path, 4).cells[1].execution_count == 1  # the rest was run, and stays
    assert not write_into(path)


def test_the_cell_is_as_the_formatter_of_the_chapters_would_write_it():
    command = [sys.executable, "-m", "ruff", "format", "--check", "-"]
    config = ["--config", str(ROOT / "chapters" / "ruff.toml")]
    cell = setup_cell() + "\n"
    done = subprocess.run([*command, *config], input=cell, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_notebook_without_code_is_refused(tmp_path):
    path = tmp_path / "prose.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# T")]), path)
    with pytest.raises(ValueError, match="no code cell"):
        write_into(path)
