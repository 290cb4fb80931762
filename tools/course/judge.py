"""Hold what came back against what is right. Runs in the grader; runs no code of a submission."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

import residual_stream as rs
from residual_stream import checks

from .pool import Answer
from .sheet import Question, Sheet, Test


@dataclass(frozen=True)
class Mark:
    """The outcome of one question.

    Attributes:
        name: The question.
        points: Points given; None where a person gives them.
        out_of: Points there are.
        notes: What a student is told, one line each.
        text: What the student wrote, for questions graded by hand.
    """

    name: str
    points: float | None
    out_of: float
    notes: tuple[str, ...] = ()
    text: str | None = None


def job(sheet: Sheet, cells: list[str], seed: int) -> dict[str, Any]:
    """Return what a submission's process is told: its cells, the inputs, no expected value."""
    asked = [question for question in sheet.questions if not question.manual]
    return {
        "cells": cells,
        "tests": [
            {"key": test.key, "inputs": test.inputs, "given": test.given}
            for question in asked
            for test in question.tests
        ],
        "checks": [[sheet.check, question.name] for question in asked],
        "texts": [question.name for question in sheet.questions if question.manual],
        "closed": list(sheet.closed),
        "seed": seed,
    }


def marks(sheet: Sheet, answer: Answer, seed: int) -> list[Mark]:
    """Return the marks of a submission from the plain data that came back."""
    return [
        _by_hand(question, answer) if question.manual else _mark(sheet, question, answer, seed)
        for question in sheet.questions
    ]


def _by_hand(question: Question, answer: Answer) -> Mark:
    text = answer.values.get(f"text/{question.name}")
    text = text.strip() if isinstance(text, str) else ""
    if not text:
        return Mark(question.name, 0.0, question.points, ("nothing was written",), None)
    return Mark(question.name, None, question.points, ("read by a person",), text)


def _mark(sheet: Sheet, question: Question, answer: Answer, seed: int) -> Mark:
    points, notes = 0.0, []
    for number, test in enumerate(question.tests, 1):
        trouble = _trouble(test, answer.values.get(test.key), seed)
        points += 0.0 if trouble else test.points
        says = "passed" if trouble is None else trouble
        worth = "1 point" if test.points == 1 else f"{test.points:g} points"
        notes.append(f"test {number} of {len(question.tests)} ({worth}): {says}")
    if points < question.points:
        diagnosis = _diagnosis(sheet, question, answer.values.get(f"check/{question.name}"))
        notes += [diagnosis] if diagnosis else []
    return Mark(question.name, points, question.points, tuple(notes))


def _trouble(test: Test, came: Any, seed: int) -> str | None:
    if not isinstance(came, dict) or ("given" not in came and "error" not in came):
        return "no answer"
    if "error" in came:
        return f"failed with {str(came['error'])[:300]}"
    space = {**_inputs(test, seed), "given": came["given"]}
    try:
        exec(compile(test.compare, f"<{test.key}>", "exec"), space)
    except AssertionError as error:
        return f"not right{f': {error}' if str(error) else ''}"
    except Exception:  # of another type or shape than the comparison can take
        return "not right: not of the form that is asked"
    return None


@lru_cache(maxsize=64)
def _inputs(test: Test, seed: int) -> dict[str, Any]:
    space: dict[str, Any] = {"rs": rs, "torch": torch, "SEED": seed}
    exec(compile(test.inputs, f"<inputs of {test.key}>", "exec"), space)
    return space


def _diagnosis(sheet: Sheet, question: Question, came: Any) -> str | None:
    if not isinstance(came, dict) or "given" not in came:
        return None
    return f"self-check: {checks.say(sheet.check, question.name, came['given'])}"
