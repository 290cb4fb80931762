r"""An attention-only model multiplied out into its paths, exactly.

With every attention pattern and every norm's divisor held at the values of the actual run, a head
is a linear map of the stream, and the model becomes a product that can be expanded:

.. math:: x_L = \prod_l \Big(1 + \sum_h H_{l,h}\Big)\, x_0 + \text{biases},

one term for every choice of one head, or none, in every layer. Each term is a path from the
embedding to the top; a term of two heads is a virtual head.

Source: Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits*, path expansion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .inputs import to_tokens
from .readout import Readout, read_readout
from .rerun import Hook, run_to_top
from .wiring import read_wiring

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

Path = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, repr=False)
class PathExpansion:
    """What every path brings to the top of the stream, patterns and divisors held.

    Attributes:
        paths: For each term the heads it goes through as ``(layer, head)``, from the bottom up; the
            empty path is the embedding itself.
        terms: What arrives at the top by each path.
        biases: What arrives there that comes from no token: the branches' biases, passed on.
        top: The model's own top of the stream.
        readout: The final norm and unembedding.
    """

    paths: list[Path]
    terms: Float[Tensor, "path batch pos d_model"]
    biases: Float[Tensor, "batch pos d_model"]
    top: Float[Tensor, "batch pos d_model"]
    readout: Readout

    @property
    def labels(self) -> list[str]:
        """Names of the paths: ``"direct"``, ``"L0H1"``, ``"L0H1 → L1H3"``."""
        return [" → ".join(f"L{i}H{h}" for i, h in path) or "direct" for path in self.paths]

    @property
    def lengths(self) -> Int[Tensor, " path"]:
        """How many heads each path goes through."""
        return torch.tensor([len(path) for path in self.paths])

    @cached_property
    def error(self) -> float:
        """Largest distance of terms plus biases from the model's top, over the top's length."""
        gap = (self.terms.sum(0) + self.biases - self.top).norm(dim=-1)
        return float((gap / self.top.norm(dim=-1)).max())

    def logits(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "path batch pos"]:
        """Return every path's share of a target's logit, measured from the vocabulary's mean.

        Args:
            ids: One target token per place.

        Returns:
            Shares in logits. With the share of ``biases`` and the readout's constants they add up
            to the logit, as in :func:`residual_stream.logit_attribution`.
        """
        direction = self.readout.direction(ids) / self.readout.sigma(self.top)[..., None]
        return torch.einsum("kbpd,bpd->kbp", self.terms.double(), direction).to(self.terms.dtype)

    def to_frame(self, ids: Int[Tensor, "batch pos"]) -> pd.DataFrame:
        """Every path as a row: length, mean share of the target's logit, mean size at the top."""
        shares = self.logits(ids)
        return pd.DataFrame(
            {
                "path": self.labels,
                "length": self.lengths.tolist(),
                "logits": shares.mean((1, 2)).cpu().numpy(),
                "size": self.terms.norm(dim=-1).mean((1, 2)).cpu().numpy(),
            }
        )

    def __repr__(self) -> str:
        """One line: how many paths, the longest, whether they add up."""
        return (
            f"PathExpansion({len(self.paths)} paths of up to {int(self.lengths.max())} heads, "
            f"{self.top[..., 0].numel()} places; off the model's top by {self.error:.1e})"
        )


def expand_paths(
    model: TransformerBridge,
    text: str | Sequence[str] | Sequence[int] | Int[Tensor, " seq"] | Int[Tensor, "batch seq"],
) -> PathExpansion:
    """Return an attention-only model's run as one term per path.

    Args:
        model: A ``TransformerBridge`` whose blocks have attention and no MLP.
        text: One text, several texts of equal token length, or token ids.

    Returns:
        ``(1 + heads) ** layers`` terms, and their distance from the model's own top.

    Raises:
        ValueError: A block with an MLP (its nonlinearity cannot be held and stay a path), or more
            than 4,096 paths.

    Example:
        >>> import residual_stream as rs
        >>> expansion = rs.expand_paths(rs.load("induction"), "In the beginning")
        >>> len(expansion.paths), expansion.labels[0], expansion.error < 1e-5
        (25, 'direct', True)
    """
    wiring = read_wiring(model)
    for write in wiring.block_writes:
        if write.kind != "attn":
            raise ValueError(
                f"expand_paths: block {write.layer} writes {write.label!r}; only attention-only "
                "models multiply out, since an MLP held in place is no longer a map of its input"
            )
    n_layers, n_heads = len(model.blocks), model.cfg.n_heads
    if (1 + n_heads) ** n_layers > 4096:
        raise ValueError(
            f"expand_paths: {n_layers} layers of {n_heads} heads make {(1 + n_heads) ** n_layers} "
            "paths; it lists up to 4096"
        )
    tokens = to_tokens(model, text, caller="expand_paths")
    run = _Run(n_layers)
    top = run_to_top(model, tokens, fwd_hooks=run.hooks())
    paths: list[Path] = [()]
    terms = run.entering[0][None]  # [path, batch, pos, d_model]
    biases = torch.zeros_like(run.entering[0])
    with torch.no_grad():
        for layer in range(n_layers):
            held = _HeldLayer(model, layer, run)
            through = held.heads(terms)  # [path, head, batch, pos, d_model]
            biases = biases + held.heads(biases[None])[0].sum(0) + held.constant()
            longer = [(*path, (layer, head)) for path in paths for head in range(n_heads)]
            paths, terms = paths + longer, torch.cat([terms, through.flatten(0, 1)])
    return PathExpansion(paths, terms, biases, top, read_readout(model))


class _Run:
    """The actual run: the stream entering each block, and the attention patterns."""

    def __init__(self, n_layers: int) -> None:
        self.n_layers = n_layers
        self.entering: dict[int, Tensor] = {}
        self.patterns: dict[int, Tensor] = {}

    def hooks(self) -> list[Hook]:
        def keep(into: dict[int, Tensor], layer: int) -> Any:
            return lambda value, hook: into.update({layer: value.detach().clone()})

        return [
            hook
            for i in range(self.n_layers)
            for hook in (
                (f"blocks.{i}.hook_in", keep(self.entering, i)),
                (f"blocks.{i}.attn.hook_pattern", keep(self.patterns, i)),
            )
        ]


class _HeldLayer:
    """One attention layer with its patterns and its norm's divisor held."""

    def __init__(self, model: TransformerBridge, layer: int, run: _Run) -> None:
        self.attn = model.blocks[layer].attn
        self.norm = model.blocks[layer].ln1.original_component
        self.pattern = run.patterns[layer]  # [batch, head, query, key]
        x = run.entering[layer]
        self.centred = not getattr(model.cfg, "uses_rms_norm", False)
        if self.centred:
            x = x - x.mean(-1, keepdim=True)
        eps = getattr(self.norm, "variance_epsilon", getattr(self.norm, "eps", model.cfg.eps))
        self.sigma = (x.square().mean(-1, keepdim=True) + eps).sqrt()

    def heads(self, terms: Float[Tensor, "path batch pos d_model"]) -> Tensor:
        """What each head makes of each term: linear, no biases."""
        x = terms - terms.mean(-1, keepdim=True) if self.centred else terms
        x = x / self.sigma * self.norm.weight
        values = torch.einsum("kbtd,hde->kbhte", x, self.attn.W_V)
        mixed = torch.einsum("bhqt,kbhte->khbqe", self.pattern, values)
        return torch.einsum("khbqe,hed->khbqd", mixed, self.attn.W_O)

    def constant(self) -> Tensor:
        """What the layer writes whatever it reads: biases of norm, values and output."""
        attn, batch, length = self.attn, len(self.pattern), self.pattern.shape[-1]
        values = torch.zeros_like(attn.W_V[:, 0])  # [head, d_head]
        if getattr(self.norm, "bias", None) is not None:
            values = values + torch.einsum("d,hde->he", self.norm.bias, attn.W_V)
        if attn.b_V is not None:
            values = values + attn.b_V
        written = torch.einsum("he,hed->d", values, attn.W_O)  # patterns add up to 1
        if attn.b_O is not None:
            written = written + attn.b_O
        return written.expand(batch, length, -1)
