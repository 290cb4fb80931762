r"""A norm with its divisor held: what it does to a write is then linear.

:math:`\mathrm{norm}(x) = \gamma\odot Px/\sigma(x)+\beta` divides by a number that depends on the
whole stream. Taken from the actual run, that number is a constant, and the norm a matrix

.. math:: J = \mathrm{diag}(\gamma)\,P/\sigma,

(P takes the mean over the width out in a LayerNorm), through which every earlier write goes on its
way to the top, and back through which, as :math:`J^\top`, goes a direction that reads the top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from .divisor import Norm, read_norm
from .rerun import without_hooks

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


@dataclass(frozen=True, eq=False)
class FrozenNorm:
    """A norm of a model, and its divisor where a stream was given.

    Attributes:
        module: The bridge's module.
        norm: Its numbers.
        sigma: The divisor at each place, None before :meth:`at`.
    """

    module: Any
    norm: Norm
    sigma: Float[Tensor, "*lead"] | None = None

    @classmethod
    def of(cls, model: TransformerBridge, name: str) -> FrozenNorm:
        """Return the norm called ``name``, for example ``"blocks.3.ln1"``."""
        module = model.get_submodule(name)
        return cls(module, read_norm(module))

    def __call__(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead d_model"]:
        """Return what the model's own module makes of a stream, in its own arithmetic."""
        # Through the bridge, whose arithmetic differs from PyTorch's norm in the last bit.
        with torch.no_grad(), without_hooks(self.module):
            return self.module(x.to(self.norm.gain.device)).to(x.device)

    def at(self, x: Float[Tensor, "*lead d_model"]) -> FrozenNorm:
        """Return the norm with the divisor that it has at the stream ``x``."""
        return FrozenNorm(self.module, self.norm, self.norm.sigma(x))

    def push(self, write: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead d_model"]:
        """Return J w: a write, as it stands behind the norm; in float64."""
        gain, _, sigma = self._numbers(write)
        return self.norm.center(write.double()) * gain / sigma

    def pull(self, along: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead d_model"]:
        """Return Jᵀ d: what a direction behind the norm reads before it; in float64."""
        gain, _, sigma = self._numbers(along)
        return self.norm.center(along.double() * gain) / sigma

    def through(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead d_model"]:
        """Return J x + β, in float64."""
        return self.push(x) + self._numbers(x)[1]

    def bound(
        self,
        before: Float[Tensor, "*lead d_model"],
        x: Float[Tensor, "*lead d_model"],
        unit_roundoff: float,
    ) -> Float[Tensor, "*lead d_model"]:
        """Return a bound on the error behind the norm, given one before it.

        The error before goes through |J|. The norm's own evaluation at ``x`` sums d terms twice and
        does a handful of operations more, each of which rounds once: d + 8 roundings of numbers no
        larger than |J| |x| + |β|.
        """
        gain, bias, sigma = (number.abs() for number in self._numbers(x))

        def spread(value: Tensor) -> Tensor:
            value = value.double().abs()
            if self.norm.centred:
                value = value + value.mean(-1, keepdim=True)
            return value * gain / sigma

        own = spread(x) + bias
        return spread(before) + (x.shape[-1] + 8) * unit_roundoff * own

    def _numbers(self, x: Tensor) -> tuple[Tensor, Tensor, Float[Tensor, "*lead 1"]]:
        """γ, β and σ in float64 where ``x`` is: a stream may be kept off the model's device."""
        if self.sigma is None:
            raise ValueError("FrozenNorm: no divisor yet; take it from a stream with .at(x)")
        gain, bias, sigma = (
            number.to(x.device, torch.float64)
            for number in (self.norm.gain, self.norm.bias, self.sigma)
        )
        return gain, bias, sigma[..., None]
