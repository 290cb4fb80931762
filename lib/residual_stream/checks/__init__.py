"""What students call to see where they stand: one plain function per sheet, no grader installed.

    >>> import residual_stream as rs
    >>> def turn(writes):
    ...     return writes[1:].sum(-1)
    >>> rs.checks.bus(turn=turn)
    turn: not right. Its shape is as asked, and its values are none of the usual mistakes.

A check runs your function on inputs of its own and compares the fingerprint of what comes back with
the fingerprints of the right answer and of answers that people really give; see
:mod:`residual_stream.checks.fingerprints`. Right answers are not in here.
Grading uses other inputs.
"""

from __future__ import annotations

from typing import Any

from .fingerprints import Check, Checks, agree
from .inputs import draw, tokens, writes
from .questions import QUESTIONS, Question, collect, say

__all__ = [
    "QUESTIONS",
    "Check",
    "Checks",
    "Question",
    "agree",
    "bus",
    "collect",
    "draw",
    "say",
    "tokens",
    "writes",
]


def bus(*, ledger: Any = None, turn: Any = None, swallowed: Any = None, push: Any = None) -> Checks:
    """Check answers of sheet 1, *The bus*: pass the functions that you have written.

    Args:
        ledger: Question 1.
        turn: Question 2.
        swallowed: Question 3.
        push: Question 4.

    Returns:
        One finding per function that was passed; true if all are right.

    Example:
        >>> import torch
        >>> print(bus(swallowed=lambda writes: torch.zeros(3)))
        swallowed: not right. It has shape [3]; asked is [write − 1], here [7].
    """
    given = {"ledger": ledger, "turn": turn, "swallowed": swallowed, "push": push}
    return _check("bus", given)


def _check(sheet: str, given: dict[str, Any]) -> Checks:
    passed = {name: answer for name, answer in given.items() if answer is not None}
    if not passed:
        raise ValueError(
            f"checks.{sheet}: nothing to check; pass one of "
            + ", ".join(f"{name}={name}" for name in given)
        )
    found = []
    for name, answer in passed.items():
        try:
            found.append(say(sheet, name, collect(sheet, name, answer)))
        except Exception as error:  # whatever a student's function raises is told, not thrown
            text = f"It stopped with {type(error).__name__}: {error}"
            found.append(Check(name, False, text[:500]))
    return Checks(tuple(found))
