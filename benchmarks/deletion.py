"""`delete_layers` beside one run of the whole model per layer, in one process, same numbers.

    python benchmarks/deletion.py

The other side is what one writes without the library: hooks that put both writes of a layer to
zero, the whole model again for each layer, and PyTorch's own `log_softmax`, `kl_div`, `nll_loss`
and `argmax` on its logits. Numbers are compared in float64, outside of the time that is measured.
Time is the processor's, over all threads. A second ratio leaves the comparison of predictions out
of the other side: its forward passes alone, beside all that `delete_layers` does.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn import functional as F

import residual_stream as rs


def nothing(value: torch.Tensor, hook: object) -> torch.Tensor:
    """Put a write to zero."""
    return torch.zeros_like(value)


def without(model: object, tokens: torch.Tensor, layer: int) -> torch.Tensor:
    """Logits of the whole model with one layer's writes at zero."""
    hooks = [(f"blocks.{layer}.hook_{branch}_out", nothing) for branch in ("attn", "mlp")]
    return model.run_with_hooks(tokens, fwd_hooks=hooks)


def measures(logp: torch.Tensor, logq: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Share of first tokens kept, KL, loss change; every position but the first."""
    kept = (logq.argmax(-1) == logp.argmax(-1))[:, 1:].to(logp.dtype).mean()
    kl = F.kl_div(logq[:, 1:], logp[:, 1:], log_target=True, reduction="none").sum(-1).mean()
    ahead = tokens[:, 2:]
    change = F.nll_loss(logq[:, 1:-1].mT, ahead) - F.nll_loss(logp[:, 1:-1].mT, ahead)
    return torch.stack([kept, kl, change])


@torch.no_grad()
def main() -> None:
    """Measure, check and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--length", type=int, default=64)
    arguments = parser.parse_args()
    model = rs.load("smollm2-135m")
    layers = range(len(model.blocks))
    for passages in arguments.passages:
        tokens = rs.texts.batch(model, length=arguments.length)[:passages]
        model(tokens)  # warm
        start = time.process_time()
        ours = rs.delete_layers(model, tokens)
        our_time = time.process_time() - start
        clean = model(tokens)
        forward = compare = 0.0
        exact = []
        for layer in layers:
            start = time.process_time()
            logits = without(model, tokens, layer)
            forward += time.process_time() - start
            start = time.process_time()
            measures(clean.log_softmax(-1), logits.log_softmax(-1), tokens)
            compare += time.process_time() - start
            wide = (clean.double().log_softmax(-1), logits.double().log_softmax(-1))
            exact.append(measures(*wide, tokens))
        got = torch.stack([ours.top1_kept, ours.kl, ours.loss_change], dim=1).double()
        error = float((got - torch.stack(exact)).abs().max())
        assert error <= 1e-5, f"the two sides differ by {error}"
        print(
            f"{passages} × {arguments.length} tokens, {len(layers)} layers: "
            f"{our_time / (forward + compare):.2f} of the time ({our_time:.1f} s, whole runs "
            f"{forward + compare:.1f} s); {our_time / forward:.2f} of the forward passes alone; "
            f"largest difference {error:.0e}"
        )


if __name__ == "__main__":
    main()
