r"""A small language model in which the residual connection is one readable choice.

A :class:`Stack` is an embedding, L blocks of attention and MLP (or of an MLP alone) and an
unembedding, on TransformerLens's ``HookedRootModule``. ``VARIANTS`` names the choices: a connection
(:mod:`residual_stream.connections`) and an initialisation (:mod:`residual_stream.initialisation`).
Hook points carry the names that a ``TransformerBridge``
gives them, so :func:`residual_stream.record` and its audit work on every variant whose stream is
a sum; the others are refused by name, because their earlier writes are rescaled or replaced.

Import it by name, ``from residual_stream import blocks``: it brings TransformerLens along, which
takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.exceptions import StopAtLayerException

from .connections import VARIANTS, Highway
from .initialisation import standard_deviation
from .wiring import Boundary, Read, Wiring, WiringError, Write


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """The shape of a stack.

    Attributes:
        variant: A name of ``VARIANTS``.
        n_layers: Blocks.
        d_model: Width of the stream.
        d_vocab: Token ids that it reads and predicts.
        n_ctx: Longest text; with attention every position has a learned vector.
        n_heads: Attention heads in a block, or None for blocks of an MLP alone.
        d_mlp: Width inside the MLP; four times ``d_model`` if None.
        seed: Seed of the initialisation, drawn on the CPU.
        device: Where the weights are; the stack keeps it true.
    """

    variant: str
    n_layers: int
    d_model: int
    d_vocab: int
    n_ctx: int = 64
    n_heads: int | None = 4
    d_mlp: int | None = None
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Refuse shapes that no stack can have."""
        if self.variant not in VARIANTS:
            raise ValueError(f"StackConfig: variant {self.variant!r}; it may be {list(VARIANTS)}")
        if self.n_layers < 1:
            raise ValueError(f"StackConfig: {self.n_layers} layers; pass 1 or more")
        if self.n_heads is not None and (self.n_heads < 1 or self.d_model % self.n_heads):
            raise ValueError(
                f"StackConfig: d_model {self.d_model} does not divide into {self.n_heads} heads"
            )

    @property
    def n_branches(self) -> int:
        """Branches in the whole stack."""
        return self.n_layers * (1 if self.n_heads is None else 2)

    @property
    def model_name(self) -> str:
        """The stack in words."""
        return f"{self.variant}, {self.n_layers} layers of {self.d_model}"


class Attention(nn.Module):
    """Causal self-attention without biases: q, k, v, o."""

    def __init__(self, width: int, n_heads: int) -> None:
        """Make the four maps."""
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
        """Return what every position gathers from itself and those before it."""

        def heads(linear: nn.Linear) -> Tensor:  # [batch, head, pos, d_head]
            return linear(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

        z = F.scaled_dot_product_attention(
            heads(self.q), heads(self.k), heads(self.v), is_causal=True
        )
        return self.o(z.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """Two maps with a ReLU between, as in the papers whose constants are tested here."""

    def __init__(self, width: int, hidden: int) -> None:
        """Make the two maps."""
        super().__init__()
        self.W_in, self.W_out = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
        """Return what every position makes of itself."""
        return self.W_out(F.relu(self.W_in(x)))


class Block(nn.Module):
    """Attention (if any) and MLP, each with its connection and the hook point of its write."""

    def __init__(self, cfg: StackConfig, layer: int) -> None:
        """Make block ``layer``, counted from 0."""
        super().__init__()
        connect = VARIANTS[cfg.variant].connection
        place = {
            "layer": layer + 1, "n_layers": cfg.n_layers, "n_branches": cfg.n_branches,
        }  # fmt: skip
        self.hook_in, self.hook_mlp_in, self.hook_mlp_out = HookPoint(), HookPoint(), HookPoint()
        if cfg.n_heads is not None:
            self.attn = Attention(cfg.d_model, cfg.n_heads)
            self.attn_connection = connect(cfg.d_model, **place)
            self.hook_attn_in, self.hook_attn_out = HookPoint(), HookPoint()
        self.mlp = MLP(cfg.d_model, cfg.d_mlp or 4 * cfg.d_model)
        self.mlp_connection = connect(cfg.d_model, **place)

    def forward(self, x: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
        """Return the stream after this block."""
        x = self.hook_in(x)
        if hasattr(self, "attn"):
            x = self.attn_connection(self.hook_attn_in(x), self.attn, self.hook_attn_out)
        return self.mlp_connection(self.hook_mlp_in(x), self.mlp, self.hook_mlp_out)


class HookedEmbedding(nn.Embedding):
    """A table with the hook point of its write."""

    def __init__(self, size: int, width: int) -> None:
        """Make the table."""
        super().__init__(size, width)
        self.hook_out = HookPoint()

    def forward(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d"]:
        """Return the rows."""
        return self.hook_out(super().forward(ids))


class FinalNorm(nn.Module):
    """The last norm, or nothing, behind the hook point at which the stream is seen whole."""

    def __init__(self, width: int, *, norm: bool) -> None:
        """Make the norm, if there is one."""
        super().__init__()
        self.hook_in = HookPoint()
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()

    def forward(self, x: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
        """Return what the unembedding reads."""
        return self.norm(self.hook_in(x))


class Stack(HookedRootModule):
    """A language model of a variant of ``VARIANTS``.

    Args:
        cfg: Its shape.

    Example:
        >>> import residual_stream as rs
        >>> model = Stack(StackConfig(variant="ReZero", n_layers=3, d_model=16, d_vocab=11))
        >>> stream = rs.record(model, [3, 1, 4])
        >>> stream.labels[:4], stream.audit().ok
        (['embed', 'pos_embed', '0_attn_out', '0_mlp_out'], True)
    """

    tokenizer = None

    def __init__(self, cfg: StackConfig) -> None:
        """Make the stack and draw its weights."""
        super().__init__()
        self._shape = cfg
        with torch.random.fork_rng(devices=[]):  # the layers' own first draws are replaced
            torch.manual_seed(cfg.seed)
            self.embed = HookedEmbedding(cfg.d_vocab, cfg.d_model)
            if cfg.n_heads is not None:
                self.pos_embed = HookedEmbedding(cfg.n_ctx, cfg.d_model)
            self.blocks = nn.ModuleList(Block(cfg, layer) for layer in range(cfg.n_layers))
            final = VARIANTS[cfg.variant].connection.final_norm
            self.ln_final = FinalNorm(cfg.d_model, norm=final)
            self.unembed = nn.Linear(cfg.d_model, cfg.d_vocab, bias=False)
            self._initialise()
        self.setup()

    def _initialise(self) -> None:
        """Draw every weight: rows of unit mean square at the bottom, then the variant's scheme."""
        cfg, scheme = self._shape, VARIANTS[self._shape.variant].scheme
        tables = [self.embed] if cfg.n_heads is None else [self.embed, self.pos_embed]
        for table in tables:
            nn.init.normal_(table.weight, std=len(tables) ** -0.5)
        nn.init.normal_(self.unembed.weight, std=cfg.d_model**-0.5)
        if scheme == "fixup":
            nn.init.zeros_(self.unembed.weight)
        for block in self.blocks:
            for name, linear in block.named_modules():
                if not isinstance(linear, nn.Linear):
                    continue
                role = name.rpartition(".")[2].removeprefix("W_")
                fan_out, fan_in = linear.weight.shape
                std = standard_deviation(
                    scheme, role, fan_in=fan_in, fan_out=fan_out,
                    n_layers=cfg.n_layers, n_branches=cfg.n_branches,
                )  # fmt: skip
                nn.init.normal_(linear.weight, std=std)
                if linear.bias is not None:
                    bias = Highway.gate_bias if role == "gate" else 0.0
                    nn.init.constant_(linear.bias, bias)

    @property
    def cfg(self) -> StackConfig:
        """The shape, with the device where the weights are now."""
        return replace(self._shape, device=str(self.embed.weight.device))

    def get_hook_point(self, name: str) -> HookPoint | None:
        """Return the hook point called ``name``, or None, as a ``TransformerBridge`` does."""
        return self.hook_dict.get(name)

    def declared_wiring(self) -> Wiring:
        """Return where this stack writes; :func:`residual_stream.read_wiring` asks for it.

        Raises:
            WiringError: The variant's stream is not a sum of writes.
        """
        variant = VARIANTS[self._shape.variant]
        if not variant.sums:
            raise WiringError(
                f"read_wiring: a {self._shape.variant} stack has no ledger: its next stream is "
                f"{variant.connection.formula}, so what was written before is rescaled or "
                "replaced; read its hook points instead"
            )
        writes = [Write("embed", "embed", -1, ("embed.hook_out",))]
        if self._shape.n_heads is not None:
            writes.append(Write("pos_embed", "pos_embed", -1, ("pos_embed.hook_out",)))
        boundaries = [Boundary("blocks.0.hook_in", len(writes), "the embedding", -1)]
        kinds = ("mlp",) if self._shape.n_heads is None else ("attn", "mlp")
        reads = []
        for layer in range(self._shape.n_layers):
            for kind in kinds:
                hook = f"blocks.{layer}.hook_{kind}_out"
                read = f"blocks.{layer}.hook_{kind}_in"
                reads.append(Read(read, len(writes), f"the {kind} branch of block {layer}", layer))
                writes.append(Write(f"{layer}_{kind}_out", kind, layer, (hook,)))
            last = layer + 1 == self._shape.n_layers
            after = "ln_final.hook_in" if last else f"blocks.{layer + 1}.hook_in"
            boundaries.append(Boundary(after, len(writes), f"block {layer} (Block)", layer))
        return Wiring(tuple(writes), tuple(boundaries), tuple(reads))

    def embedded(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        """Return the stream below the first block."""
        if self._shape.n_heads is None:
            return self.embed(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        return self.embed(tokens) + self.pos_embed(places)

    def run_blocks(
        self, residual: Float[Tensor, "batch pos d_model"], *, start_at_layer: int = 0
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the stream after the last block, from ``residual`` below block ``start_at_layer``.

        Any vectors will do for ``residual``: this is how a stack is trained on vectors, not tokens.
        """
        for block in self.blocks[start_at_layer:]:
            residual = block(residual)
        return residual

    def forward(
        self,
        inputs: Int[Tensor, "batch pos"] | Float[Tensor, "batch pos d_model"],
        *,
        return_type: str | None = "logits",
        start_at_layer: int | None = None,
    ) -> Float[Tensor, "batch pos d"] | None:
        """Return the logits, ``[batch, pos, d_vocab]``.

        Args:
            inputs: Token ids; or with ``start_at_layer`` the stream that enters that block.
            return_type: ``"logits"``, or None to return nothing.
            start_at_layer: The first block to run.
        """
        try:
            stream = inputs if start_at_layer is not None else self.embedded(inputs)
            top = self.run_blocks(stream, start_at_layer=start_at_layer or 0)
            logits = self.unembed(self.ln_final(top))
        except StopAtLayerException as stop:  # a hook asked for no more, as `record` does
            return stop.layer_output
        return None if return_type is None else logits
