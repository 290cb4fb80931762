"""Toy models of superposition: one batched training against a loop over single models.

    python benchmarks/superposition.py

The loop is what one writes first: an `nn.Module` a model, `torch.optim.Adam`, a step at a time.
Both draw the same numbers from the same seeds. The run checks that they end at the same weights,
prints the times of this one run, and exits with an error if the batch is not ten times faster.
Rounds of both alternate, so that whatever else the machine does hits both.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from torch import Tensor, nn

from residual_stream.superposition import ToyRecipe, draw_features, train_toys

ROUNDS = 4


class ToyModel(nn.Module):
    """One toy model, written for one."""

    def __init__(self, features: int, hidden: int, generator: torch.Generator) -> None:
        """Draw the start from ``generator``."""
        super().__init__()
        start = torch.randn(hidden, features, generator=generator) / features**0.5
        self.W = nn.Parameter(start)
        self.b = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        """Squeeze ``[feature, sample]`` through the hidden space and read it out."""
        return torch.relu(self.W.T @ (self.W @ x) + self.b[:, None])


def train_one(
    features: int, hidden: int, sparsity: float, importance: Tensor, seed: int, recipe: ToyRecipe
) -> ToyModel:
    """Train a single toy model, step by step."""
    generator = torch.Generator().manual_seed(seed)
    model = ToyModel(features, hidden, generator)
    optimiser = torch.optim.Adam(model.parameters(), lr=recipe.rate)
    shape = {"steps": recipe.block(features), "features": features, "batch": recipe.batch}
    step = 0
    while step < recipe.steps:
        for x in draw_features(generator, sparsity=sparsity, **shape)[: recipe.steps - step]:
            optimiser.param_groups[0]["lr"] = recipe.rate * (1 - step / recipe.steps)
            optimiser.zero_grad()
            ((x - model(x)).square() * importance[:, None]).mean().backward()
            optimiser.step()
            step += 1
    return model


def main() -> int:
    """Time both, compare them, print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=64)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--features", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    recipe = ToyRecipe(steps=options.steps)
    sparsity = torch.linspace(0, 0.95, options.instances)
    importance = 0.9 ** torch.arange(options.features)
    shape = {"features": options.features, "hidden": options.hidden}

    train_toys(**shape, sparsity=[0.5], recipe=ToyRecipe(steps=20), device=options.device)
    batched_seconds, loop_seconds, singles = [], 0.0, []
    for part in torch.arange(options.instances).chunk(ROUNDS):
        start = time.perf_counter()
        batched = train_toys(
            **shape, sparsity=sparsity, importance=0.9, recipe=recipe, device=options.device
        )
        W = batched.W.cpu()  # waits for the device
        batched_seconds.append(time.perf_counter() - start)

        start = time.perf_counter()
        singles += [
            train_one(*shape.values(), float(sparsity[seed]), importance, seed, recipe)
            for seed in part.tolist()
        ]
        loop_seconds += time.perf_counter() - start

    loop_W = torch.stack([model.W.detach() for model in singles])
    difference = float((W - loop_W).abs().max())
    batched_mean = sum(batched_seconds) / len(batched_seconds)
    ratio = loop_seconds / batched_mean
    print(
        f"{options.instances} models, {options.steps} steps each, {torch.get_num_threads()} threads"
    )
    print(f"loop on the CPU          {loop_seconds:8.2f} s")
    print(f"batched on {options.device:<12}  {batched_mean:8.2f} s (mean of {ROUNDS})")
    print(f"ratio                    {ratio:8.1f}")
    print(f"largest weight difference {difference:.1e} (allowed 1e-4)")
    return 0 if difference <= 1e-4 and ratio >= 10 else 1


if __name__ == "__main__":
    sys.exit(main())
