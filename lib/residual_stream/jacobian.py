r"""The derivative of one block with respect to the stream that enters it.

A residual block is :math:`x_{l+1} = x_l + F(x_l)`, so

.. math:: \frac{\partial x_{l+1}}{\partial x_l} = I + \frac{\partial F}{\partial x_l}.

That is a theorem. How far the second term leaves a block from the identity is a measurement: F
reads a normalised copy, so its derivative carries a factor :math:`1/\sigma(x_l)` and shrinks as
the stream grows.

Source: He et al. 2016, *Identity Mappings in Deep Residual Networks*, equation 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from .rerun import run_blocks

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


@dataclass(frozen=True, eq=False, repr=False)
class BlockJacobian:
    """The Jacobian of one block at one position, in the model's dtype.

    Attributes:
        layer: The block.
        position: The position whose stream enters and leaves.
        matrix: Row i holds the derivatives of the output's coordinate i.
    """

    layer: int
    position: int
    matrix: Float[Tensor, "d_model d_model"]

    @property
    def branch(self) -> Float[Tensor, "d_model d_model"]:
        """The Jacobian less the identity: the derivative of all that the block writes."""
        return self.matrix - torch.eye(len(self.matrix)).to(self.matrix)

    @cached_property
    def singular_values(self) -> Float[Tensor, " d_model"]:
        """Singular values, largest first: 1 throughout for the identity."""
        return torch.linalg.svdvals(_wide(self.matrix))

    @property
    def alignment(self) -> float:
        r"""Cosine of the Jacobian with the identity, :math:`\mathrm{tr}J/(\sqrt d\,\|J\|_F)`.

        1 for the identity; about :math:`1/\sqrt{1+s^2}` where the branch is unrelated to it and of
        relative size s; near 0 for a block without shortcut.
        """
        matrix = _wide(self.matrix)
        return float(matrix.trace() / (torch.linalg.matrix_norm(matrix) * len(matrix) ** 0.5))

    @property
    def branch_size(self) -> float:
        r"""Size of the branch's derivative beside the identity's, :math:`\|J-I\|_F/\|I\|_F`."""
        return float(torch.linalg.matrix_norm(_wide(self.branch)) / len(self.matrix) ** 0.5)

    def __repr__(self) -> str:
        """One line: the block, its alignment with the identity, its singular values."""
        values = self.singular_values
        return (
            f"BlockJacobian(block {self.layer} at position {self.position}: cosine with the "
            f"identity {self.alignment:.2f}, singular values {float(values[-1]):.2g} to "
            f"{float(values[0]):.2g}, median {float(values.median()):.2g})"
        )


def _wide(matrix: Tensor) -> Tensor:
    """At least float32: bfloat16 has no SVD, and its sums keep two digits."""
    return matrix.to(torch.promote_types(matrix.dtype, torch.float32))


def block_jacobian(
    model: TransformerBridge,
    residual: Float[Tensor, "*seq d_model"],
    layer: int,
    *,
    position: int = -1,
    rows_at_once: int = 96,
) -> BlockJacobian:
    """Return the exact Jacobian of a block between one position's stream before and after it.

    Other positions are held: what they contribute through attention is part of the branch's value
    and not of this derivative.

    Args:
        model: A ``TransformerBridge``, as :func:`residual_stream.load` returns it.
        residual: The stream entering the block, of one text, at every position from the first.
        layer: The block.
        position: Whose stream enters and leaves; negative counts from the end.
        rows_at_once: Rows of the Jacobian computed side by side.

    Returns:
        The Jacobian, by reverse differentiation of the model's own block.

    Raises:
        IndexError: A position outside the text.
        ValueError: A layer that does not exist, or a stream of another shape.

    Example:
        >>> import residual_stream as rs
        >>> model = rs.load("bench")
        >>> entering = rs.record(model, "In the beginning").after("0_mlp_out")[0]
        >>> rs.block_jacobian(model, entering, 1).alignment > 0.5
        True
    """
    width, longest = model.cfg.d_model, model.cfg.n_ctx
    if residual.ndim != 2 or residual.shape[1] != width or not 0 < len(residual) <= longest:
        raise ValueError(
            f"block_jacobian: the stream has the shape {tuple(residual.shape)}; pass that of one "
            f"text, [seq, {width}] with at most {longest} positions"
        )
    length = len(residual)
    if not -length <= position < length:
        raise IndexError(
            f"block_jacobian: position {position} is outside the text; it has {length} tokens, so "
            f"{-length} ≤ position ≤ {length - 1}"
        )
    if not 0 <= layer < len(model.blocks):
        raise ValueError(
            f"block_jacobian: block {layer} does not exist; the model has {len(model.blocks)}, "
            "counted from 0"
        )
    place = position % length
    with torch.inference_mode(False), torch.enable_grad():
        x = residual[place].detach().clone().requires_grad_()
        held = residual.detach()
        # With what comes after: in a bidirectional model it is read too.
        stream = torch.cat([held[:place], x[None], held[place + 1 :]])[None]
        after = run_blocks(model, stream, layer, layer + 1)[0, place]
        # Not torch.func.jacrev, which BLOOM's own activation refuses.
        rows = [
            torch.autograd.grad(after, x, some, retain_graph=True, is_grads_batched=True)[0]
            for some in torch.eye(width).to(after).split(rows_at_once)
        ]
    return BlockJacobian(layer, place, torch.cat(rows))
