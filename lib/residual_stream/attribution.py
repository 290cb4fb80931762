r"""Split a logit exactly into what each layer, sublayer, head or neuron put into it.

With the divisor :math:`\sigma` of the model's own top held fixed the readout is linear, so with
:math:`x = \sum_k w_k` and the direction :math:`d` of :meth:`Readout.direction`

.. math:: \mathrm{logit}_t - \overline{\mathrm{logit}} = \sum_k \frac{w_k \cdot d}{\sigma(x)}
          + \text{(biases)}.

A head's or neuron's share is :math:`a\,(W d)/\sigma` with its activation :math:`a` and its output
weights :math:`W`: the direction goes back through the weights, and no write of ``d_model`` numbers
is ever built for a single head or neuron.

Source: direct logit attribution as in Elhage et al. 2021, *A Mathematical Framework for Transformer
Circuits*, with the final norm's gain, divisor and biases explicit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .audit import LedgerError
from .branches import BRANCHES, branch_shares
from .inputs import to_positions
from .parts import BranchParts, along_each_write, rounding_allowance
from .readout import own_logits, read_readout
from .targets import DistinctTargets, Projection, Targets, target_ids
from .wiring import final_norm

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

    from .stream import ResidualStream

UNITS = ("layer", "sublayer", *BRANCHES)


@dataclass(frozen=True, eq=False, repr=False)
class Attribution:
    """A logit as the sum of its parts.

    Attributes:
        labels: The parts in the order written; biases of the readout last.
        values: Each part's share of the logit, in logits.
        logit: The model's own logit, before any soft-cap, from the vocabulary's mean if ``center``.
        remainder: ``logit`` minus the sum of ``values``: rounding.
        layers: The block of each part, −1 for the embedding's writes, ``n_layers`` for the readout.
        kinds: ``embed``, ``pos_embed``, ``attn``, ``mlp``, ``parallel``, ``layer``, ``head``,
            ``neuron``, ``expert``, ``bias``.
        unit: What the blocks' writes were split into.
        center: Whether logits are measured from the vocabulary's mean.
        scale: σ of the final norm at each place, by which every part is divided.
        soft_cap: The tanh bound the model applies after these logits, None for most models.
    """

    labels: list[str]
    values: Float[Tensor, "part batch *pos"]
    logit: Float[Tensor, "batch *pos"]
    remainder: Float[Tensor, "batch *pos"]
    layers: list[int]
    kinds: list[str]
    unit: str
    center: bool
    scale: Float[Tensor, "batch *pos"]
    soft_cap: float | None

    @property
    def relative_remainder(self) -> float:
        """Largest remainder beside its logit, or beside 1 logit where that is less."""
        return float((self.remainder.abs() / self.logit.abs().clamp(min=1.0)).max())

    def to_frame(self) -> pd.DataFrame:
        """Every part as a row: label, layer, kind and its value, one column per place."""
        flat = self.values.reshape(len(self.labels), -1).cpu()
        frame = pd.DataFrame({"part": self.labels, "layer": self.layers, "kind": self.kinds})
        names = ["value"] if flat.shape[1] == 1 else [f"value {i}" for i in range(flat.shape[1])]
        return pd.concat([frame, pd.DataFrame(flat.numpy(), columns=names)], axis=1)

    def top(self, k: int = 10, *, row: int = 0) -> pd.DataFrame:
        """Return the ``k`` parts of largest size, signed, of one place.

        Args:
            k: How many parts.
            row: Which place, counted over batch rows and positions.

        Returns:
            The parts with their value and their fraction of the logit.
        """
        values = self.values.reshape(len(self.labels), -1)[:, row].cpu()
        chosen = values.abs().topk(min(k, len(values))).indices.tolist()
        logit = float(self.logit.reshape(-1)[row])
        rows = [(self.labels[i], float(values[i]), float(values[i]) / logit) for i in chosen]
        return pd.DataFrame(rows, columns=["part", "logits", "fraction of the logit"])

    def __repr__(self) -> str:
        """One line: the unit, the number of parts and places, the largest remainder."""
        places = self.logit.numel()
        return (
            f"Attribution({self.unit}: {len(self.labels)} parts × {places} "
            f"place{'s' if places > 1 else ''}, largest remainder "
            f"{float(self.remainder.abs().max()):.2g} logits)"
        )

    def _repr_markdown_(self) -> str:
        top = self.top(10)
        rows = [f"| {p} | {v:+.3f} | {f:+.1%} |" for p, v, f in top.itertuples(index=False)]
        rest = float(self.values.reshape(len(self.labels), -1)[:, 0].double().sum())
        rest -= float(top["logits"].sum())
        more = len(self.labels) - len(top)
        if more:
            rows.append(f"| {more} other parts | {rest:+.3f} | |")
        rows.append(f"| remainder (rounding) | {float(self.remainder.reshape(-1)[0]):+.1e} | |")
        rows.append(f"| **logit** | **{float(self.logit.reshape(-1)[0]):+.3f}** | |")
        origin = "the vocabulary's mean" if self.center else "zero"
        head = f"| part | logits from {origin} | of the logit |\n|---|---|---|\n"
        return head + "\n".join(rows)


def logit_attribution(
    stream: ResidualStream,
    targets: Targets,
    *,
    unit: str = "sublayer",
    position: int | np.integer | slice | Sequence[int] | None = -1,
    versus: Targets | None = None,
    center: bool = True,
) -> Attribution:
    """Split a target's logit exactly into the shares of the parts of the model.

    ``layer`` and ``sublayer`` need the recorded stream alone. ``head`` and ``neuron`` use the
    activations that :func:`residual_stream.record` kept if it was asked to; else they run the model
    once more and reduce inside the hooks. Either way memory does not grow with ``d_model``.

    Where a norm stands between a part and the top (on the branch, as in Gemma 2, or on the stream,
    as in GPT-1), its divisor is that of the run, the target's direction goes back through it, and
    its bias is a part of its own.

    Args:
        stream: A recorded stream that holds the positions asked for.
        targets: The token whose logit is split: its text, its id, one per batch row (a list or a
            tensor ``[batch]``), or one per row and position (a tensor ``[batch, pos]``).
        unit: ``"layer"``, ``"sublayer"``, ``"head"``, ``"neuron"`` or ``"expert"``. Branches that
            have no heads (neurons, experts) stay whole.
        position: The position whose next-token logit is split, counted over the whole text; a
            slice, a list or None (all kept positions) gives values of ``[part, batch, pos]``.
        versus: A token, or one per row, whose logit is subtracted: the parts of a logit difference.
        center: Measure from the mean logit of the vocabulary, which no softmax sees.

    Returns:
        The parts, the model's own logit and the remainder. ``values.sum(0) + remainder == logit``.

    Raises:
        ValueError: An unknown unit; a target that is not one token of the vocabulary; a number of
            targets that does not fit.
        IndexError: A position outside the text, or one that the stream has not kept.
        LedgerError: The stream does not close, or the parts do not add up to the model's own logit.
        ReadoutError: A model whose logits are not a norm and an unembedding of its top.

    Example:
        >>> import residual_stream as rs
        >>> stream = rs.record(rs.load("bench"), "In the beginning")
        >>> split = rs.logit_attribution(stream, 5, unit="head")
        >>> bool(torch.allclose(split.values.sum(0) + split.remainder, split.logit))
        True
    """
    if unit not in UNITS:
        known = ", ".join(repr(name) for name in UNITS)
        raise ValueError(f"logit_attribution: unit {unit!r} is not known; pass one of {known}")
    kept = _kept_indices(stream, position)
    top = stream.top[:, kept.to(stream.top.device)]
    batch, pos = top.shape[:2]
    ids = target_ids(stream.model, targets, batch=batch, pos=pos)
    other = None
    if versus is not None:
        other = target_ids(stream.model, versus, batch=batch, pos=pos)
        ids, other = torch.broadcast_tensors(ids, other)
    stream.require_closed(caller="logit_attribution")
    readout = read_readout(stream.model)
    top = top.to(readout.W_U.device)  # the stream may be kept off the model's device
    target = DistinctTargets.distinct(readout, ids.expand(batch, pos), other, center=center)
    projection = target.projection(readout.sigma(top))
    parts = _shares(stream, kept, projection, unit)
    for name, value in target.constants().items():
        parts.add(name, len(stream.model.blocks), "bias", value[target.index][None])
    values = torch.cat(parts.values)
    logit = _own_logit(stream.model, top, target)
    remainder = logit - values.sum(0, dtype=torch.float64)
    _require_sum(values, logit, remainder, readout.W_U.dtype)
    sigma = projection.sigma
    kind = torch.float64 if stream.writes.dtype == torch.float64 else torch.float32
    one = isinstance(position, Integral)
    last = (slice(None), 0) if one else (slice(None), slice(None))
    return Attribution(
        labels=parts.labels,
        values=values.to(kind)[(slice(None), *last)],
        logit=logit.to(kind)[last],
        remainder=remainder.to(kind)[last],
        layers=parts.layers,
        kinds=parts.kinds,
        unit=unit,
        center=center,
        scale=sigma.to(kind)[last],
        soft_cap=readout.soft_cap,
    )


def _kept_indices(
    stream: ResidualStream, position: int | np.integer | slice | Sequence[int] | None
) -> Int[Tensor, " pos"]:
    """Where the positions asked for lie among those the stream has kept."""
    kept = stream.positions.tolist()
    if position is None:
        return torch.arange(len(kept))
    wanted = to_positions(position, stream.tokens.shape[1], caller="logit_attribution").tolist()
    missing = [p for p in wanted if p not in kept]
    if missing:
        raise IndexError(
            f"logit_attribution: the stream has not kept position {missing[0]}; it holds "
            f"{len(kept)} of {stream.tokens.shape[1]} (record it with `positions=None`, or ask "
            "for one that it holds)"
        )
    return torch.tensor([kept.index(p) for p in wanted])


def _shares(
    stream: ResidualStream, kept: Int[Tensor, " pos"], projection: Projection, unit: str
) -> BranchParts:
    """The shares of everything that was written, in the order written."""
    place = kept.to(stream.writes.device)
    every = torch.equal(place, torch.arange(len(stream.positions), device=place.device))
    read_by, biases = along_each_write(stream, kept, projection)
    whole = [
        read.of(write if every else write[:, place])
        for read, write in zip(read_by, stream.writes, strict=True)
    ]
    parts = BranchParts()
    if unit in BRANCHES:
        parts = branch_shares(stream, kept, read_by, whole, unit=unit)
        return parts.extend(biases)
    for write, value in zip(stream.wiring.writes, whole, strict=True):
        if unit == "sublayer" or write.layer < 0:
            parts.add(write.label, write.layer, write.kind, value)
        elif parts.layers and parts.layers[-1] == write.layer:
            parts.values[-1] = parts.values[-1] + value
        else:
            parts.add(f"L{write.layer}", write.layer, "layer", value)
    return parts.extend(biases)


def _own_logit(
    model: TransformerBridge, top: Float[Tensor, "batch pos d_model"], target: DistinctTargets
) -> Float[Tensor, "batch pos"]:
    """The model's own logit of each target, in float64.

    Every place goes through the model's own norm and the columns of its unembedding that were
    asked for. The first place goes through the whole unembedding, as a module, to hold the columns
    against it: at every call, since neither a version counter nor a list of hooks tells of weights
    that were changed through ``.data``, or of a forward method that was replaced.
    """
    weights = target.readout.W_U.dtype
    with torch.no_grad():
        logit = target.of_normed(model.get_submodule(final_norm(model))(top).to(weights))
    logits = own_logits(model, target.readout, top[:1, :1])[0, 0]
    own, columns = target.of_logits(logits), logit[0, 0]
    if not bool((own - columns).abs() <= rounding_allowance(weights) * logits.abs().max()):
        raise LedgerError(
            f"logit_attribution: the model's own unembedding gives a logit of {float(own):.6g}, "
            f"its weights give {float(columns):.6g}; something reaches the logit that is not in "
            "the ledger"
        )
    return logit


def _require_sum(values: Tensor, logit: Tensor, remainder: Tensor, dtype: torch.dtype) -> None:
    """Refuse parts that miss the model's own logit by more than its dtype rounds."""
    allowed = rounding_allowance(dtype) * (values.abs().sum(0) + logit.abs())
    excess = remainder.abs() - allowed
    if bool((excess > 0).any()) or not bool(remainder.isfinite().all()):
        worst = int(excess.argmax())
        raise LedgerError(
            f"logit_attribution: the parts add up to "
            f"{float((logit - remainder).reshape(-1)[worst]):.6g}, but the model's own logit is "
            f"{float(logit.reshape(-1)[worst]):.6g}; something reaches the logit that is not in "
            "the ledger"
        )
