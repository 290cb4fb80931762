"""Strict nbval: compares the pictures, which nbval skips, and fails a cell that was never run."""

from __future__ import annotations

import os

import pytest

from compare_pictures import difference
from execute_notebooks import KERNEL_ENVIRONMENT

os.environ.update(KERNEL_ENVIRONMENT)  # nbval's kernels start with what the committed run had


def _pictures(outputs: list | None) -> list[str]:
    return [o["data"]["image/png"] for o in outputs or [] if "image/png" in o.get("data", {})]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """After nbval's own comparison, compare what it leaves out."""
    outcome = yield
    if type(item).__name__ != "IPyNbCell":
        return outcome
    if item.cell.execution_count is None:
        pytest.fail(f"cell {item.cell_num} was never run: nothing to compare", pytrace=False)
    if item.options["check"]:
        committed, drawn = _pictures(item.cell.outputs), _pictures(item.test_outputs)
        if len(committed) != len(drawn):
            pytest.fail(
                f"cell {item.cell_num}: {len(committed)} figures became {len(drawn)}",
                pytrace=False,
            )
        for number, pair in enumerate(zip(committed, drawn, strict=True)):
            changed = difference(*pair)
            if changed is not None:
                pytest.fail(f"cell {item.cell_num}, figure {number}: {changed}", pytrace=False)
    return outcome
