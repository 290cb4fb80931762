"""The prepared GPU check: its parts on any machine, its measurements where there is a GPU."""

from __future__ import annotations

import json

import pytest
import torch

import gpu_check
import residual_stream as rs


@pytest.mark.gpu
@pytest.mark.real
@pytest.mark.parametrize("dtype", list(gpu_check.TOLERANCE))
@pytest.mark.parametrize("name", ["bench", "smollm2-135m"])
def test_the_accelerator_measures_what_the_cpu_measures(name, dtype):
    device = "cuda" if torch.cuda.is_available() else "mps"
    ours = gpu_check.measurements(name, device, dtype)
    assert gpu_check.disagreements(ours, gpu_check.measurements(name, "cpu", dtype), dtype) == []


@pytest.mark.gpu
@pytest.mark.slow
def test_writes_kept_on_the_cpu_are_those_of_the_accelerator():
    model = rs.load("bench", device="cuda" if torch.cuda.is_available() else "mps")
    there, here = (rs.record(model, "In the beginning", device=device) for device in (None, "cpu"))
    assert here.writes.device.type == "cpu" and here.audit().ok
    assert torch.equal(there.writes.cpu(), here.writes)
    assert rs.probe(model, "In the beginning", device="cpu").audit.ok


@pytest.fixture(scope="module")
def found():
    return gpu_check.measurements("bench", "cpu", torch.float32)


def test_a_device_agrees_with_itself(found):
    assert len(found) > 15 and gpu_check.disagreements(found, found, torch.float32) == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("replay error", 1e-6),
        ("ledger closes", -1),
        ("logit", 0.5),
        ("last third", 0.05),
        ("float32 sum, in steps", 9),
        ("KL without layer 1", 0.1),
    ],
)
def test_a_device_that_measures_something_else_is_found(found, name, change):
    (said,) = gpu_check.disagreements({**found, name: found[name] + change}, found, torch.float32)
    assert said.startswith(name)


def test_a_number_that_differs_is_found_and_words_that_differ_are_not():
    cpu = "the top is 25\u202f000 long, off by −0.5\n<object at 1>"
    assert gpu_check.differing(3, cpu, cpu) == []
    assert gpu_check.differing(3, cpu.replace("000", "900"), cpu) == []
    (line,) = gpu_check.differing(3, cpu.replace("−0.5", "−0.9"), cpu)
    assert line.startswith("cell 3: −0.9 here, −0.5 on the CPU")
    assert gpu_check.differing(3, "other words 1", "some words 2") == []


def test_a_chapter_that_fails_on_a_device_is_named(tmp_path):
    import nbformat

    make = nbformat.v4
    cells = [
        make.new_code_cell(
            "import residual_stream as rs\nrs.load('bench').cfg.device",
            outputs=[make.new_output("execute_result", {"text/plain": "'cpu'"})],
        ),
        make.new_code_cell("assert 1 == 2, 'no'"),
    ]
    nbformat.write(make.new_notebook(cells=cells), tmp_path / "spoiled.ipynb")
    load = rs.load
    failed, lines = gpu_check.run_chapter(tmp_path / "spoiled.ipynb", "cpu")
    assert failed == "cell 1: AssertionError: no" and lines == [] and rs.load is load


def test_the_script_says_what_agrees(tmp_path, capsys):
    arguments = ["--device", "cpu", "--model", "bench", "--no-chapters"]
    assert gpu_check.main([*arguments, "--out", str(tmp_path / "found.json")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "all agree"
    kept = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert kept["float32"]["wrong"] == kept["bfloat16"]["wrong"] == []


def test_a_script_that_finds_something_says_so(monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "disagreements", lambda *found: ["logit: 1 here, 2 on the CPU"])
    assert gpu_check.main(["--device", "cpu", "--model", "bench", "--no-chapters"]) == 1
    assert "NOT ALL AGREE" in capsys.readouterr().out
