r"""Take layers out, or put them in another order, and run the rest again.

What is left of a prediction without a layer is a question about the whole model: every later layer
reads a stream that it has never met. The streams below the deleted layer do not change, so they
are computed once; above it, the runs without different layers go side by side in one batch.

Source: Veit et al. 2016, *Residual Networks Behave Like Ensembles of Relatively Shallow Networks*,
section 4; Lad et al. 2024, *The Remarkable Robustness of LLMs*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .inputs import to_positions, to_tokens
from .readout import Readout, own_logits, read_readout
from .rerun import Hook, run_blocks, run_to_top
from .wiring import Wiring, block_class, read_wiring

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

Positions = int | slice | Sequence[int] | None
_BRANCHES = {"layer": ("attn", "mlp"), "attn": ("attn",), "mlp": ("mlp",)}
_AFTER_FIRST = slice(1, None)
_PLACES = 64  # at which predictions are compared side by side


@dataclass(frozen=True, eq=False, repr=False)
class Departure:
    """How far each changed run departs from the intact model, place by place.

    Attributes:
        runs: What was changed in each run: the deleted layer, or the order of the layers.
        what: In words what the runs have in common.
        positions: The positions that were read.
        kept_at: Whether the most likely token is still the same.
        kl_at: KL(intact ‖ changed), in nats.
        loss_change_at: Next-token loss of the changed run minus the intact one, in nats; the text's
            last position has no next token and is left out.
    """

    runs: list[int] | list[tuple[int, ...]]
    what: str
    positions: Int[Tensor, " pos"]
    kept_at: Bool[Tensor, "layer batch pos"]
    kl_at: Float[Tensor, "layer batch pos"]
    loss_change_at: Float[Tensor, "layer batch next_pos"]

    @property
    def top1_kept(self) -> Float[Tensor, " layer"]:
        """Share of places at which the most likely token is still the same."""
        return self.kept_at.float().mean((1, 2))

    @property
    def kl(self) -> Float[Tensor, " layer"]:
        """Mean KL(intact ‖ changed) over the places, in nats."""
        return self.kl_at.mean((1, 2))

    @property
    def loss_change(self) -> Float[Tensor, " layer"]:
        """Mean change of the next-token loss, in nats per token."""
        return self.loss_change_at.mean((1, 2))

    def to_frame(self) -> pd.DataFrame:
        """Every run as a row: share of predictions kept, KL and loss change in nats."""
        return pd.DataFrame(
            {
                "run": self.runs,
                "top-1 kept": self.top1_kept.cpu().numpy(),
                "KL": self.kl.cpu().numpy(),
                "loss change": self.loss_change.cpu().numpy(),
            }
        )

    def __repr__(self) -> str:
        """One line: what was done, the places, the median and the worst run."""
        kept = self.top1_kept
        worst = self.runs[int(kept.argmin())]
        return (
            f"Departure({self.what}: {len(self.runs)} runs × {self.kept_at[0].numel()} places; "
            f"median top-1 kept {float(kept.median()):.0%}, least {float(kept.min()):.0%} in run "
            f"{worst})"
        )

    def _repr_markdown_(self) -> str:
        rows = [
            f"| {run} | {kept:.0%} | {kl:.2f} | {loss:+.2f} |"
            for run, kept, kl, loss in self.to_frame().itertuples(index=False)
        ]
        head = f"| {self.what} | top-1 kept | KL (nats) | loss change (nats) |\n|---|---|---|---|\n"
        return head + "\n".join(rows)


def delete_layers(
    model: TransformerBridge,
    text: str | Sequence[str] | Sequence[int] | Int[Tensor, " seq"] | Int[Tensor, "batch seq"],
    *,
    what: str = "layer",
    positions: Positions = None,
    read: Positions = _AFTER_FIRST,
    rows_at_once: int = 64,
) -> Departure:
    r"""Return what the model loses without each layer in turn.

    Deleting layer :math:`l` at a position means that nothing is added there:
    :math:`x_{l+1} = x_l`. Layers above run again, and read what is then in the stream.

    Args:
        model: A ``TransformerBridge``, as :func:`residual_stream.load` returns it.
        text: One text, several texts of equal token length, or token ids.
        what: ``"layer"`` deletes both branches of a block, ``"attn"`` or ``"mlp"`` one of them;
            ``"attn"`` is whatever mixes positions, a linear attention or a state-space mixer too.
            In a post-LN block ``"layer"`` takes the block's norms out with it, while without one
            branch the stream still goes through them.
        positions: Where to delete; everywhere if None. Other positions keep what the layer writes
            there, and go on reading this one.
        read: Which positions are compared; all if None. By default every position but the first,
            which lives by laws of its own.
        rows_at_once: How many texts run side by side; bounds the memory.

    Returns:
        ``.top1_kept``, ``.kl`` and ``.loss_change`` by deleted layer, and the same by place.

    Raises:
        ValueError: An unknown ``what``, a branch that a block lacks, or a text too short to read.
        IndexError: A position outside the text.

    Example:
        >>> import residual_stream as rs
        >>> without = rs.delete_layers(rs.load("bench"), "In the beginning God created")
        >>> without.top1_kept.shape, int(without.kl.argmax())
        (torch.Size([4]), 0)
    """
    if what not in _BRANCHES:
        raise ValueError(
            f"delete_layers: what = {what!r} is not known; pass {', '.join(map(repr, _BRANCHES))}"
        )
    tokens = to_tokens(model, text, caller="delete_layers")
    where = to_positions(positions, tokens.shape[1], caller="delete_layers").to(tokens.device)
    n_layers = len(model.blocks)
    wiring = read_wiring(model)
    hooks = [_deleting(model, wiring, layer, what, where) for layer in range(n_layers)]
    with torch.no_grad():
        intact = _Intact(model, tokens, read, caller="delete_layers")
        at_once = max(1, rows_at_once // len(tokens))
        found = []
        for first in range(0, n_layers, at_once):
            group = range(first, min(first + at_once, n_layers))
            stack = tokens.new_empty(0, *intact.entering[0].shape[1:], dtype=intact.dtype)
            for layer in range(first, n_layers):
                if len(stack):
                    stack = run_blocks(model, stack, layer, layer + 1)
                if layer in group:
                    without = intact.without(layer, what, where, hooks[layer])
                    stack = torch.cat([stack, without])
            found += [intact.compare(top) for top in stack.split(len(tokens))]
    return intact.departure(found, list(range(n_layers)), f"without {what}")


def reorder_layers(
    model: TransformerBridge,
    text: str | Sequence[str] | Sequence[int] | Int[Tensor, " seq"] | Int[Tensor, "batch seq"],
    orders: Sequence[Sequence[int]],
    *,
    read: Positions = _AFTER_FIRST,
) -> Departure:
    """Return what the model loses when its blocks run in other orders, or not all of them.

    Args:
        model: A ``TransformerBridge``, as :func:`residual_stream.load` returns it.
        text: One text, several texts of equal token length, or token ids.
        orders: For each run the blocks in the order in which they run. Blocks may be missing (a
            deletion) or stand elsewhere (a swap), or stand twice.
        read: Which positions are compared; all if None, by default every one but the first.

    Returns:
        As :func:`delete_layers`, one run per order.

    Raises:
        ValueError: No orders, a block that does not exist, or a text too short to read.

    Example:
        >>> import residual_stream as rs
        >>> model = rs.load("bench")
        >>> runs = rs.reorder_layers(model, "In the beginning", [[0, 1, 2, 3], [0, 2, 1, 3]])
        >>> float(runs.top1_kept[0])
        1.0
    """
    n_layers = len(model.blocks)
    plans = [tuple(int(layer) for layer in order) for order in orders]
    if not plans:
        raise ValueError("reorder_layers: got no orders; pass at least one list of blocks")
    for layer in {layer for plan in plans for layer in plan}:
        if not 0 <= layer < n_layers:
            raise ValueError(
                f"reorder_layers: block {layer} does not exist; the model has {n_layers}, counted "
                "from 0"
            )
    tokens = to_tokens(model, text, caller="reorder_layers")
    with torch.no_grad():
        intact = _Intact(model, tokens, read, caller="reorder_layers")
        found = []
        for plan in plans:
            same = _shared_prefix(plan)
            top = intact.entering[same]
            for layer in plan[same:]:
                top = run_blocks(model, top, layer, layer + 1)
            found.append(intact.compare(top))
    return intact.departure(found, plans, "order")


def _shared_prefix(plan: tuple[int, ...]) -> int:
    """How many blocks at the start of ``plan`` are the model's own first ones."""
    same = 0
    while same < len(plan) and plan[same] == same:
        same += 1
    return same


def _deleting(
    model: TransformerBridge, wiring: Wiring, layer: int, what: str, where: Tensor
) -> list[Hook]:
    """Hooks that keep a block's branches from writing at some positions."""

    def nothing(value: Tensor, hook: Any) -> Tensor:
        return value.index_fill(1, where, 0.0)

    # By the wiring: in BLOOM a branch's own output holds the stream, and is not what it writes.
    points: dict[str, list[str]] = {"attn": [], "mlp": []}
    for write in wiring.writes:
        if write.layer == layer and write.kind == "parallel":
            points["attn"].append(write.hooks[0])
            points["mlp"].append(write.hooks[1])
        elif write.layer == layer:
            points["mlp" if write.kind == "mlp" else "attn"] += write.hooks
    if what != "layer" and not points[what]:
        raise ValueError(
            f"delete_layers: block {layer} ({block_class(model.blocks[layer])}) has no {what} "
            "branch that could be deleted; use what='layer'"
        )
    return [(point, nothing) for branch in _BRANCHES[what] for point in points[branch]]


class _Intact:
    """The intact run: the stream at every block, and its predictions to compare with."""

    def __init__(
        self, model: TransformerBridge, tokens: Tensor, read: Positions, *, caller: str
    ) -> None:
        self.model, self.tokens = model, tokens
        length = tokens.shape[1]
        self.read = to_positions(read, length, caller=caller).to(tokens.device)
        # Places whose next token is in the text.
        self.ahead = self.read < length - 1
        if not bool(self.ahead.any()):
            raise ValueError(
                f"{caller}: at positions {self.read.tolist()} of {length} tokens there is no next "
                "token to predict; pass a longer text"
            )
        self.next_tokens = tokens.roll(-1, dims=1)[:, self.read].flatten()  # [place]
        self.readout: Readout = read_readout(model)
        self.entering: list[Tensor] = []
        hooks = [
            (f"blocks.{i}.hook_in", lambda value, hook: self.entering.append(value.clone()))
            for i in range(len(model.blocks))
        ]
        self.entering.append(run_to_top(model, tokens, fwd_hooks=hooks))
        self.dtype = self.entering[0].dtype
        p, entropy, best, loss = [], [], [], []
        for some, logits in self.logits(self.entering[-1]):
            log_total = logits.logsumexp(-1)
            # Not by log_softmax: in float32 on the CPU its probabilities add up to 1 ± 1e-5 only.
            logp = logits - log_total[:, None]
            p.append(logp.exp())
            entropy.append(-torch.linalg.vecdot(p[-1], logp))
            best.append(logits.argmax(-1))
            loss.append(self.loss_of(logits, log_total, some))
        self.p, self.entropy, self.best, self.loss = p, entropy, best, loss

    def logits(self, top: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The model's own logits at the places read, in float32, some places at a time.

        Logits of all places at once would not fit in any cache, and the memory for them would be
        asked for and given back with every comparison.
        """
        places = top[:, self.read].flatten(0, 1)
        for start in range(0, len(places), _PLACES):
            some = slice(start, start + _PLACES)
            logits = own_logits(self.model, self.readout, places[None, some])[0].float()
            yield some, self.readout.capped(logits)

    def loss_of(self, logits: Tensor, log_total: Tensor, some: slice) -> Tensor:
        """Next-token loss; of no use at the last position, which ``departure`` leaves out."""
        return log_total - logits.gather(-1, self.next_tokens[some, None])[:, 0]

    def without(self, layer: int, what: str, where: Tensor, hooks: list[Hook]) -> Tensor:
        """The stream after a block that writes nothing at some positions."""
        if what == "layer":  # nothing of the block needs to run again
            after = self.entering[layer + 1].clone()
            before = self.entering[layer][:, where]
            after[:, where] = before.to(after.dtype)  # Mamba's embedding may be coarser
            return after
        return run_blocks(self.model, self.entering[layer], layer, layer + 1, fwd_hooks=hooks)

    def compare(self, top: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kept, kls, changes = [], [], []
        for i, (some, logits) in enumerate(self.logits(top)):
            log_total = logits.logsumexp(-1)
            # KL = −H(p) − Σ p log q, as a dot product: no second tensor of the vocabulary's size.
            kl = -self.entropy[i] - torch.linalg.vecdot(self.p[i], logits) + log_total
            kept.append(logits.argmax(-1) == self.best[i])
            kls.append(kl.clamp(min=0.0))
            changes.append(self.loss_of(logits, log_total, some) - self.loss[i])
        shape = (len(self.tokens), len(self.read))
        change = torch.cat(changes).reshape(shape)[:, self.ahead]
        return torch.cat(kept).reshape(shape), torch.cat(kls).reshape(shape), change

    def departure(
        self, found: Sequence[tuple[Tensor, Tensor, Tensor]], runs: list[Any], what: str
    ) -> Departure:
        kept, kl, change = (torch.stack(parts) for parts in zip(*found, strict=True))
        return Departure(runs, what, self.read, kept, kl, change)
