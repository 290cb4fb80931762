"""Answers to a sheet that are right, and answers that are wrong as people are wrong.

They stand in `assignments/attempts/SHEET.py`. They test the graders (every right one passes every
hidden test, every wrong one fails one), and the self-check knows the mistakes from them: their
fingerprints are written into the library, the answers are not.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from residual_stream.checks import QUESTIONS, collect
from residual_stream.checks.fingerprints import describe, describe_mistake, to_numbers

from .sheet import ASSIGNMENTS, ROOT, Sheet, Test

Answer = TypeVar("Answer", bound=Callable[..., Any])
KEPT = ROOT / "lib" / "residual_stream" / "data" / "checks"


@dataclass(frozen=True)
class Mistake:
    """A wrong answer, and what a student who gives it is told."""

    answer: Callable[..., Any]
    says: str
    page: str = ""

    @property
    def name(self) -> str:
        """The mistake in short: the function's name."""
        return self.answer.__name__.replace("_", " ").strip()


@dataclass
class Attempts:
    """The answers to one sheet, by question; filled by its decorators."""

    right_ones: dict[str, list[Callable[..., Any]]] = field(default_factory=dict)
    wrong_ones: dict[str, list[Mistake]] = field(default_factory=dict)

    def right(self, question: str) -> Callable[[Answer], Answer]:
        """Mark a function as a right answer."""

        def keep(answer: Answer) -> Answer:
            self.right_ones.setdefault(question, []).append(answer)
            return answer

        return keep

    def wrong(self, question: str, says: str, page: str = "") -> Callable[[Answer], Answer]:
        """Mark a function as a wrong answer, with what to say about it and the page that helps."""

        def keep(answer: Answer) -> Answer:
            self.wrong_ones.setdefault(question, []).append(Mistake(answer, says, page))
            return answer

        return keep


def read_attempts(sheet: str) -> Attempts:
    """Return the attempts at a sheet."""
    return runpy.run_path(str(ASSIGNMENTS / "attempts" / f"{sheet}.py"))["attempts"]


def passes(test: Test, question: str, answer: Callable[..., Any], seed: int) -> bool:
    """Return whether an answer passes a hidden test; in this process, so for our own answers."""
    import torch

    import residual_stream as rs

    space: dict[str, Any] = {"rs": rs, "torch": torch, "SEED": seed}
    exec(compile(test.inputs, "<inputs>", "exec"), space)
    beside = {**space, question: answer}
    try:
        exec(compile(test.given, "<given>", "exec"), beside)
        exec(compile(test.compare, "<compare>", "exec"), {**space, "given": beside["given"]})
    except Exception:
        return False
    return True


def fingerprints(sheet: Sheet) -> dict[str, Any]:
    """Return what the library keeps for the self-check of a sheet."""
    attempts = read_attempts(sheet.name)
    kept = {}
    for name in QUESTIONS[sheet.check]:
        right = to_numbers(collect(sheet.check, name, attempts.right_ones[name][0]))
        kept[name] = describe(right) | {"mistakes": []}
        for mistake in attempts.wrong_ones[name]:
            try:
                value = to_numbers(collect(sheet.check, name, mistake.answer))
            except Exception:  # a mistake that stops with an error names itself
                continue
            if value is not None:
                entry = {"name": mistake.name, "says": mistake.says, "page": mistake.page}
                entry |= describe_mistake(value, kept[name]["scale"])
                kept[name]["mistakes"].append(entry)
    return kept


def write_fingerprints(sheet: Sheet) -> None:
    """Write them into the library."""
    KEPT.mkdir(parents=True, exist_ok=True)
    text = json.dumps(fingerprints(sheet), ensure_ascii=False, indent=1)
    (KEPT / f"{sheet.check}.json").write_text(text + "\n", encoding="utf-8")
