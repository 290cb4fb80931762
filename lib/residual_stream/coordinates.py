r"""What single numbers of the stream carry, and what happens without them.

In principle no coordinate is special: rotate the stream and every weight, and the model computes
the same (:mod:`residual_stream.rotation`). Trained models have favourite coordinates all the same.
Two measures: the kurtosis over the width, which is near 3 for any vector in a random basis; and
what the model loses when one direction is kept out of its stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .inputs import to_positions, to_tokens
from .stream import record
from .wiring import Wiring, read_wiring

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def kurtosis(x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead"]:
    r"""Return the kurtosis of each vector's entries: how much a few of them stick out.

    .. math:: \frac{\frac1d\sum_i (x_i-\bar x)^4}{\big(\frac1d\sum_i (x_i-\bar x)^2\big)^2}

    A Gaussian has 3; a vector seen in a random basis has about :math:`3d/(d+2)`; a vector with
    one non-zero entry has about d. Computed in float64.

    Args:
        x: Vectors, for example the stream at every position.

    Returns:
        One kurtosis per vector.

    Source: used on the stream by Elhage et al. 2023, *Privileged Bases in the Transformer Residual
    Stream*.

    Example:
        >>> round(float(kurtosis(torch.tensor([1.0, 1.0, -1.0, -1.0]))), 6)
        1.0
    """
    centred = x.double() - x.double().mean(-1, keepdim=True)
    square = centred.square()
    return square.square().mean(-1) / square.mean(-1).square()


@dataclass(frozen=True, eq=False, repr=False)
class DirectionAblation:
    """What a model loses without single directions of its stream.

    Attributes:
        loss: The intact model's mean next-token loss, in nats per token.
        loss_change: Loss without each direction minus ``loss``.
        top1_kept: Share of positions whose most likely token stays, for each direction.
        predictions: How many next-token predictions each number rests on.
    """

    loss: float
    loss_change: Float[Tensor, " direction"]
    top1_kept: Float[Tensor, " direction"]
    predictions: int

    def to_frame(self, names: Sequence[object] | None = None) -> pd.DataFrame:
        """One row per direction, named ``names`` if given."""
        frame = pd.DataFrame(
            {"loss change": self.loss_change.tolist(), "top-1 kept": self.top1_kept.tolist()}
        )
        if names is not None:
            frame.index = pd.Index(names, name="direction")
        return frame

    def __repr__(self) -> str:
        """One line: how many directions and the worst of them."""
        worst = int(self.loss_change.argmax())
        return (
            f"DirectionAblation({len(self.loss_change)} directions, loss {self.loss:.3f}; worst is "
            f"direction {worst}: {float(self.loss_change[worst]):+.3f} nats)"
        )


def coordinate_directions(
    width: int, coordinates: Sequence[int]
) -> Float[Tensor, "{len(coordinates)} {width}"]:
    """Return the unit vectors of single coordinates, one a row.

    Raises:
        IndexError: A coordinate outside the width.
    """
    if outside := [c for c in coordinates if not 0 <= c < width]:
        raise IndexError(
            f"coordinate_directions: coordinate {outside[0]} is outside the stream; they run from "
            f"0 to {width - 1}"
        )
    return torch.eye(width)[list(coordinates)]


def shipped_costs(model: str = "smollm2-135m") -> dict[str, pd.DataFrame]:
    """Return what every single coordinate of the book's model carries, measured beforehand.

    One direction over all passages of :func:`residual_stream.texts.batch` is seconds of work, and
    there are hundreds: ``tools/measure_coordinates.py`` ran :func:`ablate_directions` for all of
    them, and a test of the library runs some of them again.

    Args:
        model: Name of a model that was measured.

    Returns:
        Frames with the columns of :meth:`DirectionAblation.to_frame` (nats per token; share of
        positions), indexed by coordinate:

        * ``"as trained"``: every coordinate kept out at every position;
        * ``"at position 0"``, ``"elsewhere"``, ``"elsewhere, set to its mean"``: the costliest;
        * ``"rotated"``: coordinates of :func:`residual_stream.rotation.rotate_model`'s model
          (seed 0), at even spacing;
        * ``"rotated, their directions"``: in that model, what the costliest have become.

    Raises:
        KeyError: A model that was not measured.

    Example:
        >>> len(shipped_costs()["as trained"])
        576
    """
    found = files("residual_stream").joinpath("data", "coordinates", f"{model}.json")
    if not found.is_file():
        raise KeyError(f"shipped_costs: {model!r} was not measured; smollm2-135m was")
    measured = json.loads(found.read_text(encoding="utf-8"))
    columns = {"loss change": "loss_change", "top-1 kept": "top1_kept"}
    return {
        name: pd.DataFrame(
            {column: entry[key] for column, key in columns.items()},
            index=pd.Index(entry["coordinates"], name="coordinate"),
        )
        for name, entry in measured.items()
        if name != "about"
    }


def ablate_directions(
    model: TransformerBridge,
    tokens: Int[Tensor, "batch seq"],
    directions: Float[Tensor, "direction d_model"],
    *,
    positions: int | slice | Sequence[int] | None = None,
    to: Literal["zero", "mean"] = "zero",
    rows_at_once: int = 32,
) -> DirectionAblation:
    """Keep each direction out of the whole stream, one at a time, and measure what is lost.

    The direction is taken out of every write, the embedding's included, so the stream has nothing
    along it anywhere; every later write is computed by the model without it.

    Args:
        model: A ``TransformerBridge``.
        tokens: Texts of one length.
        directions: Unit vectors, one a row; :func:`coordinate_directions` makes those of
            single coordinates.
        positions: Where it is kept out; everywhere if None.
        to: ``"zero"`` leaves nothing along the direction; ``"mean"`` leaves, at each depth, the
            intact model's mean along it over ``positions`` and texts: constant, but there.
        rows_at_once: Texts in one forward pass; the directions are run side by side.

    Returns:
        Loss change and kept predictions per direction.

    Raises:
        ValueError: Directions that are not unit vectors, texts of one token.
        LedgerError: ``to="mean"`` with a model whose ledger does not close.

    Example:
        >>> import residual_stream as rs
        >>> model = rs.load("bench")
        >>> first = coordinate_directions(model.cfg.d_model, [0, 1])
        >>> len(ablate_directions(model, model.to_tokens("In the beginning"), first).loss_change)
        2
    """
    tokens = to_tokens(model, tokens, caller="ablate_directions")
    directions = directions.to(tokens.device, model.W_E.dtype)
    if not torch.allclose(directions.norm(dim=1), directions.new_ones(()), atol=1e-4):
        raise ValueError("ablate_directions: directions must have length 1, one a row")
    if tokens.shape[1] < 2:
        raise ValueError("ablate_directions: texts of one token have no next token to predict")
    wiring = read_wiring(model)
    kept = to_positions(positions, tokens.shape[1], caller="ablate_directions")
    levels = directions.new_zeros(len(wiring.writes), len(directions))
    if to == "mean":
        stream = record(model, tokens, positions=kept.tolist())
        stream.require_closed(caller="ablate_directions")
        levels = stream.writes.mean(dim=(1, 2)) @ directions.T
    with torch.no_grad():
        own = model(tokens)
    loss, best = _loss(own, tokens), own.argmax(-1)
    changes, kept_share = [], []
    for some in torch.arange(len(directions)).split(max(1, rows_at_once // len(tokens))):
        owner = some.repeat_interleave(len(tokens)).to(tokens.device)
        hooks = _hooks(wiring, directions[owner], levels[:, owner], kept.to(tokens.device))
        rows = tokens.repeat(len(some), 1)
        with torch.no_grad(), model.hooks(fwd_hooks=hooks):
            logits = model(rows)
        changes.append(_loss(logits, rows).view(len(some), -1).mean(1) - loss.mean())
        same = logits.argmax(-1) == best.repeat(len(some), 1)
        kept_share.append(same.float().view(len(some), -1).mean(1))
    return DirectionAblation(
        loss=float(loss.mean()),
        loss_change=torch.cat(changes).cpu(),
        top1_kept=torch.cat(kept_share).cpu(),
        predictions=tokens.shape[0] * (tokens.shape[1] - 1),
    )


def _loss(logits: Tensor, tokens: Tensor) -> Tensor:
    scores = logits[:, :-1].float()
    return torch.nn.functional.cross_entropy(scores.mT, tokens[:, 1:], reduction="none").mean(1)


def _hooks(
    wiring: Wiring, directions: Tensor, levels: Tensor, positions: Tensor
) -> list[tuple[str, Callable[..., Any]]]:
    unit = directions[:, None]  # [row, 1, d_model]
    hooks = []
    for write, level in zip(wiring.writes, levels, strict=True):
        # A write with two hooks is the sum of both; the level belongs to the first.
        for hook, left in zip(write.hooks, (level, *[level * 0] * 8), strict=False):

            def keep_out(value: Tensor, hook: Any, left: Tensor = left) -> Tensor:
                value = value.expand(len(unit), -1, -1).clone()  # a positional row has batch 1
                part = value[:, positions]
                along = (part * unit).sum(-1, keepdim=True)
                value[:, positions] = part + (left[:, None, None] - along) * unit
                return value

            hooks.append((hook, keep_out))
    return hooks
