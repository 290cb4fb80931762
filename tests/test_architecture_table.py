"""The book's table of architectures says what is measured now."""

import pytest

from architecture_table import COLUMNS, PAGE, row
from residual_stream.architectures import CONFIGS

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
LINES = [
    line.strip("| ").split(" | ") for line in PAGE.read_text("utf-8").splitlines() if "|" in line
]
ROWS = {line[0]: line for line in LINES[2:]}


def test_every_architecture_has_a_row():
    assert LINES[0] == list(COLUMNS)
    assert list(ROWS) == list(CONFIGS)


def test_this_library_is_never_wrong_and_refuses_only_what_has_a_head_of_its_own():
    for name, line in ROWS.items():
        assert line[3] == "exact"
        assert all(cell in ("rounding", "–") for cell in line[4:7]) or name == "bert"


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "granite", "gpt_oss", "olmo2", "mamba", "bert"])
def test_a_row_is_what_is_measured(name):
    assert list(row(name)) == ROWS[name]
