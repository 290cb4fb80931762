"""Recording beside the alternatives, in one run: time, memory kept, and the same numbers.

    python benchmarks/record.py

Compared are, on the real model: a bare forward pass with do-nothing hooks at the same points,
`rs.record`, and TransformerLens's `run_with_cache` followed by `decompose_resid`. Printed are
ratios; the fastest of several repeats counts, taken in turn so that a busy machine hits all alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import residual_stream as rs


def timed(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the fastest time of each run in seconds, the runs taken in turn."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    """Measure, check and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    model = rs.load("smollm2-135m")
    tokens = rs.texts.batch(model)
    wiring = rs.read_wiring(model)
    points = [hook for write in wiring.writes for hook in write.hooks]
    points += [boundary.hook for boundary in wiring.boundaries]

    def look(value: torch.Tensor, hook: object) -> None:
        del value, hook

    @torch.no_grad()
    def bare() -> None:
        with model.hooks(fwd_hooks=[(point, look) for point in points]):
            model(tokens, return_type=None)

    @torch.no_grad()
    def with_cache() -> tuple[torch.Tensor, int]:
        _, cache = model.run_with_cache(tokens, return_type=None)
        kept = sum(value.nbytes for value in cache.values() if isinstance(value, torch.Tensor))
        return cache.decompose_resid(), kept

    best = timed({"bare": bare, "record": lambda: rs.record(model, tokens), "cache": with_cache},
                 arguments.repeats)  # fmt: skip
    stream = rs.record(model, tokens)
    theirs, theirs_kept = with_cache()
    assert torch.equal(stream.writes, theirs), "the two ledgers differ"
    ours_kept = stream.writes.nbytes + stream.top.nbytes
    print(f"smollm2-135m, {tokens.shape[0]} × {tokens.shape[1]} tokens, same writes to the bit")
    print(f"time   record / bare forward with hooks       {best['record'] / best['bare']:.2f}")
    print(f"time   record / run_with_cache + decompose    {best['record'] / best['cache']:.2f}")
    print(f"kept   record / the writes alone              {ours_kept / stream.writes.nbytes:.3f}")
    print(f"kept   record / run_with_cache                {ours_kept / theirs_kept:.3f}")


if __name__ == "__main__":
    main()
