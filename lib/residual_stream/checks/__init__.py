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

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from .fingerprints import Check, Checks, agree
from .inputs import draw, heads, normal, stack_weights, tokens, writes
from .questions import QUESTIONS, Question, collect, say

__all__ = [
    "QUESTIONS",
    "Check",
    "Checks",
    "Question",
    "agree",
    "attribution",
    "bus",
    "collect",
    "draw",
    "ensembles",
    "heads",
    "norm_growth",
    "normal",
    "probe",
    "say",
    "stack_weights",
    "subspaces",
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


def subspaces(*, louder: Any = None, inside: Any = None, taken_back: Any = None) -> Checks:
    """Check answers of sheet 2, *Subspaces and superposition*; see :func:`bus`."""
    return _check("subspaces", {"louder": louder, "inside": inside, "taken_back": taken_back})


def attribution(*, shares: Any = None, k_composition: Any = None, lost: Any = None) -> Checks:
    """Check answers of sheet 3, *Attribution and composition*; see :func:`bus`."""
    return _check("attribution", {"shares": shares, "k_composition": k_composition, "lost": lost})


def ensembles(*, without: Any = None, by_length: Any = None, where: Any = None) -> Checks:
    """Check answers of sheet 4, *Ensembles and the highway*; see :func:`bus`."""
    return _check("ensembles", {"without": without, "by_length": by_length, "where": where})


def norm_growth(*, ratios: Any = None, laws: Any = None, initialise: Any = None) -> Checks:
    """Check answers of sheet 5, *Norm growth and diagnostics*; see :func:`bus`."""
    return _check("norm_growth", {"ratios": ratios, "laws": laws, "initialise": initialise})


def probe(*, survivors: Any = None, settled: Any = None, last_third: Any = None) -> Checks:
    """Check answers of sheet 6, *The probe*; see :func:`bus`."""
    given = {"survivors": survivors, "settled": settled, "last_third": last_third}
    return _check("probe", given)


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
            with _whole_precision():
                value = collect(sheet, name, answer)
            found.append(say(sheet, name, value))
        except Exception as error:  # whatever a student's function raises is told, not thrown
            text = f"It stopped with {type(error).__name__}: {error}"
            found.append(Check(name, False, text[:500]))
    return Checks(tuple(found))


@contextlib.contextmanager
def _whole_precision() -> Iterator[None]:
    """Let matrix products be of float32 inside, also where TF32 was asked for.

    Tolerances bear float32 of another order of summation, as of CUDA; TF32 drops thirteen bits.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
