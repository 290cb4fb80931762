"""Train the small stacks of chapter 5 and store what was measured.

    python tools/train_variants.py cures     # eight variants, three depths, four learning rates
    python tools/train_variants.py warmups   # post-LN again, with half of the run as warm-up
    python tools/train_variants.py widths    # one budget of weights, deep and narrow or wide
    python tools/train_variants.py longer    # the narrow stacks on `repeats`, four times as long

About four CPU minutes each, half a minute for the second, two for the last. The numbers hold on
one type of machine with one torch version; both stand in the file. Elsewhere the sums round
differently, and a run ends close by.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import replace
from itertools import product

import torch

from residual_stream.runs import RUNS, Setting, run

VARIANTS = ("pre-LN", "GPT-2", "post-LN", "DeepNorm", "LayerScale", "ReZero", "Fixup", "residual")
#: Width and depth: the first three have one number of weights in their blocks, 12 d² L; the last
#: two are as narrow as the deepest, and shallower.
SHAPES = ((48, 2), (24, 8), (12, 32), (12, 8), (12, 2))


def cures() -> list[Setting]:
    """The grid of variants, depths and learning rates."""
    return [
        Setting(
            task="lookup", variant=variant, n_layers=depth, d_model=32, rate=rate, steps=150,
            warmup=10,
        )
        for variant, depth, rate in product(VARIANTS, (2, 8, 24), (1e-3, 3e-3, 1e-2, 3e-2))
    ]  # fmt: skip


def warmups() -> list[Setting]:
    """The post-LN runs of `cures` at the two larger depths, with a long warm-up."""
    chosen = [one for one in cures() if one.variant == "post-LN" and one.n_layers > 2]
    return [replace(one, warmup=75) for one in chosen]


def widths() -> list[Setting]:
    """The shapes, on two tasks, at two learning rates and from two seeds."""
    return [
        Setting(
            task=task, variant="GPT-2", n_layers=depth, d_model=width, rate=rate, steps=400,
            warmup=20, seed=seed,
        )
        for task, (width, depth), rate, seed in product(
            ("lookup", "repeats"), SHAPES, (3e-3, 1e-2), (0, 1)
        )
    ]  # fmt: skip


def longer() -> list[Setting]:
    """The narrow shapes of `widths` on the task that they did not learn; the deepest from one seed.

    Whether a stream of this width can carry the task at all.
    """
    return [
        Setting(
            task="repeats", variant="GPT-2", n_layers=depth, d_model=12, rate=1e-2, steps=1600,
            warmup=20, seed=seed,
        )
        for depth, seed in ((2, 0), (2, 1), (8, 0), (8, 1), (32, 1))
    ]  # fmt: skip


GRIDS = {"cures": cures, "warmups": warmups, "widths": widths, "longer": longer}


def build(name: str) -> None:
    """Run a grid and write its file."""
    began = time.process_time()
    runs = []
    for setting in GRIDS[name]():
        runs.append(run(setting))
        one = runs[-1]
        print(
            f"{setting.task} {setting.variant} {setting.n_layers}×{setting.d_model} "
            f"{setting.rate:g} seed {setting.seed}: {one['last']}, growth {one['growth_start']} "
            f"to {one['growth_end']}",
            flush=True,
        )
    facts = {
        "command": f"python tools/train_variants.py {name}",
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpu_minutes": round((time.process_time() - began) / 60, 1),
        "loss_unit": "nats per token, mean of ten steps",
    }
    rows = ",\n  ".join(json.dumps(one) for one in runs)
    head = json.dumps(facts, indent=1).rstrip("}\n")
    RUNS.mkdir(parents=True, exist_ok=True)
    (RUNS / f"{name}.json").write_text(f'{head},\n "runs": [\n  {rows}\n ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("grid", choices=list(GRIDS))
    build(parser.parse_args().grid)
