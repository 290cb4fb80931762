"""The tools that time the chapters and print the book."""

from __future__ import annotations

import json

import pytest
from chapter_minutes import in_words, measured, table

import print_book
from execute_notebooks import TIMES, note_times


def test_a_time_is_noted_once_and_again_only_when_it_has_changed_by_a_fifth(tmp_path):
    note_times(tmp_path, {"01_bus": 40.4})
    note_times(tmp_path, {"01_bus": 47.0, "02_subspaces": 61.0})
    assert json.loads((tmp_path / TIMES).read_text()) == {"01_bus": 40, "02_subspaces": 61}
    note_times(tmp_path, {"01_bus": 49.0})
    assert measured(tmp_path) == {"01_bus": 49, "02_subspaces": 61}


def test_a_time_is_said_to_the_half_minute_and_never_as_none():
    assert [in_words(s) for s in (0.1, 44, 46, 75, 200)] == [
        "half a minute",
        "half a minute",
        "1 minute",
        "1 minute",
        "3.5 minutes",
    ]


def test_the_table_names_every_chapter_and_says_where_nothing_was_measured(tmp_path):
    import nbformat

    make = nbformat.v4
    opening = "# 1 · The bus\n\n**You will be able to** see [it](a.md).\n"
    path = tmp_path / "01_bus.ipynb"
    nbformat.write(make.new_notebook(cells=[make.new_markdown_cell(opening)]), path)
    assert table(tmp_path).splitlines()[2] == (
        "| [1 · The bus](../chapters/01_bus.ipynb) | see it | not measured |"
    )
    note_times(tmp_path, {"01_bus": 90})
    assert table(tmp_path).splitlines()[2].endswith("| 1.5 minutes |")


def test_printing_without_a_browser_says_which_are_looked_for(monkeypatch):
    monkeypatch.setattr(print_book.shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="chromium, chromium-browser, google-chrome"):
        print_book.browser_path()
