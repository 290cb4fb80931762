"""Training runs that are too long for a page, as they were measured; and how to run one again.

``tools/train_variants.py`` writes the files, one run after another with :func:`run`; the tests run
a sample again and compare.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from .tasks import Task, lookup, repeats
from .training import Recipe, reproducible, train

RUNS = Path(__file__).parent / "data" / "runs"
TASKS = {"lookup": lookup, "repeats": repeats}
#: Steps whose losses are averaged to one stored value.
STRIDE = 10


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One training run before it is run.

    Attributes:
        task: ``"lookup"`` or ``"repeats"``.
        variant: A name of ``connections.VARIANTS``.
        n_layers: Blocks.
        d_model: Width of the stream.
        rate: Highest learning rate.
        steps: Optimiser steps, of 16 texts each.
        warmup: Steps over which the rate rises.
        seed: Seed of the weights; the texts have it plus one.
    """

    task: str
    variant: str
    n_layers: int
    d_model: int
    rate: float
    steps: int
    warmup: int
    seed: int = 0


def run(setting: Setting) -> dict[str, Any]:
    """Train one stack and return what is stored of it.

    Args:
        setting: The run.

    Returns:
        The setting; ``parameters``, the number of weights; ``losses``, in nats per token, the mean
        of every ten steps; ``last``, the last of them, or None if the run did not end;
        ``diverged``, the step at which loss or gradient was no longer finite, or None;
        ``growth_start`` and ``growth_end``, the median length of the stream at the top over that
        below the first block, position 0 left out; ``scales``, the branches' learned factors where
        they have one each.
    """
    # Imported here: it brings TransformerLens along, which takes seconds.
    from .blocks import Stack, StackConfig

    task = TASKS[setting.task]()
    recipe = Recipe(
        steps=setting.steps, batch=16, peak=setting.rate, warmup=setting.warmup, seed=setting.seed
    )
    with reproducible(seed=setting.seed, threads=1):
        model = Stack(
            StackConfig(
                variant=setting.variant, n_layers=setting.n_layers, d_model=setting.d_model,
                d_vocab=task.d_vocab, n_ctx=task.length, seed=setting.seed,
            )
        )  # fmt: skip
        start, losses, diverged = _growth(model, task), [], None
        try:
            for step in train(model, task.batches(16, seed=setting.seed + 1), recipe):
                losses.append(step.loss)
        except FloatingPointError:
            diverged = len(losses) + 1
        means = [
            round(sum(losses[i : i + STRIDE]) / STRIDE, 4)
            for i in range(0, len(losses) - STRIDE + 1, STRIDE)
        ]
        return asdict(setting) | {
            "parameters": sum(p.numel() for p in model.parameters()),
            "losses": means,
            "last": None if diverged else means[-1],
            "diverged": diverged,
            "growth_start": start,
            "growth_end": None if diverged else _growth(model, task),
            "scales": _scales(model),
        }


def _growth(model: Any, task: Task) -> float:
    texts = next(task.batches(8, seed=12345))
    _, cache = model.run_with_cache(texts, names_filter=["blocks.0.hook_in", "ln_final.hook_in"])
    bottom, top = (value.detach()[:, 1:].norm(dim=-1) for value in cache.values())
    return float(f"{(top / bottom).median().item():.4g}")


def _scales(model: Any) -> list[float] | None:
    found = [p for name, p in model.named_parameters() if name.endswith("connection.scale")]
    if not found or found[0].ndim:
        return None
    return [float(f"{p.item():.4g}") for p in found]


def stored(name: str) -> pd.DataFrame:
    """Return stored runs, one a row, with the columns of :func:`run`.

    Args:
        name: ``"cures"``, ``"warmups"``, ``"widths"`` or ``"longer"``.

    Raises:
        ValueError: No such runs are stored.

    Example:
        >>> sorted(stored("widths").task.unique())
        ['lookup', 'repeats']
    """
    return pd.DataFrame(read(name)["runs"])


def read(name: str) -> dict[str, Any]:
    """Return a stored file whole: the command that makes it, versions, and ``runs``.

    Args:
        name: As in :func:`stored`.

    Raises:
        ValueError: No such runs are stored.
    """
    path = RUNS / f"{name}.json"
    if not path.is_file():
        listed = sorted(p.stem for p in RUNS.glob("*.json"))
        raise ValueError(f"runs.stored: no runs called {name!r}; there are {listed}")
    return json.loads(path.read_text(encoding="utf-8"))


def setting_of(row: Any, **changes: Any) -> Setting:
    """Return the setting of a stored run, to run it again, with changes.

    Args:
        row: One row of :func:`stored`, or one of ``read(name)["runs"]``.
        changes: Fields of :class:`Setting` to replace.
    """
    names = Setting.__dataclass_fields__
    kinds = {"task": str, "variant": str, "rate": float}
    return replace(Setting(**{n: kinds.get(n, int)(row[n]) for n in names}), **changes)
