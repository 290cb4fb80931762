"""Attribution beside TransformerLens's own functions, in one run, with the same numbers checked.

    python benchmarks/attribution.py

Every head and every neuron of the real model is projected onto one target per place. Time is the
processor's, over all threads, so that a busy machine does not count. Memory is the peak above what
was held before, read from the kernel (Linux only).

Heads. TransformerLens: `stack_head_results` and `logit_attrs`, on a cache that holds every
`hook_z` but no head's write yet. Ours: `logit_attribution(unit="head")`, with all that it checks:
that the ledger closes, every head's block, the whole sum, the model's own logit. Three ways:

    ready    cache and stream are there; the stream was recorded with `units=["head"]`;
    text     from the tokens: `run_with_cache` of what is needed, or `record`, and then the above;
    all      the same, with `run_with_cache` as it is called without a filter.

"A second run" is ours on a stream recorded without `units`. `logit_attrs` leaves the final norm's
gain out on raw weights, so the numbers compared are its stack's along the exact direction, which is
not timed.

Neurons. Ours runs the model a second time inside its own time. TransformerLens, on a ready cache:

    project  stack_neuron_results(project_output_onto=the targets), then each position's own;
    loop     the same, one position at a time with its own target;
    stack    stack_neuron_results, then the projection: every neuron's write is built, and copied
             once. In a process of its own whose memory is capped, over as many positions as fit
             into what is free.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch

import residual_stream as rs
from measuring import Measured, available_gib, capped, measured
from residual_stream.readout import read_readout

_STACK = """
import sys, torch
sys.path.insert(0, sys.argv[2])
from measuring import measured
import residual_stream as rs
file, count, repeats = sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
d, sigma, tokens = torch.load(file)
model = rs.load("smollm2-135m")
_, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith("mlp.hook_post"))
cap()
def stack():
    writes = cache.stack_neuron_results(-1, pos_slice=(0, count))[:, 0]  # [neuron, pos, d_model]
    return torch.einsum("npd,pd->np", writes, d[:count]) / sigma[:count]
with torch.no_grad():
    torch.save(tuple(measured(stack, repeats)), file)
"""


def report(name: str, ours: Measured, theirs: Measured, atol: float) -> None:
    """Check that both sides hold the same numbers and print the ratios."""
    error = float((ours.result - theirs.result).abs().max())
    assert error <= atol, f"{name}: the two sides differ by {error}"
    print(
        f"{name:<42} {theirs.seconds / ours.seconds:6.1f} × the time, "
        f"{theirs.mebibytes / max(ours.mebibytes, 1):6.1f} × the extra memory  (ours "
        f"{ours.seconds:.3f} s, {ours.mebibytes:.0f} MiB; theirs {theirs.seconds:.3f} s, "
        f"{theirs.mebibytes:.0f} MiB; largest difference {error:.0e})"
    )


class _Heads:
    """One question of heads, asked of both sides: which tokens, which positions, which targets."""

    def __init__(self, model, tokens: torch.Tensor, position: int | None) -> None:
        self.model, self.tokens, self.position = model, tokens, position
        following = tokens.roll(-1, dims=1)
        self.targets = following if position is None else following[:, position]
        points = [f"blocks.{layer}.attn.hook_z" for layer in range(len(model.blocks))]
        self.filter = [*points, "ln_final.hook_scale"]

    def ours(self, stream: rs.ResidualStream) -> torch.Tensor:
        split = rs.logit_attribution(stream, self.targets, unit="head", position=self.position)
        return split.values[torch.tensor([kind == "head" for kind in split.kinds])]

    def theirs(self, cache) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in range(len(self.model.blocks)):  # as on a fresh cache
            cache.cache_dict.pop(f"blocks.{layer}.attn.hook_result", None)
        where = None if self.position is None else self.position
        stack = cache.stack_head_results(-1, pos_slice=where)  # [head, batch, (pos,) d_model]
        return stack, cache.logit_attrs(stack, self.targets, pos_slice=where)

    def cached(self, **options: object):
        return self.model.run_with_cache(self.tokens, **options)[1]

    def exact(self, stack: torch.Tensor, stream: rs.ResidualStream) -> torch.Tensor:
        """Their stack along the exact direction: what both sides are to agree on."""
        readout = read_readout(self.model)
        top = stream.top if self.position is None else stream.top[:, self.position]
        rows = readout.direction(self.targets) / readout.sigma(top)[..., None]
        return torch.stack([torch.linalg.vecdot(one.double(), rows) for one in stack]).float()

    def compare(self, name: str, repeats: int) -> None:
        stream = rs.record(self.model, self.tokens, units=["head"])
        plain = rs.record(self.model, self.tokens)
        cache = self.cached(names_filter=self.filter)
        exact = self.exact(self.theirs(cache)[0], stream)
        same = {"result": exact}

        def record_and_split() -> torch.Tensor:
            return self.ours(rs.record(self.model, self.tokens, units=["head"]))

        ready = measured(lambda: self.ours(stream), repeats)
        theirs = measured(lambda: self.theirs(cache)[1], repeats)._replace(**same)
        report(f"{name}, ready", ready, theirs, 1e-3)
        again = measured(lambda: self.ours(plain), repeats)
        report(f"{name}, ready; a second run", again, theirs, 1e-3)
        text = measured(record_and_split, repeats)
        for way, options in (("text", {"names_filter": self.filter}), ("all", {})):
            other = measured(lambda o=options: self.theirs(self.cached(**o))[1], repeats)
            report(f"{name}, {way}", text, other._replace(**same), 1e-3)


def neurons(model, tokens: torch.Tensor, repeats: int) -> None:
    """Every neuron of one passage onto one target per position."""
    targets = tokens.roll(-1, dims=1)
    stream, n_pos = rs.record(model, tokens), tokens.shape[1]
    cache = model.run_with_cache(tokens, names_filter=lambda n: n.endswith("mlp.hook_post"))[1]
    readout = read_readout(model)
    d = readout.direction(targets).float()[0]  # [pos, d_model]
    sigma = readout.sigma(stream.top).float()[0]  # [pos]

    def ours(count: int) -> torch.Tensor:
        split = rs.logit_attribution(
            stream, targets[:, :count], unit="neuron", position=slice(0, count)
        )
        return split.values[torch.tensor([kind == "neuron" for kind in split.kinds])][:, 0]

    def project() -> torch.Tensor:
        stack = cache.stack_neuron_results(-1, project_output_onto=d.T)  # [neuron, b, pos, target]
        return torch.diagonal(stack[:, 0], dim1=1, dim2=2) / sigma

    def loop() -> torch.Tensor:
        found = [cache.stack_neuron_results(-1, pos_slice=p, project_output_onto=d[p])[:, 0]
                 for p in range(n_pos)]  # fmt: skip
        return torch.stack(found, dim=1) / sigma

    every = measured(lambda: ours(n_pos), repeats)
    name = f"{len(every.result):,} neurons × {n_pos}"
    report(f"{name}, project", every, measured(project, repeats), 1e-3)
    report(f"{name}, loop", every, measured(loop, repeats), 1e-3)
    if sys.platform != "linux":
        print("stack: not tried; the cap needs Linux")
        return
    # Its list of layers and their concatenation, and 2 GiB to leave.
    one = 2 * every.result.shape[0] * d.shape[1] * 4 / 2**30
    count = min(n_pos, int((available_gib() - 2) / one))
    cap = one * count + 1
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "stack.pt"
        torch.save((d, sigma, tokens), file)
        said = capped(_STACK, cap, str(Path(__file__).parent), str(file), str(count), "1")
        found = torch.load(file)
    assert isinstance(found[0], float), f"stack with {cap:.0f} GiB: {said[-1]}"
    few = every if count == n_pos else measured(lambda: ours(count), repeats)
    report(f"{len(few.result):,} neurons × {count}, stack", few, Measured(*found), 1e-3)


@torch.no_grad()
def main() -> None:
    """Measure, check and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    model = rs.load("smollm2-135m")
    tokens = rs.texts.batch(model)
    print("smollm2-135m; how many times ours TransformerLens takes:")
    _Heads(model, tokens, None).compare("270 heads × 8 × 64", repeats)
    _Heads(model, tokens, -1).compare("270 heads × 8, the last position", repeats)
    single = _Heads(model, tokens[:1], None)
    single.compare("270 heads × 64", repeats)
    raw = single.theirs(single.cached())[1][:, 0].sum(0)
    exact = rs.logit_attribution(
        rs.record(model, single.tokens), single.targets, unit="head", position=None, center=False
    )
    sums = exact.values[torch.tensor([kind == "head" for kind in exact.kinds])][:, 0].sum(0)
    print(
        f"logit_attrs on raw weights: median head sum {float(raw.median()):.2f} where the heads' "
        f"exact sum is {float(sums.median()):.2f} (it leaves the final norm's gain out)"
    )
    neurons(model, tokens[:1], repeats)


if __name__ == "__main__":
    main()
