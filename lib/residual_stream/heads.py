"""What attention heads do: where they look, and what their output weights do to what they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from .composition import per_head
from .readout import read_readout
from .rerun import run_to_top
from .wiring import block_class

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

PATTERNS = ("previous", "duplicate", "induction")


@dataclass(frozen=True, eq=False, repr=False)
class HeadScores:
    """How much of its attention every head gives to three places, on repeated random tokens.

    Attributes:
        previous: Attention to the token before, mean over queries from the third token on.
        duplicate: Attention to the same token's first occurrence, from the second copy.
        induction: Attention to the token *after* the same token's first occurrence.
        tokens: The tokens measured on.
    """

    previous: Float[Tensor, "layer head"]
    duplicate: Float[Tensor, "layer head"]
    induction: Float[Tensor, "layer head"]
    tokens: Int[Tensor, "batch seq"]

    def top(self, pattern: str, k: int = 5) -> list[tuple[int, int]]:
        """Return the ``k`` heads that follow ``pattern`` most, as ``(layer, head)``.

        Raises:
            ValueError: An unknown pattern.
        """
        if pattern not in PATTERNS:
            raise ValueError(
                f"HeadScores.top: pattern {pattern!r} is not known; pass one of "
                f"{', '.join(repr(name) for name in PATTERNS)}"
            )
        scores = getattr(self, pattern)
        best = scores.flatten().topk(min(k, scores.numel())).indices.tolist()
        return [divmod(index, scores.shape[1]) for index in best]

    def to_frame(self) -> pd.DataFrame:
        """Every head as a row: layer, head and its three scores."""
        n_layers, n_heads = self.previous.shape
        columns = {name: getattr(self, name).flatten().cpu().numpy() for name in PATTERNS}
        index = [divmod(i, n_heads) for i in range(n_layers * n_heads)]
        return pd.DataFrame(
            {"layer": [a for a, _ in index], "head": [b for _, b in index], **columns}
        )

    def __repr__(self) -> str:
        """One line: the leading head of each pattern."""
        best = []
        for name in PATTERNS:
            layer, head = self.top(name, 1)[0]
            best.append(f"{name} L{layer}H{head} {float(getattr(self, name)[layer, head]):.2f}")
        return (
            f"HeadScores({', '.join(best)}; {self.tokens.shape[0]} × {self.tokens.shape[1]} tokens)"
        )

    def _repr_markdown_(self) -> str:
        lines = ["| pattern | heads, with their share of attention |", "|---|---|"]
        for name in PATTERNS:
            scores = getattr(self, name)
            cells = [f"L{a}H{b} {float(scores[a, b]):.2f}" for a, b in self.top(name, 5)]
            lines.append(f"| {name} | {', '.join(cells)} |")
        return "\n".join(lines)


def repeated_random_tokens(
    model: TransformerBridge, *, length: int = 40, batch: int = 4, seed: int = 0
) -> Int[Tensor, "batch seq"]:
    """Return random tokens written twice, after a beginning-of-text token where the model has one.

    No token of the second copy can be told from language: only from the first copy.

    Args:
        model: Its vocabulary is drawn from, without the tokenizer's special tokens.
        length: Length of one copy, in tokens; all tokens of a copy differ.
        batch: Number of rows.
        seed: Seed of the draw, made on the CPU.

    Returns:
        Token ids, ``[batch, 2 * length]`` or one more.

    Raises:
        ValueError: More tokens than the model reads, or than the vocabulary has.

    Example:
        >>> import residual_stream as rs
        >>> tokens = rs.repeated_random_tokens(rs.load("bench"), length=5)
        >>> bool((tokens[:, -5:] == tokens[:, -10:-5]).all())
        True
    """
    special = set(getattr(model.tokenizer, "all_special_ids", []) or [])
    ids = torch.tensor([i for i in range(model.W_U.shape[1]) if i not in special])
    bos = getattr(model.tokenizer, "bos_token_id", None)
    seq = 2 * length + (bos is not None)
    if seq > model.cfg.n_ctx or length > len(ids) or length < 2:
        raise ValueError(
            f"repeated_random_tokens: length {length} makes {seq} tokens; the model reads "
            f"{model.cfg.n_ctx} and has {len(ids)} tokens to draw, and a copy is at least 2 long"
        )
    generator = torch.Generator().manual_seed(seed)
    rows = [ids[torch.randperm(len(ids), generator=generator)[:length]] for _ in range(batch)]
    tokens = torch.stack(rows).repeat(1, 2)
    if bos is not None:
        tokens = torch.cat([torch.full((batch, 1), bos), tokens], dim=1)
    return tokens.to(model.cfg.device)


def head_scores(
    model: TransformerBridge, *, length: int = 40, batch: int = 4, seed: int = 0
) -> HeadScores:
    """Return every head's previous-token, duplicate-token and induction score.

    Args:
        model: A ``TransformerBridge`` with attention in every block.
        length: Length of one copy of the random tokens.
        batch: Number of rows.
        seed: Seed of the tokens.

    Returns:
        Mean attention, between 0 and 1, over rows and queries.

    Raises:
        ValueError: More tokens than the model reads, or than the vocabulary has; a block without
            an attention pattern.

    Source:
        Olsson et al. 2022, *In-context Learning and Induction Heads*.

    Example:
        >>> import residual_stream as rs
        >>> rs.head_scores(rs.load("bench"), length=8).previous.shape
        torch.Size([4, 4])
    """
    points = [f"blocks.{i}.attn.hook_pattern" for i in range(len(model.blocks))]
    bare = [i for i, point in enumerate(points) if model.get_hook_point(point) is None]
    if bare:
        raise ValueError(
            f"head_scores: block {bare[0]} ({block_class(model.blocks[bare[0]])}) has no attention "
            "pattern to score"
        )
    tokens = repeated_random_tokens(model, length=length, batch=batch, seed=seed)
    n_layers, n_heads = len(model.blocks), model.cfg.n_heads
    scores = torch.zeros(len(PATTERNS), n_layers, n_heads, device=tokens.device)
    seq = tokens.shape[1]
    second = torch.arange(seq - length, seq, device=tokens.device)
    places = (
        (torch.arange(2, seq, device=tokens.device), 1),
        (second, length),
        (second, length - 1),
    )

    def reduce(pattern: Tensor, layer: int) -> None:
        for row, (query, back) in enumerate(places):
            scores[row, layer] = pattern[:, :, query, query - back].float().mean((0, 2))

    hooks = [(point, lambda value, hook, i=i: reduce(value, i)) for i, point in enumerate(points)]
    run_to_top(model, tokens, fwd_hooks=hooks)
    return HeadScores(*scores, tokens=tokens)


def ov_eigenvalues(
    model: TransformerBridge, *, circuit: str = "full"
) -> Complex[Tensor, "layer head d_head"]:
    r"""Return the non-zero eigenvalues of every head's OV circuit.

    ``"ov"`` is :math:`W_V W_O`, stream to stream. ``"full"`` is :math:`W_E\,\gamma_1 W_V W_O\,
    \gamma_f W_U`, token to logit, with both norms' gains; its non-zero eigenvalues are those of the
    ``d_head × d_head`` matrix :math:`W_O\gamma_f W_U W_E\gamma_1 W_V`.

    Args:
        model: A ``TransformerBridge`` with attention in every block.
        circuit: ``"full"`` or ``"ov"``.

    Returns:
        ``d_head`` eigenvalues per head, in no order.

    Raises:
        ValueError: An unknown circuit.

    Source:
        Elhage et al. 2021, "Detecting copying behavior".

    Example:
        >>> import residual_stream as rs
        >>> rs.ov_eigenvalues(rs.load("bench")).is_complex()
        True
    """
    if circuit not in ("ov", "full"):
        raise ValueError(f"ov_eigenvalues: circuit {circuit!r} is not known; pass 'full' or 'ov'")
    table = None
    if circuit == "full":
        readout = read_readout(model)
        table = readout.gain.float()[:, None] * (readout.W_U.float() @ model.W_E.detach().float())
        if readout.centred:
            table = table - table.mean(0, keepdim=True)
    found = []
    for block in model.blocks:
        W_V = per_head(block.attn.W_V.detach().float(), model.cfg.n_heads)
        if table is not None:
            gain = block.ln1.original_component.weight.detach().float()
            if getattr(model.cfg, "rmsnorm_uses_offset", False):
                gain = 1.0 + gain
            W_V = table @ (gain[:, None] * W_V)
        # In float64 on the CPU: eigenvalues of such matrices are sensitive, and some devices
        # have no general eigenvalue solver.
        inner = block.attn.W_O.detach().double().cpu() @ W_V.double().cpu()
        found.append(torch.linalg.eigvals(inner))
    return torch.stack(found)


def copying_scores(
    eigenvalues: Complex[Tensor, "layer head d_head"],
) -> Float[Tensor, "layer head"]:
    r"""Return :math:`\sum\lambda / \sum|\lambda|` of every head: 1 if all are positive, −1 if none.

    Args:
        eigenvalues: As :func:`ov_eigenvalues` returns them.

    Returns:
        Scores between −1 and 1.

    Source:
        Elhage et al. 2021, "Detecting copying behavior".

    Example:
        >>> copying_scores(torch.tensor([[[1 + 0j, 3 + 0j], [1 + 0j, -1 + 0j]]])).tolist()
        [[1.0, 0.0]]
    """
    return (eigenvalues.sum(-1).real / eigenvalues.abs().sum(-1)).float()
