"""Which device the weights go to."""

from __future__ import annotations

import torch


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
