"""Attribution beside TransformerLens's own functions, in one run, with the same numbers checked.

    python benchmarks/attribution.py

Every head and every neuron of the real model is projected onto one target per position. Timed is
what follows the forward pass that both sides need first (recording here, `run_with_cache` there);
`logit_attribution` runs the model a second time inside its own time. Time is the processor's, over
all threads, so that a busy machine does not count. Memory is the peak above what was held before,
read from the kernel (Linux only). TransformerLens's neurons are tried three ways:

    stack     stack_neuron_results, then the projection: every neuron's write is built;
    project   stack_neuron_results(project_output_onto=the targets), then each position's own;
    loop      the same, one position at a time with its own target.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path

import torch

import residual_stream as rs
from residual_stream.readout import read_readout

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _kib(field: str) -> int:
    line = next(row for row in _STATUS.read_text().splitlines() if row.startswith(field))
    return int(line.split()[1])


def measured(run: Callable[[], torch.Tensor], repeats: int) -> tuple[float, float, torch.Tensor]:
    """Return the fastest time in seconds, the peak of extra memory in MiB, and the result."""
    run()  # warm
    best, peak = float("inf"), float("nan")
    for _ in range(repeats):
        gc.collect()
        if _CLEAR.exists():
            ctypes.CDLL(None).malloc_trim(0)  # so that freed memory is not reused unseen
            _CLEAR.write_text("5")  # resets the peak
            before = _kib("VmRSS")
        start = time.process_time()
        result = run()
        best = min(best, time.process_time() - start)
        if _CLEAR.exists():
            extra = (_kib("VmHWM") - before) / 1024
            peak = extra if peak != peak else min(peak, extra)
    return best, peak, result


def report(name: str, ours: tuple, theirs: tuple, atol: float) -> None:
    """Check that both sides hold the same numbers and print the ratios."""
    error = float((ours[2] - theirs[2]).abs().max())
    assert error <= atol, f"{name}: the two sides differ by {error}"
    print(
        f"{name:<34} {theirs[0] / ours[0]:7.1f} × the time, {theirs[1] / ours[1]:7.1f} × the extra "
        f"memory  (ours {ours[0]:.2f} s, {ours[1]:.0f} MiB; theirs {theirs[0]:.2f} s, "
        f"{theirs[1]:.0f} MiB; largest difference {error:.0e})"
    )


@torch.no_grad()
def main() -> None:
    """Measure, check and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--stack-positions", type=int, default=16, help="positions for `stack`")
    arguments = parser.parse_args()
    model = rs.load("smollm2-135m")
    tokens = rs.texts.batch(model)[:1]
    targets = torch.cat([tokens[:, 1:], tokens[:, :1]], dim=1)  # one target per position
    stream = rs.record(model, tokens)
    names = [f"blocks.{i}.{h}" for i in range(len(model.blocks))
             for h in ("mlp.hook_post", "attn.hook_z", "hook_out")]  # fmt: skip
    _, cache = model.run_with_cache(tokens, names_filter=[*names, "ln_final.hook_scale"])
    readout = read_readout(model)
    d = readout.direction(targets).float()[0]  # [pos, d_model]
    sigma = readout.sigma(stream.top).float()[0]  # [pos]
    n_pos, few = tokens.shape[1], arguments.stack_positions

    def ours(unit: str, count: int) -> torch.Tensor:
        split = rs.logit_attribution(
            stream, targets[:, :count], unit=unit, position=slice(0, count)
        )
        rows = torch.tensor([kind == unit for kind in split.kinds])
        return split.values[rows][:, 0]

    def project() -> torch.Tensor:
        stack = cache.stack_neuron_results(-1, project_output_onto=d.T)  # [neuron, b, pos, target]
        return torch.diagonal(stack[:, 0], dim1=1, dim2=2) / sigma

    def loop() -> torch.Tensor:
        found = [cache.stack_neuron_results(-1, pos_slice=p, project_output_onto=d[p])[:, 0]
                 for p in range(n_pos)]  # fmt: skip
        return torch.stack(found, dim=1) / sigma

    def stack() -> torch.Tensor:
        writes = cache.stack_neuron_results(-1, pos_slice=(0, few))[:, 0]  # [neuron, pos, d_model]
        return torch.einsum("npd,pd->np", writes, d[:few]) / sigma[:few]

    def heads() -> torch.Tensor:
        for layer in range(len(model.blocks)):  # computed anew each time, as on a fresh cache
            cache.cache_dict.pop(f"blocks.{layer}.attn.hook_result", None)
        writes = cache.stack_head_results(-1)  # [head, b, pos, d_model]
        cache.logit_attrs(writes, targets)  # timed; on raw weights it omits the norm's gain
        return torch.einsum("hpd,pd->hp", writes[:, 0], d) / sigma

    repeats = arguments.repeats
    print(f"smollm2-135m, {n_pos} positions with a target each; TransformerLens over ours:")
    neurons = measured(lambda: ours("neuron", n_pos), repeats)
    report("46,080 neurons, project", neurons, measured(project, repeats), 1e-3)
    report("46,080 neurons, loop", neurons, measured(loop, repeats), 1e-3)
    report(
        f"46,080 neurons, stack ({few} positions)",
        measured(lambda: ours("neuron", few), repeats),
        measured(stack, 1),
        1e-3,
    )
    report(
        "270 heads", measured(lambda: ours("head", n_pos), repeats), measured(heads, repeats), 1e-3
    )
    raw = cache.logit_attrs(cache.stack_head_results(-1), targets)[:, 0].sum(0)
    true = rs.logit_attribution(stream, targets, unit="head", position=None, center=False)
    sums = true.values[torch.tensor([k == "head" for k in true.kinds])][:, 0].sum(0)
    print(
        f"logit_attrs on raw weights: median head sum {float(raw.median()):.2f} where the heads' "
        f"exact sum is {float(sums.median()):.2f} (it leaves the final norm's gain out)"
    )


if __name__ == "__main__":
    main()
