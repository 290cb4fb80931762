"""What the monitor costs in a training loop, beside the same loop without it, in one run.

    python benchmarks/monitor.py

Two copies of the bench model learn from the same batches in turn, step by step, one with a
`StreamMonitor` at its defaults and one alone, so that a busy machine hits both alike. Time is the
processor's, over all threads. Printed are the cost of a sampled step, of one between samples, and
of the whole at the default distance of samples, each over a bare step; and that both copies end
with the same weights to the bit.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
import transformers

import residual_stream as rs
from residual_stream.training import token_losses


def main() -> None:
    """Measure, check and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=16, help="windows in a batch")
    arguments = parser.parse_args()
    # the bench model as it was trained: Hugging Face's own class, outside any bridge
    config = rs.load("bench", device="cpu").original_model.config
    torch.manual_seed(0)
    alone = transformers.GPT2LMHeadModel(config)
    watched = copy.deepcopy(alone)
    optimisers = {m: torch.optim.AdamW(m.parameters(), lr=1e-4) for m in (alone, watched)}
    monitor = rs.StreamMonitor(watched)
    n_vocab, length = alone.config.vocab_size, alone.config.n_positions

    def step(model: torch.nn.Module, tokens: torch.Tensor, after: Callable[[], None]) -> float:
        start = time.process_time()
        optimisers[model].zero_grad()
        token_losses(model(tokens).logits, tokens).mean().backward()
        optimisers[model].step()
        after()
        return time.process_time() - start

    bare, sampled, between = [], [], []
    for number in range(1, arguments.steps + 1):
        tokens = torch.randint(n_vocab, (arguments.rows, length))
        pair = [(alone, lambda: None), (watched, monitor.step)]
        times = {}
        for model, after in pair if number % 2 else reversed(pair):
            times[model] = step(model, tokens, after)
        if number == 1:
            continue  # the first step finds the writes, once
        bare.append(times[alone])
        (sampled if number % monitor.every == 0 else between).append(times[watched])
    monitor.remove()
    for a, b in zip(alone.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b), "the monitor changed the training"
    base = statistics.median(bare)
    rest, sample = statistics.median(between), statistics.median(sampled)
    whole = (sample + (monitor.every - 1) * rest) / monitor.every
    shown = {"a sampled step": sample, "a step between": rest, "all together": whole}
    print(f"bare step: {1000 * base:.1f} ms of processor time, {arguments.rows} × {length} tokens")
    for name, value in shown.items():
        print(f"{name:<16} {100 * (value / base - 1):+6.2f} %")
    print(f"{monitor!r}; the weights of both copies are equal to the bit")


if __name__ == "__main__":
    main()
