"""Strict nbval: figures are compared, and a cell that never ran fails."""

from __future__ import annotations

import os

import pytest

from compare_pictures import difference
from execute_notebooks import KERNEL_ENVIRONMENT

# nbval's kernels start with what the committed run had
os.environ.update(KERNEL_ENVIRONMENT)
collect_ignore = ["conftest.py"]


def _pictures(outputs: list | None) -> list[str]:
    bundles = [output.get("data", {}) for output in outputs or []]
    return [data["image/png"] for data in bundles if "image/png" in data]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """After nbval's own comparison, compare what it leaves out."""
    outcome = yield
    if type(item).__name__ != "IPyNbCell":
        return outcome
    cell = f"cell {item.cell_num}"
    if item.cell.execution_count is None:
        pytest.fail(f"{cell} was never run", pytrace=False)
    if item.options["check"]:
        committed = _pictures(item.cell.outputs)
        drawn = _pictures(item.test_outputs)
        if len(committed) != len(drawn):
            changed = f"{len(committed)} figures became {len(drawn)}"
            pytest.fail(f"{cell}: {changed}", pytrace=False)
        for number, pair in enumerate(zip(committed, drawn, strict=True)):
            changed = difference(*pair)
            if changed is not None:
                where = f"{cell}, figure {number}"
                pytest.fail(f"{where}: {changed}", pytrace=False)
    return outcome
