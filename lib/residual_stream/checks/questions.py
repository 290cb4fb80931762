"""The questions that have a check: what each is run on, and what it is to return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..models import load
from .fingerprints import Check, compare, kept
from .inputs import heads, normal, stack_weights, tokens, writes


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


def _on_bench(answer: Any, *rest: Any, seed: int, batch: int = 2) -> Any:
    model = load("bench")
    return answer(model, tokens(model, seed, batch=batch), *rest)


def _span(seed: int) -> Tensor:
    """Rows that are neither orthogonal nor of one length, two to five of them."""
    return normal(seed, 2 + seed % 4, 10) + 0.7 * normal(seed + 50, 10)


def _readout(seed: int) -> tuple[Tensor, Tensor, Tensor, float, int]:
    # short enough that eps counts
    short = writes(seed) / 50
    return short, normal(seed + 1, 16, 30) + 0.5, normal(seed + 2, 16) + 2, 0.5, 7


def _growth(seed: int) -> Tensor:
    steps = torch.arange(13.0)
    return torch.exp(0.3 * steps + 0.4 * normal(seed, 13))


def _each(values: list[Any]) -> Any:
    if any(value is None or value is ... for value in values):
        return None
    return torch.stack([torch.as_tensor(value) for value in values])


def _initialised(answer: Any, seed: int) -> Any:
    """All weights, in the order of the names, and then those that were given: did they change?"""
    given = stack_weights(seed)
    names, weights = list(given), answer(given, 3)
    if not isinstance(weights, dict):
        return weights
    if weights.keys() != set(names):
        return torch.cat([weight.flatten() for weight in weights.values()])
    both = [weights[name] for name in names] + [given[name] for name in names]
    return torch.cat([weight.flatten() for weight in both])


#: By sheet and by the name that is asked for.
QUESTIONS: dict[str, dict[str, Question]] = {
    "bus": {
        "ledger": Question("[write, batch, pos, d_model]", lambda f: _on_bench(f, seed=1)),
        "turn": Question("[write − 1, batch, pos]", lambda f: f(writes(2))),
        "swallowed": Question("[write − 1]", lambda f: f(writes(3)), tolerance=1e-4),
        "push": Question("[batch, pos − 1]", lambda f: _on_bench(f, 1, 0.1, seed=4)),
    },
    "subspaces": {
        "louder": Question("[batch]", lambda f: f(normal(1, 9, 12), 2 * normal(2, 9, 12), 0.3)),
        "inside": Question(
            "a number for each pair [a, b]",
            lambda f: _each([f(_span(k), _span(k + 9)) for k in range(4)]),
        ),
        "taken_back": Question("[write − 1, batch, pos]", lambda f: f(writes(3))),
    },
    "attribution": {
        "shares": Question("[write, batch, pos]", lambda f: f(*_readout(4))),
        "k_composition": Question("[writer, reader]", lambda f: f(heads(5, 3), heads(6, 4))),
        "lost": Question("[batch, pos − 1]", lambda f: _on_bench(f, 2, 1, seed=7), tolerance=5e-3),
    },
    "ensembles": {
        "without": Question("[layer]", lambda f: _on_bench(f, seed=8), tolerance=5e-3),
        "by_length": Question("[length, d, d]", lambda f: f(0.5 * normal(9, 4, 3, 3))),
        "where": Question("[pos]", lambda f: _on_bench(f, 1, seed=10), tolerance=5e-3),
    },
    "norm_growth": {
        "ratios": Question("[layer]", lambda f: f(writes(11, (9, 3, 7, 16)))),
        "laws": Question("[3]", lambda f: f(_growth(12))),
        "initialise": Question("all weights, and those given", lambda f: _initialised(f, 13)),
    },
    "probe": {
        "survivors": Question("[batch]", lambda f: _on_bench(f, seed=14, batch=8), tolerance=1e-4),
        "settled": Question("[batch]", lambda f: _on_bench(f, seed=15, batch=8), tolerance=1e-4),
        # Tight: the mean over the width, which the norm takes out, is a small part of a write.
        "last_third": Question(
            "[batch]", lambda f: _on_bench(f, seed=16, batch=16), tolerance=1e-4
        ),
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
