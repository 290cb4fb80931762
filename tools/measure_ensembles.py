"""Make the stored measurements of chapter 4 again.

    python tools/measure_ensembles.py deletion   (some four minutes on one core)
    python tools/measure_ensembles.py training   (some four minutes on one core)

Writes `lib/residual_stream/data/measured/ensembles_*.json`. tests/test_measured.py recomputes a
sample of each file.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

import residual_stream as rs
from residual_stream.stored import FOLDER
from residual_stream.teacher import train_on_teacher

LENGTH = 32
SIZES, DRAWS = (2, 4, 6, 8, 12, 16), 5
SPARED = 6  # the layers of largest cost, left in by the second kind of random set
VARIANTS = ("plain", "plain, LN", "residual, pre-LN", "highway, LN")
DEPTHS, SEEDS, STEPS = (2, 8, 20, 56), (0, 1, 2), 300


def swap_orders(n_layers: int) -> list[list[int]]:
    """Every order in which two neighbouring layers are exchanged."""
    orders = []
    for layer in range(n_layers - 1):
        order = list(range(n_layers))
        order[layer], order[layer + 1] = order[layer + 1], order[layer]
        orders.append(order)
    return orders


def random_orders(n_layers: int, size: int, draws: int, *, among: list[int]) -> list[list[int]]:
    """Orders that lack ``size`` random layers of ``among``."""
    generator = torch.Generator().manual_seed(size)
    orders = []
    for _ in range(draws):
        gone = {among[i] for i in torch.randperm(len(among), generator=generator)[:size].tolist()}
        orders.append([layer for layer in range(n_layers) if layer not in gone])
    return orders


def numbers(runs: rs.Departure) -> dict[str, list[float]]:
    """The three measures, rounded to what another machine gives as well."""
    return {
        "top1_kept": [round(x, 4) for x in runs.top1_kept.tolist()],
        "kl": [round(x, 4) for x in runs.kl.tolist()],
        "loss_change": [round(x, 4) for x in runs.loss_change.tolist()],
    }


def deletion(model: Any, tokens: torch.Tensor) -> dict[str, Any]:
    """Delete every layer, attention and MLP; swap neighbours; delete growing random sets."""
    found: dict[str, Any] = {"passages": len(tokens), "length": tokens.shape[1]}
    for what in ("layer", "attn", "mlp"):
        found[what] = numbers(rs.delete_layers(model, tokens, what=what))
    n_layers = len(model.blocks)
    found["swap"] = numbers(rs.reorder_layers(model, tokens, swap_orders(n_layers)))
    everyone = list(range(n_layers))
    spared = sorted(everyone, key=lambda layer: found["layer"]["kl"][layer])[:-SPARED]
    found["sizes"], found["spared"] = list(SIZES), sorted(set(everyone) - set(spared))
    for name, among in (("any", everyone), ("spared", spared)):
        kept = [
            rs.reorder_layers(
                model, tokens[:4], random_orders(n_layers, size, DRAWS, among=among)
            ).top1_kept.tolist()
            for size in SIZES
        ]
        found[f"random_{name}"] = [[round(x, 4) for x in row] for row in kept]
    return found


def training() -> dict[str, Any]:
    """Train every variant at every depth from every seed."""
    loss = {
        variant: [
            [round(train_on_teacher(variant, depth, seed=seed, steps=STEPS).final_loss, 4)
             for seed in SEEDS]
            for depth in DEPTHS
        ]
        for variant in VARIANTS
    }  # fmt: skip
    return {"depths": list(DEPTHS), "seeds": list(SEEDS), "steps": STEPS, "loss": loss}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("deletion", "training"))
    what = parser.parse_args().what
    torch.set_num_threads(1)
    if what == "deletion":
        model = rs.load("smollm2-135m", device="cpu")
        found = deletion(model, rs.texts.batch(model, length=LENGTH))
    else:
        found = training()
    found["command"] = f"python tools/measure_ensembles.py {what}"
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"ensembles_{what}.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
