"""Composition scores beside TransformerLens's, with the same numbers checked in the same run.

    python benchmarks/composition.py [--cap GiB]

TransformerLens's `all_composition_scores` runs on the 4-layer bench model here, where its scores
must equal ours. On the real model it multiplies every head's 64 × 576 factor with every head's
576 × 64 one as a broadcast product, for which PyTorch first writes out both factors once for each
pair. What that takes is computed from the sizes, and then tried in a process of its own whose
memory is capped (4 GiB unless told otherwise), so that it fails there and not on your machine: the
allocation that PyTorch then names must be the one computed. With a cap above one factor's size
(`--cap 12`, on a machine with 16 GiB free) the first is made and the second fails. Memory is the
peak above what was held before, read from the kernel (Linux only).
"""

from __future__ import annotations

import argparse
import re
import sys

import torch

import residual_stream as rs
from measuring import available_gib, capped, measured

_TRY = """
import torch, residual_stream as rs
model = rs.load("smollm2-135m")
cap()
with torch.no_grad():
    model.all_composition_scores("K")
print("finished")
"""


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
        seconds, extra, scores = measured(lambda k=kind: rs.composition_scores(model, k), 1)
        pairs = int(rs.composes(scores).expand_as(scores).sum())
        print(
            f"smollm2-135m, {kind}: {pairs:,} pairs in {seconds:.1f} s of processor time, "
            f"{extra:.0f} MiB extra"
        )
    cfg = model.cfg
    all_pairs = (cfg.n_layers * cfg.n_heads) ** 2
    factor = all_pairs * cfg.d_head * cfg.d_model * 4
    product = all_pairs * cfg.d_head**2 * 4
    whole = (2 * factor + product) / 2**30
    print(
        f"TransformerLens on smollm2-135m: {all_pairs:,} pairs × {cfg.d_head} × {cfg.d_model} × 4 "
        f"bytes = {factor:,} bytes for each of two factors, and {product:,} for their products: "
        f"{whole:.1f} GiB"
    )
    assert whole > 20
    if sys.platform != "linux" or available_gib() < arguments.cap + 4:
        print("not tried: needs Linux, and 4 GiB more than the cap")
        return
    last = capped(_TRY, arguments.cap)[-1]
    asked = re.search(r"allocate (\d+) bytes", last)
    print(f"tried with {arguments.cap:g} GiB: {last[:160]}")
    assert asked is not None and int(asked.group(1)) == factor, "another allocation failed"


if __name__ == "__main__":
    main()
