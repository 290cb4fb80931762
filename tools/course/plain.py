"""Plain data between a submission's process and the grader: tensors, numbers, text; never code.

A frame is eight bytes of length and a safetensors file whose metadata holds the tree as JSON.
Neither format can carry code, and a frame that was forged is nothing worse than a wrong answer.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save

#: The most that one frame may hold, and a whole submission.
FRAME_LIMIT = 16 * 2**20
TOTAL_LIMIT = 64 * 2**20
_LEAVES, _DEPTH, _TEXT = 256, 6, 20_000
_DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
)  # fmt: skip


class NotPlain(ValueError):
    """A value, or a frame, that isn't plain data."""


def frame(key: str, value: Any) -> bytes:
    """Return `value` under `key` as bytes.

    Args:
        key: What the value is.
        value: Tensors, arrays, numbers, text, None, and lists, tuples or dicts of these.

    Raises:
        NotPlain: anything else is in it, or it is too large.

    Example:
        >>> [(key, value["a"].tolist()) for key, value in frames(frame("k", {"a": np.arange(2)}))]
        [('k', [0, 1])]
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = _take_apart(value, tensors, 0)
    if sum(t.numel() * t.element_size() for t in tensors.values()) > FRAME_LIMIT // 2:
        raise NotPlain(f"{key}: more than {FRAME_LIMIT // 2**21} MiB of numbers")
    # safetensors wants at least one tensor to be written
    body = save(tensors or {"none": torch.zeros(1)}, {"key": key, "tree": json.dumps(tree)})
    return struct.pack("<Q", len(body)) + body


def _take_apart(value: Any, tensors: dict[str, torch.Tensor], depth: int) -> Any:
    if depth > _DEPTH or len(tensors) > _LEAVES:
        raise NotPlain("a value too deep, or of too many parts")
    if isinstance(value, (np.ndarray, np.generic)):
        try:
            value = torch.as_tensor(np.ascontiguousarray(value) if value.shape else value.item())
        except (TypeError, ValueError) as error:
            raise NotPlain(f"an array of {value.dtype}") from error
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.dtype not in _DTYPES:
            raise NotPlain(f"a tensor of {value.dtype}, {value.layout}")
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if value is None or isinstance(value, (bool, int, float, str)):
        if isinstance(value, str):
            value = value[:_TEXT]
        return {"value": value}
    if isinstance(value, (list, tuple)):
        return {"list": [_take_apart(part, tensors, depth + 1) for part in value[: _LEAVES + 1]]}
    if isinstance(value, dict):
        parts = list(value.items())[: _LEAVES + 1]
        return {"dict": {str(k): _take_apart(part, tensors, depth + 1) for k, part in parts}}
    raise NotPlain(f"a {type(value).__name__}")


def frames(data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield every whole frame of `data` as a key and a value; stop where it is torn or no frame."""
    at = 0
    while at + 8 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        body = data[at + 8 : at + 8 + length]
        if length > FRAME_LIMIT or len(body) < length:
            return
        try:
            yield _read(body)
        except Exception:  # forged: every parser's complaint means the same
            return
        at += 8 + length


def _read(body: bytes) -> tuple[str, Any]:
    (header,) = struct.unpack_from("<Q", body)
    metadata = json.loads(body[8 : 8 + header])["__metadata__"]
    return str(metadata["key"]), _put_together(json.loads(metadata["tree"]), load(body), 0)


def _put_together(tree: Any, tensors: dict[str, torch.Tensor], depth: int) -> Any:
    if depth > _DEPTH:
        raise NotPlain("a tree too deep")
    ((kind, content),) = tree.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "value" and (content is None or isinstance(content, (bool, int, float, str))):
        return content
    if kind == "list":
        return [_put_together(part, tensors, depth + 1) for part in content]
    if kind == "dict":
        return {k: _put_together(part, tensors, depth + 1) for k, part in content.items()}
    raise NotPlain(f"a tree with {kind!r}")
