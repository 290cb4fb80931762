"""A second device for a machine that has one: tensors kept elsewhere may not meet the model's.

Kept there is what was recorded with ``device=ELSEWHERE``. As with a GPU and a CPU, an operation on
tensors of both is an error, copies cross, and so do numbers without dimensions and the indices into
a tensor of the model's. Unlike there, a tensor made without a device is the model's.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

ELSEWHERE = torch.device("meta")  # its name only: no tensor is ever there
_CROSSING = {Tensor.copy_, Tensor.__setitem__}


class _Elsewhere(Tensor):
    """A tensor on the other device."""


def is_elsewhere(value: object) -> bool:
    """Whether a value is a tensor on the other device."""
    return isinstance(value, _Elsewhere)


def _here(value):
    return value.as_subclass(Tensor) if is_elsewhere(value) else value


def _there(value):
    return value.as_subclass(_Elsewhere) if isinstance(value, Tensor) else value


def _tensors(values):
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, Tensor):
            yield value


class TwoDevices(TorchFunctionMode):
    """Inside, tensors on :data:`ELSEWHERE` are apart from all others."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        first = args[0] if args else None
        if func == Tensor.device.__get__:  # made anew at each access
            return ELSEWHERE if is_elsewhere(first) else func(first)
        if func is Tensor.to:
            return self._moved(first, args[1:], kwargs)
        if func in (Tensor.cpu, Tensor.numpy, Tensor.tolist, Tensor.__repr__):
            return func(_here(first), *args[1:], **kwargs)
        if kwargs.get("device") == ELSEWHERE:
            del kwargs["device"]
            return _there(func(*map(_here, args), **kwargs))
        if kwargs.get("device") is not None:
            return _here(func(*map(_here, args), **kwargs))
        if func not in _CROSSING:
            self._require_one_place(func, args, kwargs)
        return func(*args, **kwargs)

    @staticmethod
    def _moved(value, args, kwargs):
        given = [*args, *kwargs.values()]
        places = [a for a in given if isinstance(a, (torch.device, str, Tensor))]
        there = is_elsewhere(value)
        if places:
            there = is_elsewhere(places[0]) or str(places[0]) == str(ELSEWHERE)
        dtype = next((a for a in given if isinstance(a, torch.dtype)), None)
        if places and isinstance(places[0], Tensor):
            dtype = places[0].dtype
        copy = kwargs.get("copy", False) or there != is_elsewhere(value)
        moved = Tensor.to(_here(value), dtype or value.dtype, copy=copy)
        return _there(moved) if there else moved

    @staticmethod
    def _require_one_place(func, args, kwargs):
        if func is Tensor.__getitem__ and not is_elsewhere(args[0]):
            return
        seen = {is_elsewhere(t) for t in _tensors([*args, *kwargs.values()]) if t.ndim}
        if len(seen) > 1:
            name = getattr(func, "__name__", str(func))
            raise RuntimeError(f"expected all tensors on the same device, in {name}")
