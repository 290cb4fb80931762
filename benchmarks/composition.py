"""Composition scores beside TransformerLens's, with the same numbers checked in the same run.

    python benchmarks/composition.py

TransformerLens's `all_composition_scores` runs on the 4-layer bench model here, where its scores
must equal ours; on the real model it is tried in a process of its own whose memory is capped, so
that it fails there and not on your machine. Memory is the peak above what was held before, read
from the kernel (Linux only).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import subprocess
import sys
import time
from pathlib import Path

import torch

import residual_stream as rs

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

_TRY = """
import resource, sys, time
limit = int(float(sys.argv[1]) * 2**30)
import torch, residual_stream as rs
model = rs.load("smollm2-135m")
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
start = time.perf_counter()
with torch.no_grad():
    model.all_composition_scores("K")
print(f"finished in {time.perf_counter() - start:.1f} s")
"""


def _kib(field: str) -> int:
    line = next(row for row in _STATUS.read_text().splitlines() if row.startswith(field))
    return int(line.split()[1])


@torch.no_grad()
def main() -> None:
    """Measure, check and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cap", type=float, default=4.0, help="GiB for TransformerLens's try")
    arguments = parser.parse_args()
    bench = rs.load("bench")
    for kind in "QKV":
        theirs = bench.all_composition_scores(kind).scores
        error = float((rs.composition_scores(bench, kind) - theirs).abs().max())
        assert error <= 1e-6, f"{kind}: the two differ by {error}"
        print(f"bench, {kind}: equal to TransformerLens's to {error:.0e}")
    model = rs.load("smollm2-135m")
    for kind in "QKV":
        gc.collect()
        before = peak = float("nan")
        if _CLEAR.exists():
            ctypes.CDLL(None).malloc_trim(0)  # so that freed memory is not reused unseen
            _CLEAR.write_text("5")  # resets the peak
            before = _kib("VmRSS")
        start, busy = time.perf_counter(), time.process_time()
        scores = rs.composition_scores(model, kind)
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        if _CLEAR.exists():
            peak = (_kib("VmHWM") - before) / 1024
        pairs = int(rs.composes(scores).expand_as(scores).sum())
        print(
            f"smollm2-135m, {kind}: {pairs} pairs in {seconds:.1f} s ({busy:.1f} s of "
            f"processor time), {peak:.0f} MiB extra"
        )
    if sys.platform != "linux":
        print("TransformerLens on smollm2-135m: not tried; the cap needs Linux")
        return
    run = subprocess.run(
        [sys.executable, "-c", _TRY, str(arguments.cap)],
        capture_output=True,
        text=True,
        check=False,
    )
    last = (run.stdout if run.returncode == 0 else run.stderr).strip().splitlines()[-1]
    print(f"TransformerLens on smollm2-135m with {arguments.cap:g} GiB: {last[:160]}")


if __name__ == "__main__":
    main()
