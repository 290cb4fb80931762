"""Which device the weights go to, and whether a model runs in its dtype there."""

from __future__ import annotations

import re

import torch
from torch import nn

from .rerun import without_hooks


def choose_device(device: str | torch.device | None, dtype: torch.dtype | None) -> torch.device:
    """The device asked for, checked to be usable here, or the best one in the order cuda, mps, cpu.

    Args:
        device: Name such as `"cuda:1"`, or None for the best.
        dtype: What it must hold; None is float32.

    Raises:
        ValueError: If torch doesn't know the device, doesn't find it, or it can't hold the dtype.

    Example:
        >>> choose_device("cpu", None)
        device(type='cpu')
    """
    usable = [kind for kind in ("cuda", "mps", "cpu") if _usable(kind)]
    if device is None:
        # mps has no float64
        best = [kind for kind in usable if not (kind == "mps" and dtype == torch.float64)]
        return torch.device(best[0])
    listed = ", ".join(repr(kind) for kind in usable)
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"load: device {device!r} is unknown to torch; usable here: {listed}"
        ) from error
    count = torch.cuda.device_count() if chosen.type == "cuda" else 1
    if not _usable(chosen.type) or (chosen.index or 0) >= count:
        raise ValueError(
            f"load: torch {torch.__version__} finds no device {str(device)!r} on this machine; "
            f"usable here: {listed}"
        )
    if chosen.type == "mps" and dtype == torch.float64:
        raise ValueError("load: mps has no float64; pass device='cpu', or dtype=torch.float32")
    return chosen


def _usable(kind: str) -> bool:
    backend = torch.backends.mps if kind == "mps" else getattr(torch, kind, None)
    return bool(getattr(backend, "is_available", bool)())


def require_runs(model: nn.Module, dtype: torch.dtype) -> None:
    """Refuse a bridge whose code mixes dtypes: TransformerLens 4.3 does in OLMo's attention.

    Models of four bytes and more a weight are not tried; others run once, on one token.

    Args:
        model: A ``TransformerBridge``.
        dtype: The dtype of its weights.

    Raises:
        ValueError: The model does not run in that dtype.
    """
    if dtype.itemsize >= 4:
        return
    token = torch.zeros(1, 1, dtype=torch.long, device=model.cfg.device)
    try:
        with torch.no_grad(), without_hooks(model):
            model(token, return_type=None)
    except Exception as error:  # what is wrong for another reason says so when it is used
        if not re.search(r"scalar type|same dtype", str(error)):
            return
        inner = type(getattr(model, "original_model", model)).__name__
        raise ValueError(
            f"load: TransformerLens's {inner} does not run in {dtype} ({error}); load it with "
            "dtype=torch.float32"
        ) from error
