"""The questions that have a check: what each is run on, and what it is to return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..models import load
from .fingerprints import Check, compare, kept
from .inputs import tokens, writes


@dataclass(frozen=True)
class Question:
    """One question of a sheet.

    Attributes:
        asks: The shape that is asked, in words.
        run: Calls an answer on the check's inputs.
        tolerance: How far an answer's fingerprint may be from the right one.
    """

    asks: str
    run: Callable[[Any], Any]
    tolerance: float = 2e-3


def _on_bench(answer: Any, *rest: Any, seed: int) -> Any:
    model = load("bench")
    return answer(model, tokens(model, seed), *rest)


#: By sheet and by the name that is asked for.
QUESTIONS: dict[str, dict[str, Question]] = {
    "bus": {
        "ledger": Question("[write, batch, pos, d_model]", lambda f: _on_bench(f, seed=1)),
        "turn": Question("[write − 1, batch, pos]", lambda f: f(writes(2))),
        "swallowed": Question("[write − 1]", lambda f: f(writes(3)), tolerance=1e-4),
        "push": Question("[batch, pos − 1]", lambda f: _on_bench(f, 1, 0.1, seed=4)),
    },
}


def _question(sheet: str, name: str) -> Question:
    if sheet not in QUESTIONS or name not in QUESTIONS[sheet]:
        known = ", ".join(f"{s}.{n}" for s, names in QUESTIONS.items() for n in names)
        raise ValueError(f"checks: no question {sheet}.{name}; there are {known}")
    return QUESTIONS[sheet][name]


def collect(sheet: str, name: str, answer: Any) -> Any:
    """Return what an answer gives on the check's inputs; raises what it raises."""
    return _question(sheet, name).run(answer)


def say(sheet: str, name: str, value: Any) -> Check:
    """Return what the check says about a value that :func:`collect` returned."""
    question = _question(sheet, name)
    return compare(name, value, kept(sheet)[name], question.asks, question.tolerance)
