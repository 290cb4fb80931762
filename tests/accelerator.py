"""Compute on the CPU as roughly as an accelerator does, to see whether tolerances bear it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: What may differ by rounding from one machine to another: sums and functions, not + − × ÷.
_ROUNDED = (
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "dot", "sum", "mean", "var", "norm",
    "linalg_vector_norm", "_softmax", "_log_softmax", "native_layer_norm", "exp", "log", "rsqrt",
    "pow", "tanh", "gelu", "silu", "sigmoid", "erf", "cumsum", "logsumexp", "cos", "sin",
)  # fmt: skip


class Accelerator(TorchDispatchMode):
    """While it lasts, float32 results are as rough as those of another order of summation.

    Args:
        noise: Relative spread that is put on each such result: some units of the last place.
        seed: Of the noise.
    """

    def __init__(self, *, noise: float = 5e-7, seed: int = 0) -> None:
        super().__init__()
        self.noise = noise
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run one operation roughly."""
        out = func(*args, **(kwargs or {}))
        if (
            func.overloadpacket.__name__ in _ROUNDED
            and isinstance(out, Tensor)
            and out.dtype == torch.float32
        ):
            out = out * (1 + self.noise * torch.randn(out.shape, generator=self.generator))
        return out


def roughly(answer: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return an answer that computes under `Accelerator(**options)`."""

    def rough(*args: Any) -> Any:
        with Accelerator(**options):
            return answer(*args)

    return rough
