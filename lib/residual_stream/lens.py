r"""The logit lens by depth: what the model would say if it stopped here.

The lens puts the stream after layer :math:`l` through the final norm and unembedding. It is a
reading, not a decomposition: the divisor is that of the stream *there*, so the lens of a sum is not
the sum of the lenses.

Source: nostalgebraist 2020, *interpreting GPT: the logit lens*; Belrose et al. 2023, *Eliciting
Latent Predictions from Transformers with the Tuned Lens*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .inputs import to_positions, to_tokens
from .wiring import block_class, final_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformer_lens.model_bridge import TransformerBridge


@dataclass(frozen=True, eq=False, repr=False)
class LensByDepth:
    """How far every depth's reading is from the model's own prediction.

    Attributes:
        labels: TransformerLens's names of the depths, ``0_pre`` to ``final_post``.
        top_ids: The token the lens puts first.
        agrees: Whether that is the model's own first token.
        kl: KL(model ‖ lens), in nats: what reading here instead of at the top costs.
        uniform_kl: KL(model ‖ uniform), in nats: the same for a reader who knows nothing.
    """

    labels: list[str]
    top_ids: Int[Tensor, "depth batch pos"]
    agrees: Bool[Tensor, "depth batch pos"]
    kl: Float[Tensor, "depth batch pos"]
    uniform_kl: Float[Tensor, "batch pos"]

    def to_frame(self) -> pd.DataFrame:
        """Every depth as a row: share of places that agree, mean and median KL in nats."""
        places = self.kl.reshape(len(self.labels), -1)
        return pd.DataFrame(
            {
                "depth": self.labels,
                "agreement": self.agrees.float().mean((1, 2)).cpu().numpy(),
                "mean KL": places.mean(1).cpu().numpy(),
                "median KL": places.median(1).values.cpu().numpy(),
            }
        )

    def __repr__(self) -> str:
        """One line: depths, places, agreement half way."""
        half = len(self.labels) // 2
        return (
            f"LensByDepth({len(self.labels)} depths × {self.kl[0].numel()} places; half way "
            f"{float(self.agrees[half].float().mean()):.0%} agree)"
        )

    def _repr_markdown_(self) -> str:
        rows = [
            f"| {d} | {a:.0%} | {m:.2f} | {q:.2f} |"
            for d, a, m, q in self.to_frame().itertuples(index=False)
        ]
        return "| depth | agree | mean KL (nats) | median |\n|---|---|---|---|\n" + "\n".join(rows)


def lens_by_depth(
    model: TransformerBridge,
    text: str | Sequence[str] | Sequence[int] | Int[Tensor, " seq"] | Int[Tensor, "batch seq"],
    *,
    positions: slice | None = None,
    chunk: int = 8,
) -> LensByDepth:
    """Read the stream at every depth with TransformerLens's ``logit_lens``, beside the top.

    Args:
        model: A ``TransformerBridge``, as :func:`residual_stream.load` returns it.
        text: One text, several texts of equal token length, or token ids.
        positions: Which positions to read; all if None. The model always reads the whole text.
        chunk: Positions whose full distributions are held at a time.

    Returns:
        Agreement and KL(model ‖ lens) at every depth and position.

    Raises:
        ValueError: As :func:`residual_stream.record`; or a post-LN model, whose stream has been
            through a norm at every depth already.

    Example:
        >>> import residual_stream as rs
        >>> lens = rs.lens_by_depth(rs.load("bench"), "In the beginning")
        >>> lens.labels[0], lens.labels[-1], bool(lens.agrees[-1].all())
        ('0_pre', 'final_post', True)
    """
    # Imported here: TransformerLens takes seconds to import.
    from transformer_lens.tools.analysis import logit_lens

    if final_norm(model) != "ln_final":
        raise ValueError(
            f"lens_by_depth: {block_class(model.blocks[0])} is post-LN: its stream goes through "
            "its last norm in the last block, and the lens has no final norm to read others by"
        )
    tokens = to_tokens(model, text, caller="lens_by_depth")
    names = [f"blocks.{i}.hook_resid_pre" for i in range(len(model.blocks))]
    names.append(f"blocks.{len(model.blocks) - 1}.hook_resid_post")
    _, cache = model.run_with_cache(tokens, names_filter=names)
    wanted = to_positions(positions, tokens.shape[1], caller="lens_by_depth").tolist()
    top_ids, kls, entropies = [], [], []
    labels: list[str] = []
    for start in range(0, len(wanted), chunk):
        reading = logit_lens(
            model, cache=cache, positions=wanted[start : start + chunk], return_type="log_probs"
        )
        labels = list(reading.labels)
        logp = reading.readout.values.float()  # [depth, batch, pos, d_vocab]
        own, n_vocab = logp[-1], logp.shape[-1]
        p = own.exp()
        entropy = -torch.linalg.vecdot(p, own)
        # KL = −H − Σ p log q, as a dot product: no second tensor of the vocabulary's size.
        kls.append(-entropy - torch.linalg.vecdot(p.expand_as(logp), logp))
        entropies.append(math.log(n_vocab) - entropy)
        top_ids.append(logp.argmax(-1))
    ids = torch.cat(top_ids, dim=2)
    kl = torch.cat(kls, dim=2).clamp(min=0.0)
    return LensByDepth(labels, ids, ids == ids[-1:], kl, torch.cat(entropies, dim=1))
