"""The folder of a shipped model: float16 weights over training, vouched for by a manifest.

MANIFEST.json                        sizes, sha256, which file is which step, how it was trained
model.safetensors                    the weights after the last step
checkpoints/step_000000.safetensors  the weights at earlier steps
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

MANIFEST = "MANIFEST.json"
FINAL = "model.safetensors"


def checkpoint_name(step: int) -> str:
    """File of an earlier step, relative to the model's folder.

    Example:
        >>> checkpoint_name(80)
        'checkpoints/step_000080.safetensors'
    """
    return f"checkpoints/step_{step:06d}.safetensors"


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write weights as float16 safetensors.

    Args:
        path: File to write; its folder is made.
        weights: Tensors by name. A tied tensor must be given once.

    Raises:
        OverflowError: If a weight does not fit float16.
    """
    half = {
        name: tensor.detach().to(torch.float16).contiguous() for name, tensor in weights.items()
    }
    for name, tensor in half.items():
        if not torch.isfinite(tensor).all():
            raise OverflowError(f"save_weights: {name} does not fit float16")
    path.parent.mkdir(parents=True, exist_ok=True)
    # "format" is what Hugging Face's loader looks for
    path.write_bytes(save(half, metadata={"format": "pt"}))


def write_manifest(folder: Path, *, last_step: int, training: Mapping[str, Any]) -> None:
    """Write `MANIFEST.json`: size and sha256 of every file, the files by step, the training.

    Args:
        folder: The model's folder, complete but for the manifest.
        last_step: The step of `model.safetensors`.
        training: What the run was and measured; must be JSON.
    """
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    files = {}
    for name in names:
        if name != MANIFEST:
            data = (folder / name).read_bytes()
            files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    stems = [Path(name) for name in names if name.startswith("checkpoints/")]
    steps = {int(p.stem.removeprefix("step_")): p.as_posix() for p in stems} | {last_step: FINAL}
    manifest = {
        "checkpoints": {str(step): steps[step] for step in sorted(steps)},
        "files": files,
        "training": training,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a shipped model's folder.

    Raises:
        FileNotFoundError: If the folder has none.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"read_manifest: {folder} has no {MANIFEST}")
    return json.loads(path.read_text())


def shipped_steps(folder: Path) -> list[int]:
    """The training steps whose weights are shipped, in order; the last is the finished model."""
    return [int(step) for step in read_manifest(folder)["checkpoints"]]


def load_weights(
    folder: Path, *, step: int | None = None, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """The weights of a shipped model at a training step, checked against the manifest.

    Args:
        folder: The model's folder.
        step: One of `shipped_steps(folder)`; the finished model if not given.
        dtype: What to convert the stored float16 values to; float32 holds them exactly.

    Returns:
        Tensors by name, on the CPU.

    Raises:
        ValueError: If the step is not shipped, or the file is not the one the manifest describes.
    """
    manifest = read_manifest(folder)
    steps = [int(known) for known in manifest["checkpoints"]]
    wanted = steps[-1] if step is None else step
    if wanted not in steps:
        raise ValueError(f"load_weights: step {step} is not shipped; steps are {steps}")
    name = manifest["checkpoints"][str(wanted)]
    data = (folder / name).read_bytes()
    if hashlib.sha256(data).hexdigest() != manifest["files"][name]["sha256"]:
        raise ValueError(
            f"load_weights: {folder / name} ({len(data)} bytes) is damaged: its sha256 is not "
            f"the manifest's ({manifest['files'][name]['bytes']} bytes); install the package again"
        )
    return {key: tensor.to(dtype) for key, tensor in load(data).items()}
