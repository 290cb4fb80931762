r"""The gradient of the loss with respect to the stream, at every depth.

On the way down every write :math:`\Delta_k = F_k(x^{(k-1)})` turns the gradient behind it into

.. math:: g_{k-1} = g_k + J_k^{\top} g_k, \qquad J_k = \partial F_k / \partial x^{(k-1)},

so the identity path hands the top's gradient down unchanged, and the row's differs from it by all
that came through branches (:mod:`residual_stream.path_gradients` sorts that).

Source: He et al. 2016, *Identity Mappings in Deep Residual Networks*, equation 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .inputs import to_tokens
from .precision import Float64Throughout
from .wiring import read_wiring

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


@dataclass(frozen=True, eq=False, repr=False)
class StreamGradients:
    """The gradient of the summed next-token loss with respect to the stream after every write.

    Attributes:
        labels: The writes, the embedding's last one first.
        values: The gradient with respect to the stream after each, in nats per unit of stream, at
            every position but the last, which predicts nothing.
    """

    labels: list[str]
    values: Float[Tensor, "write batch pos d_model"]

    @property
    def norms(self) -> Float[Tensor, "write batch pos"]:
        """Length of the gradient after each write."""
        return self.values.norm(dim=-1)

    @property
    def identity_share(self) -> Float[Tensor, "batch pos"]:
        r"""The identity path's part of the row's gradient: :math:`g_L\cdot g_0/\|g_0\|^2`.

        The identity path hands :math:`g_L` down unchanged. The parts of all paths add up to 1.
        """
        row, top = self.values[0], self.values[-1]
        return (row * top).sum(-1) / row.square().sum(-1)

    def __repr__(self) -> str:
        """One line: the writes, the places, the median growth from top to row."""
        growth = (self.norms[0] / self.norms[-1]).median()
        return (
            f"StreamGradients({len(self.labels)} writes × {self.norms[0].numel()} places; the "
            f"row's gradient is {float(growth):.3g} times the top's (median))"
        )


def stream_gradients(
    model: TransformerBridge,
    text: str | Sequence[str] | Sequence[int] | Int[Tensor, " seq"] | Int[Tensor, "batch seq"],
) -> StreamGradients:
    """Return the loss's gradient with respect to the stream after every write, in one backward.

    The loss is the sum over all places of the next token's. A gradient with respect to what a write
    adds is one with respect to the stream after it: they differ by a constant. It is read at the
    writes: an edit at TransformerLens's ``hook_resid_mid`` reaches the MLP's branch only, so its
    gradient lacks the shortcut's part
    (test_the_gradient_is_not_that_of_an_edit_at_hook_resid_mid).

    Args:
        model: A ``TransformerBridge``, as :func:`residual_stream.load` returns it.
        text: One text, several texts of equal token length, or token ids.

    Returns:
        The gradients; ``.identity_share`` is the identity path's part.

    Raises:
        ValueError: A text of one token.

    Example:
        >>> import residual_stream as rs
        >>> gradients = rs.stream_gradients(rs.load("bench"), "In the beginning")
        >>> gradients.labels[0], gradients.labels[-1], len(gradients.values)
        ('pos_embed', '3_mlp_out', 9)
    """
    wiring = read_wiring(model)
    tokens = longer_than_one(to_tokens(model, text, caller="stream_gradients"), "stream_gradients")
    rows = [write for write in wiring.writes if write.layer < 0]
    writes = [rows[-1], *wiring.block_writes]
    seen: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: Any, label: str) -> Tensor:
        if not value.requires_grad:  # a model whose weights are frozen starts its graph here
            value = value.detach().requires_grad_()
        seen[label] = value
        return value

    hooks: list[Any] = [
        (write.hooks[-1], lambda value, hook, label=write.label: keep(value, hook, label))
        for write in writes[1:]
    ]
    # The row is the stream entering block 0: a positional row has batch 1, as all texts share it.
    hooks.append(("blocks.0.hook_in", lambda value, hook: keep(value, hook, writes[0].label)))
    with torch.enable_grad(), Float64Throughout(), model.hooks(fwd_hooks=hooks):
        loss = summed_loss(model(tokens, return_type="logits"), tokens)
        found = torch.autograd.grad(loss, [seen[write.label] for write in writes])
    # The last position predicts nothing, and its gradient is zero.
    return StreamGradients([write.label for write in writes], torch.stack(found)[:, :, :-1])


def summed_loss(
    logits: Float[Tensor, "batch pos d_vocab"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, ""]:
    """Return the next-token loss summed over places, in nats."""
    return torch.nn.functional.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="sum")


def longer_than_one(tokens: Int[Tensor, "batch pos"], caller: str) -> Int[Tensor, "batch pos"]:
    """Return ``tokens``; texts of one token, which predict nothing, are refused."""
    if tokens.shape[1] < 2:
        raise ValueError(f"{caller}: a text of one token has no next token to predict; lengthen it")
    return tokens
