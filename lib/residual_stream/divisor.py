r"""What a write does to a reading it cannot touch: it changes the divisor that all readers share.

A reader takes :math:`W^\top(\gamma\odot x)/\sigma(x)`, with :math:`\sigma^2 = \lVert x\rVert^2/d +
\epsilon` for an RMSNorm. Let a write :math:`w` be orthogonal to what the reader reads, the span of
:math:`\gamma\odot W`: the numerator stays. The reading is multiplied by
:math:`\sigma(x)/\sigma(x+w)`, whatever the reader. If :math:`w` is also orthogonal to :math:`x`,

.. math:: \frac{\sigma(x)}{\sigma(x+w)} = \frac{1}{\sqrt{1+a^2}},\qquad
          a^2 = \frac{\lVert w\rVert^2}{\lVert x\rVert^2 + d\epsilon},

exactly; in general :math:`1/\sqrt{1+2a\cos(x,w)\,\lVert x\rVert/\sqrt{\lVert x\rVert^2+d\epsilon}
+a^2}`, so a write against the stream *amplifies* the reading.

A LayerNorm first takes the mean over the width out of :math:`x`. The same holds there for the
centred vectors :math:`Px` and :math:`Pw`, for the span of :math:`P(\gamma\odot W)`, and for the
reading without its bias :math:`W^\top\beta`. A write along the mean direction alone, :math:`Pw=0`,
changes nothing at all: it is the one direction of such a stream that no reader sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .rerun import without_hooks


class NormError(NotImplementedError):
    """A norm that is not γ ⊙ x/σ + β, with or without the mean over the width taken out."""


@dataclass(frozen=True, eq=False)
class Norm:
    r"""The numbers of a norm: :math:`\gamma\odot Px/\sigma(x)+\beta`.

    Attributes:
        gain: γ, with any offset (Gemma stores γ − 1) added.
        bias: β, zero where there is none.
        centred: Whether P takes the mean over the width out (LayerNorm).
        eps: ε under the root.
    """

    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"]
    centred: bool
    eps: float

    def center(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead d_model"]:
        """Return Px."""
        return x - x.mean(-1, keepdim=True) if self.centred else x

    def sigma(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead"]:
        """Return the divisor σ(x), in float64."""
        return (self.center(x.double()).square().mean(-1) + self.eps).sqrt()

    def seen_by(self, reader: Float[Tensor, "d_model width"]) -> Float[Tensor, "d_model width"]:
        r"""Return what a reader behind the norm reads of the stream: :math:`P(\gamma\odot W)`."""
        return self.center((self.gain.to(reader)[:, None] * reader).T).T

    def formula(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead d_model"]:
        """Return the norm of x by the formula, in float64."""
        unit = self.center(x.double()) / self.sigma(x)[..., None]
        return unit * self.gain.double() + self.bias.double()


def read_norm(module: Any) -> Norm:
    """Return the numbers of a bridge's norm module, checked against the module itself.

    Args:
        module: For example ``model.blocks[3].ln1`` or ``model.ln_final``.

    Returns:
        γ, β, whether it centres, and ε.

    Raises:
        NormError: The formula does not give what the module gives.

    Example:
        >>> import residual_stream as rs
        >>> rs.divisor.read_norm(rs.load("bench").ln_final).centred
        True
    """
    inner = module.original_component
    weight, bias = getattr(inner, "weight", None), getattr(inner, "bias", None)
    if weight is None:
        raise NormError(f"read_norm: {type(inner).__name__} has no gain `weight`")
    gain = weight.detach() + (1 if module.uses_weight_offset else 0)
    norm = Norm(
        gain=gain,
        bias=torch.zeros_like(gain) if bias is None else bias.detach(),
        centred=not module.uses_rms_norm,
        eps=float(getattr(inner, "variance_epsilon", getattr(inner, "eps", module.config.eps))),
    )
    generator = torch.Generator().manual_seed(0)
    probe = 1 + torch.randn(2, 1, len(gain), generator=generator).to(gain)
    with torch.no_grad(), without_hooks(module):
        own = module(probe).double()
    # Llama's norm computes in float32 whatever its input.
    allowed = 100 * max(torch.finfo(d).eps for d in (gain.dtype, torch.float32))
    allowed *= float(own.abs().max())
    if float((norm.formula(probe) - own).abs().max()) > allowed:
        raise NormError(
            f"read_norm: {type(inner).__name__} is not γ ⊙ x/σ + β, with or without its mean "
            "taken out; its numbers cannot be folded into what reads it"
        )
    return norm


@dataclass(frozen=True, eq=False)
class DivisorEffect:
    """Readings before and after an orthogonal write, against the law.

    Attributes:
        relative: a, the relative size of the write.
        predicted: :math:`1/\\sqrt{1+a^2}`.
        measured: The factor on the reading at each position: its projection on the old reading.
        error: Largest entry of (new reading − predicted · old reading), over the largest entry of
            the old reading: it is rounding when the law holds.
    """

    relative: float
    predicted: float
    measured: Float[Tensor, " pos"]
    error: float

    def __repr__(self) -> str:
        """One line: size, prediction, measurement and error."""
        return (
            f"DivisorEffect(a = {self.relative:g}: predicted {self.predicted:.6f}, measured "
            f"{float(self.measured.mean()):.6f}, error {self.error:.1e})"
        )


def divisor_effect(
    norm: Any,
    reader: Float[Tensor, "d_model width"],
    x: Float[Tensor, "pos d_model"],
    *,
    relative: float,
    seed: int = 0,
) -> DivisorEffect:
    r"""Write orthogonally to a reader and to the stream, and measure what the reader then reads.

    Args:
        norm: The model's own norm in front of the reader, for example ``model.blocks[3].ln1``.
        reader: The reader's weights without the gain, for example
            ``model.blocks[3].attn.W_Q[0]``.
        x: The stream in front of the norm, one row a position.
        relative: a, the size of the write relative to the stream (with ε, see the module).
        seed: Of the write's random direction, drawn on the CPU.

    Returns:
        The measured factor per position beside :math:`1/\sqrt{1+a^2}`.

    Raises:
        ValueError: The reader reads everything, so nothing is orthogonal to it; or
            ``relative`` is negative.

    Example:
        >>> import residual_stream as rs
        >>> model = rs.load("bench")
        >>> x = rs.record(model, "In the beginning").after("1_mlp_out")[0].double()
        >>> block = model.blocks[2]
        >>> divisor_effect(block.ln1, block.attn.W_Q[0], x, relative=1.0).error < 1e-9
        True
    """
    if relative < 0:
        raise ValueError(f"divisor_effect: relative = {relative}; pass a size of 0 or more")
    reader = reader.detach().to(x)
    write = orthogonal_write(norm, reader, x, relative=relative, seed=seed)
    offset = read_norm(norm).bias.to(x) @ reader
    with torch.no_grad():
        before = norm(x) @ reader - offset
        after = norm(x + write) @ reader - offset
    predicted = (1 + relative**2) ** -0.5
    factor = (after * before).sum(-1) / before.square().sum(-1)
    miss = (after - predicted * before).abs().max() / before.abs().max()
    return DivisorEffect(float(relative), predicted, factor, float(miss))


def orthogonal_write(
    norm: Any,
    reader: Float[Tensor, "d_model width"],
    x: Float[Tensor, "pos d_model"],
    *,
    relative: float,
    seed: int = 0,
) -> Float[Tensor, "pos d_model"]:
    r"""Return a write of relative size a, orthogonal to the stream and to what a reader reads.

    Args:
        norm: The model's own norm in front of the reader.
        reader: The reader's weights without the gain.
        x: The stream in front of the norm.
        relative: a, with :math:`a^2 = \lVert w\rVert^2/(\lVert x\rVert^2+d\epsilon)`.
        seed: Of the random direction, drawn on the CPU.

    Returns:
        One write a position, in x's dtype; for a LayerNorm also orthogonal to the mean direction.

    Raises:
        ValueError: Nothing is orthogonal to the reader.
    """
    width = x.shape[-1]
    numbers = read_norm(norm)
    stream = numbers.center(x.double())
    seen = numbers.seen_by(reader.to(stream))
    if numbers.centred:
        seen = torch.cat([seen, torch.ones_like(seen[:, :1])], dim=1)
    left, values, _ = torch.linalg.svd(seen, full_matrices=False)
    basis = left[:, values > values[0] * width * torch.finfo(torch.float64).eps]
    if basis.shape[1] >= width - 1:
        raise ValueError(
            f"orthogonal_write: the reader reads {basis.shape[1]} of {width} directions, so no "
            "write is orthogonal to it and to the stream; pass fewer columns"
        )
    generator = torch.Generator().manual_seed(seed)
    free = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)
    inside = stream - stream @ basis @ basis.T  # the part of x that lies outside the reader
    for _ in range(2):  # twice: once leaves rounding behind
        free = free - free @ basis @ basis.T
        free = free - inside * (free * inside).sum(-1, keepdim=True) / inside.square().sum(
            -1, keepdim=True
        )
    size = (stream.square().sum(-1, keepdim=True) + width * numbers.eps).sqrt()
    return (relative * size * free / free.norm(dim=-1, keepdim=True)).to(x)


def shared_factor(
    norm: Any, x: Float[Tensor, "*lead d_model"], write: Float[Tensor, "*lead d_model"]
) -> Float[Tensor, "*lead"]:
    r"""Return :math:`\sigma(x)/\sigma(x+w)`: the factor on every reading that w does not touch.

    Args:
        norm: The norm in front of the readers (its kind and ε are used).
        x: The stream before the write.
        write: What is added to it.

    Returns:
        Below 1 where the write lengthens the stream, above 1 where it shortens it.
    """
    numbers = read_norm(norm)
    return numbers.sigma(x) / numbers.sigma(x + write)
