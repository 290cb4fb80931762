"""The sheets: versions that agree with their source, graders and checks held against attempts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import nbformat
import numpy as np
import pytest

import residual_stream as rs
from accelerator import roughly
from course import attempts
from course import sheet as sheets_module
from course.attempts import KEPT, fingerprints, passes, read_attempts
from course.sheet import ROOT, SheetError, read_sheet, sheets
from course.versions import solution, student, student_path, text_of, without_solution
from course_notebooks import full_marks
from residual_stream.checks import QUESTIONS
from setup_cell import setup_cell

SHEETS = sheets()
#: `make test-course` draws more inputs than `make test`.
FULL = os.environ.get("COURSE_TESTS") == "full"
SEEDS = (11, 20_26, 31_337) if FULL else (11,)
ASKED = [(name, question) for name in SHEETS for question in QUESTIONS[read_sheet(name).check]]


def by_name(name, question):
    """The tests of one question."""
    return next(q for q in read_sheet(name).questions if q.name == question)


def check(name, question, answer):
    """What the self-check of a sheet says about one answer."""
    (found,) = getattr(rs.checks, read_sheet(name).check)(**{question: answer}).found
    return found


@pytest.mark.parametrize(("name", "question"), ASKED)
def test_right_answers_however_written_get_full_marks(name, question):
    answers = read_attempts(name).right_ones[question]
    assert len(answers) >= 3
    for answer in answers:
        for test in by_name(name, question).tests:
            for seed in SEEDS:
                assert passes(test, question, answer, seed), (answer.__name__, test.key, seed)
        assert check(name, question, answer).ok, answer.__name__


@pytest.mark.parametrize(("name", "question"), ASKED)
def test_right_answers_stay_right_under_the_rounding_of_an_accelerator(name, question):
    answers = read_attempts(name).right_ones[question]
    for seed, answer in enumerate(answers if FULL else answers[:1]):
        rough = roughly(answer, seed=seed)
        for test in by_name(name, question).tests:
            assert passes(test, question, rough, SEEDS[0]), (answer.__name__, test.key)
        assert check(name, question, rough).ok, answer.__name__


def test_rounding_of_another_size_would_be_noticed():
    (answer, *_), (test,) = (
        read_attempts("01_bus").right_ones["turn"],
        by_name("01_bus", "turn").tests,
    )
    assert passes(test, "turn", roughly(answer), SEEDS[0])
    assert not passes(test, "turn", roughly(answer, noise=1e-2), SEEDS[0])
    assert not check("01_bus", "turn", roughly(answer, noise=1e-2)).ok


def test_a_check_computes_in_whole_float32_and_leaves_the_setting_as_it_was():
    import torch

    seen = []
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        check("01_bus", "turn", lambda writes: seen.append(torch.get_float32_matmul_precision()))
        assert (seen, torch.get_float32_matmul_precision()) == (["highest"], "high")
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("name", "question"), ASKED)
def test_usual_mistakes_do_not_pass_and_the_check_names_them(name, question):
    mistakes = read_attempts(name).wrong_ones[question]
    assert len(mistakes) >= 6
    named = 0
    for mistake in mistakes:
        for seed in SEEDS:
            tests = by_name(name, question).tests
            assert not all(passes(t, question, mistake.answer, seed) for t in tests), mistake.name
        found = check(name, question, mistake.answer)
        assert not found.ok, mistake.name
        named += found.mistake == mistake.name and found.text == mistake.says
    assert named >= 4


@pytest.mark.parametrize(("name", "question"), ASKED)
def test_nothing_and_a_constant_get_no_point(name, question):
    import torch

    shape = json.loads((KEPT / f"{read_sheet(name).check}.json").read_text())[question]["shape"]
    for value in (None, ..., "42", torch.zeros(shape), torch.ones(1), float("nan")):
        for test in by_name(name, question).tests:
            assert not passes(test, question, lambda *args, value=value: value, SEEDS[0]), value


@pytest.mark.parametrize("name", SHEETS)
def test_every_question_asked_of_code_has_a_check(name):
    sheet = read_sheet(name)
    assert {q.name for q in sheet.questions if not q.manual} == set(QUESTIONS[sheet.check])
    assert 4 <= len(sheet.questions) <= 6


@pytest.mark.parametrize("name", SHEETS)
def test_what_a_sheet_says_is_closed_is_closed(name):
    sheet = read_sheet(name)
    before, closed, _ = text_of(student(sheet)).partition(" closed on this sheet")
    named = set(re.findall(r"`rs\.(\w+)`", before))
    assert closed and named and named <= set(sheet.closed)


def test_a_closed_module_closes_what_a_chapter_imports_from_it():
    tools = str(ROOT / "tools")
    code = (
        f"import sys; sys.path.append({tools!r})\n"
        "import torch; from course.inside import _close; _close(['growth', 'stream_norms'])\n"
        "from residual_stream import rounding, stream_norms\n"
        "from residual_stream.growth import fit_growth\n"
        "for call in (fit_growth, stream_norms, rounding.rounding_loss):\n"
        "    try:\n"
        "        call(torch.ones(5))\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["NotImplementedError", "NotImplementedError", "TypeError"]


@pytest.mark.parametrize("name", SHEETS)
def test_every_question_says_its_minutes_and_points(name):
    text = "\n".join(cell.source for cell in student(read_sheet(name)).cells)
    for question in read_sheet(name).questions:
        section = text.split(f"## {question.title}", 1)[1]
        said = re.search(r"\*(\d+) minutes, (\d+) points?[;.]", section)
        assert said and int(said[2]) == question.points, question.name
        assert bool(question.rubric) == question.manual, question.name


@pytest.mark.parametrize("name", SHEETS)
def test_the_committed_student_version_is_the_source_less_solutions_and_tests(name):
    sheet = read_sheet(name)
    assert student_path(sheet).read_text("utf-8") == text_of(student(sheet)), (
        "python -m course build"
    )
    source = nbformat.read(sheet.source, as_version=4)
    raw = [cell.source for cell in source.cells if cell.cell_type == "raw"]
    kept = {cell.id: cell.source for cell in student(sheet).cells}
    inside = None
    for cell in source.cells:  # the same rule told another way
        if cell.cell_type == "raw":
            if "TESTS" in cell.source or (
                "SOLUTION" in cell.source and "QUESTION" not in cell.source
            ):
                inside = cell.source if cell.source.startswith("# BEGIN") else None
            continue
        marked = cell.cell_type == "code" and "SOLUTION" in cell.source
        if inside is None or (inside == "# BEGIN SOLUTION" and marked):
            assert kept.pop(cell.id) == (
                without_solution(cell.source) if cell.cell_type == "code" else cell.source
            )
    assert kept == {} and len(raw) > 4


@pytest.mark.parametrize("name", SHEETS)
def test_the_student_version_leaks_no_test_and_no_solution(name):
    sheet = read_sheet(name)
    text = text_of(student(sheet))
    lines = {line.strip() for cell in student(sheet).cells for line in cell.source.split("\n")}
    for question in sheet.questions:
        for test in question.tests:
            for line in f"{test.given}\n{test.compare}".split("\n"):
                assert len(line.strip()) < 8 or line.strip() not in lines, line
        assert not question.rubric or question.rubric[:60] not in text
    for mark in (
        "SOLUTION",
        "HIDDEN",
        "TEST CONFIG",
        "SEED",
        "Rubric",
        "expected",
        "BEGIN",
        "hidden",
    ):
        assert mark not in text, mark


@pytest.mark.parametrize("name", SHEETS)
def test_the_student_version_runs_and_its_checks_say_that_nothing_is_there(name, monkeypatch):
    space, said = {}, []
    monkeypatch.setattr(rs, "load", lambda model, load=rs.load: load("bench"))  # not the real one
    for cell in student(read_sheet(name)).cells:
        if cell.cell_type != "code":
            continue
        called = re.fullmatch(r"rs\.checks\.\w+\(\w+=\w+\)", cell.source)
        if called:
            said.append(str(eval(cell.source, space)))
        elif len(said) < len(QUESTIONS[read_sheet(name).check]):
            exec(compile(cell.source, "<cell>", "exec"), space)
    assert len(said) == len(QUESTIONS[read_sheet(name).check])
    assert all("It returns nothing yet" in text for text in said), said


@pytest.mark.parametrize("name", SHEETS)
def test_the_solution_notebook_gets_full_marks(name):
    sheet, space = read_sheet(name), {}
    wanted = [q for q in sheet.questions if not q.manual]
    for cell in solution(sheet).cells:
        real = "smollm2" in cell.source
        if cell.cell_type == "code" and not real and "rs.checks." + sheet.check not in cell.source:
            exec(compile(cell.source, "<cell>", "exec"), space)
        if all(q.name in space for q in wanted):
            break
    got = sum(
        test.points
        for question in wanted
        for test in question.tests
        if passes(test, question.name, space[question.name], SEEDS[0])
    )
    assert got == full_marks(sheet)


@pytest.mark.parametrize("name", SHEETS)
def test_the_library_keeps_the_fingerprints_of_the_attempts(name):
    sheet = read_sheet(name)
    kept = json.loads((KEPT / f"{sheet.check}.json").read_text("utf-8"))
    now = fingerprints(sheet)
    assert kept.keys() == now.keys()
    for question, found in now.items():
        assert np.allclose(found["right"], kept[question]["right"], rtol=1e-3, atol=1e-4), question
        old, new = kept[question]["mistakes"], found["mistakes"]
        assert [m["says"] for m in old] == [m["says"] for m in new], "python -m course build"
        for one, other in zip(old, new, strict=True):
            assert np.allclose(one["values"], other["values"], rtol=1e-3, atol=1e-4), one["name"]


def test_the_instructors_table_has_the_points_and_minutes_of_the_sheets():
    page = (ROOT / "book" / "instructors.md").read_text("utf-8")
    for number, name in enumerate(SHEETS, 1):
        sheet, text = read_sheet(name), text_of(student(read_sheet(name)))
        minutes = sum(int(found) for found in re.findall(r"\*(\d+) minutes, ", text))
        by_hand = sum(q.points for q in sheet.questions if q.manual)
        row = f"| {sheet.title.removeprefix('Sheet ')} | {sheet.points} | {by_hand} | {minutes} |"
        assert row in page, row
        assert row.startswith(f"| {number} ·") and f" {sheet.points} points, " in text


@pytest.mark.parametrize("name", SHEETS)
def test_every_sheet_begins_with_the_setup_cell(name):
    cells = [cell for cell in student(read_sheet(name)).cells if cell.cell_type == "code"]
    assert cells[0].source == setup_cell(), "python tools/setup_cell.py --write"
    assert not any("pip" in cell.source or "otter" in cell.source for cell in cells[1:])


@pytest.mark.parametrize("name", SHEETS)
def test_every_sheet_measures_on_what_is_drawn_for_the_student(name):
    text = "\n".join(c.source for c in student(read_sheet(name)).cells if c.cell_type == "code")
    assert "rs.checks.draw(" in text


def test_what_is_drawn_for_a_student_is_the_same_everywhere_and_another_for_nearly_everybody():
    drawn = rs.checks.draw("Ada  Lovelace")
    assert (drawn.passages, drawn.layers) == (("letter", "dialogue"), (6, 12, 22))
    assert drawn == rs.checks.draw(" ada lovelace ")
    assert len({rs.checks.draw(f"student {number}") for number in range(200)}) > 190
    with pytest.raises(ValueError, match="an empty name"):
        rs.checks.draw("  ")


def test_the_library_holds_no_answer():
    files = [p for p in (ROOT / "lib").rglob("*") if p.suffix in (".py", ".json")]
    text = "\n".join(path.read_text("utf-8") for path in files)
    for name in SHEETS:
        for question, answers in read_attempts(name).right_ones.items():
            for answer in answers:
                assert f"def {answer.__name__}(" not in text or len(answer.__name__) < 6, question


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("given = f(1)", "asserts nothing"),
        ("assert f(1) == 1", "says `given"),
        ("x = f(1)\ngiven = f(x)\nassert given == 1", "used outside"),
        ("given = f(1)\ngiven = f(2)\nassert given == 1", "once"),
    ],
)
def test_a_test_that_would_take_the_answer_inside_is_refused(
    tmp_path, monkeypatch, broken, message
):
    config = '""" # BEGIN TEST CONFIG\nhidden: true\npoints: 1\n""" # END TEST CONFIG\n'
    made = nbformat.v4.new_notebook()
    made.cells = [
        nbformat.v4.new_markdown_cell("# T"),
        nbformat.v4.new_raw_cell("# BEGIN QUESTION\nname: f\npoints: 1"),
        nbformat.v4.new_raw_cell("# BEGIN TESTS"),
        nbformat.v4.new_code_cell(config + broken),
        nbformat.v4.new_raw_cell("# END TESTS"),
        nbformat.v4.new_raw_cell("# END QUESTION"),
    ]
    nbformat.write(made, tmp_path / "t.ipynb")
    monkeypatch.setattr(sheets_module, "ASSIGNMENTS", tmp_path)
    with pytest.raises(SheetError, match=message):
        read_sheet("t")


def test_a_mistake_is_named_only_where_it_is_that_mistake():
    from residual_stream.checks import say, writes

    right = read_attempts("01_bus").right_ones["turn"][0](writes(2))
    assert say("bus", "turn", right).ok
    assert say("bus", "turn", right.numpy()).ok and say("bus", "turn", right.tolist()).ok
    assert say("bus", "turn", right + 1e-5).ok
    assert "factor of 2" in say("bus", "turn", 2 * right).text
    assert "the other sign" in say("bus", "turn", -right).text
    assert "another order" in say("bus", "turn", right.transpose(1, 2)).text
    one = right.clone()
    one[3, 1, 4] += 0.5
    assert not say("bus", "turn", one).ok, "a single wrong entry is seen"
    assert attempts.Mistake(lambda: 1, "x").name


def test_a_check_says_what_was_raised_and_what_may_be_passed():
    found = rs.checks.bus(turn=lambda writes: 1 / 0, swallowed=lambda: None)
    assert not found and "ZeroDivisionError" in str(found) and "TypeError" in str(found)
    with pytest.raises(ValueError, match="pass one of ledger=ledger, turn=turn"):
        rs.checks.bus()
