"""Keep a float64 model in float64 from end to end.

Hugging Face's norms and softmaxes cast to float32 whatever the weights are, so a model loaded in
float64 still rounds to 24 bits in every branch. Where large terms cancel, that shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_CASTS = (Tensor.to, Tensor.float, Tensor.type)
#: A product of matrices takes both of one type; all other arithmetic finds the wider one itself.
_PRODUCTS = (Tensor.matmul, torch.matmul)


class Float64Throughout(TorchFunctionMode):
    """Inside this context nothing casts a float64 tensor down to float32.

    Tensors of other types are left alone, so a float32 model runs as always. Only where a product
    meets both is the float32 one widened: a model that casts two factors to float32 means one type.

    Example:
        >>> x = torch.ones(2, dtype=torch.float64)
        >>> with Float64Throughout():
        ...     x.to(torch.float32).dtype, x.softmax(-1, dtype=torch.float32).dtype
        (torch.float64, torch.float64)
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run ``func``, with a cast from float64 to float32 taken out of it."""
        kwargs = dict(kwargs or {})
        wide = bool(args) and isinstance(args[0], Tensor) and args[0].dtype == torch.float64
        if wide and func is Tensor.float:
            return args[0]
        if wide and func in _CASTS and torch.float32 in args:
            args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        if wide and kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        if func in _PRODUCTS and {a.dtype for a in args} == {torch.float32, torch.float64}:
            args = tuple(a.double() for a in args)
        return func(*args, **kwargs)
