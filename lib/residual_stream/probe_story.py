"""What a probe found, and how it is told: as a table, a data frame, and plain numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from .attribution import Attribution
from .audit import Audit
from .cancellation import Cancellations
from .report import listing, number, percent
from .stream import ResidualStream

#: The columns of the table.
HEAD = ["layer", "update", "÷ row", "÷ stream", "share", "without it", "margin", "lens after it"]


@dataclass(frozen=True)
class LayerStory:
    """What one layer did at the position.

    Attributes:
        layer: The block, counted from 0.
        kind: What writes in it, for example ``"attn + mlp"``.
        update: ‖update‖, all its writes together.
        of_row: ‖update‖ / ‖row‖.
        of_stream: ‖update‖ / ‖stream it joins‖.
        share: Its share of the target's logit, from the vocabulary's mean.
        kept: Whether the prediction survives without the layer, the layers above run again.
        becomes: What is then predicted.
        becomes_id: Its id.
        margin: Logit of the prediction over its best rival then; negative if it is lost.
        kl: KL(intact ‖ without the layer), in nats.
        lens: What the logit lens reads after the layer.
        lens_id: Its id.
        lens_agrees: Whether that is the prediction.
        lens_kl: KL(top ‖ lens), in nats.
    """

    layer: int
    kind: str
    update: float
    of_row: float
    of_stream: float
    share: float
    kept: bool
    becomes: str
    becomes_id: int
    margin: float
    kl: float
    lens: str
    lens_id: int
    lens_agrees: bool
    lens_kl: float


@dataclass(frozen=True)
class Summed:
    """The row and every update, added in float32, beside the model's own top.

    Attributes:
        error: Largest difference over the numbers of the stream.
        largest: Largest number of the top.
        step: The distance to the next number that the model's dtype can hold there.
        same_prediction: Whether both tops, scored alike, predict the same token.
    """

    error: float
    largest: float
    step: float
    same_prediction: bool


@dataclass(frozen=True, eq=False, repr=False)
class Probe:
    """The story of one prediction; see :func:`residual_stream.probe`.

    Attributes:
        model: The model's name.
        tokens: The tokens of the text.
        position: The position whose next token is predicted.
        predicted: The model's own prediction there.
        predicted_id: Its id.
        probability: Its probability.
        lead: Its logit over its best rival's.
        target: The token whose logit is split.
        target_id: Its id.
        logit: That logit, from the vocabulary's mean and before any soft-cap.
        row_share: The row's share of it.
        bias_share: What the readout's biases put into it.
        remainder: What rounding leaves between the logit and its parts.
        row_norm: ‖row‖: the stream before the first layer, positions included where a model adds
            them.
        row_lens: What the lens reads off the row.
        row_lens_kl: KL(top ‖ lens of the row), in nats.
        layers: Every layer's part.
        sum: The row plus the updates, beside the model's own top.
        audit: The ledger's audit, over all positions.
        cancellations: The strongest cancellations at the position, coordinate by coordinate.
        stream: The ledger at the position, for figures.
        split: The logit by layer, for figures.
    """

    model: str
    tokens: tuple[str, ...]
    position: int
    predicted: str
    predicted_id: int
    probability: float
    lead: float
    target: str
    target_id: int
    logit: float
    row_share: float
    bias_share: float
    remainder: float
    row_norm: float
    row_lens: str
    row_lens_kl: float
    layers: tuple[LayerStory, ...]
    sum: Summed
    audit: Audit
    cancellations: Cancellations
    stream: ResidualStream
    split: Attribution

    @property
    def kept(self) -> int:
        """How many deletions keep the prediction."""
        return sum(layer.kept for layer in self.layers)

    @property
    def breaking(self) -> tuple[LayerStory, ...]:
        """The layers without which the prediction is another."""
        return tuple(layer for layer in self.layers if not layer.kept)

    @property
    def last_third(self) -> float:
        """The share of the logit that the last third of the layers wrote.

        Outside 0 to 1 where shares of both signs cancel; NaN for a logit of 0.
        """
        late = sum(layer.share for layer in self.layers[-max(1, len(self.layers) // 3) :])
        return late / self.logit if self.logit else math.nan

    @property
    def settled(self) -> int:
        """The first layer after which the lens reads the prediction, to the top."""
        for layer in reversed(self.layers):
            if not layer.lens_agrees:
                return layer.layer + 1
        return 0

    def findings(self) -> list[str]:
        """The story in sentences: ledger, sum, updates, deletions, shares, cancellation, lens."""
        n_layers, sums = len(self.layers), self.sum
        first = max(self.layers, key=lambda layer: layer.of_stream)
        late = n_layers - max(1, n_layers // 3)
        told = [
            f"{self.model} predicts {self.predicted!r} after {self.tokens[self.position]!r}, with "
            f"probability {number(self.probability, 2)}; {self.audit.verdict}.",
            f"Added in float32 the row and the {n_layers} updates land within "
            f"{number(sums.error, 2)} of the model's own top, {number(sums.error / sums.step, 2)} "
            f"× the rounding step at its largest number ({number(sums.largest)}), and predict "
            f"{'the same' if sums.same_prediction else 'another'} token.",
            f"The largest update beside the stream it joins is layer {first.layer}'s: "
            f"{number(first.of_stream, 2)} times as long.",
            f"Without one layer the prediction stays for {self.kept} of {n_layers}"
            + (f"; it changes without {_layers(self.breaking)}." if self.breaking else "."),
            f"Of the logit of {self.target!r}, {number(self.logit)} from the vocabulary's mean, "
            + (
                f"layers {late} to {n_layers - 1} write "
                if late < n_layers - 1
                else f"layer {late} writes "
            )
            + f"{percent(self.last_third)}.",
        ]
        if len(self.cancellations):
            best = self.cancellations[0]
            told.append(
                f"The strongest cancellation: number {best.coordinate} is "
                f"{_signed(best.before, 1)} before {best.label}, which writes "
                f"{_signed(best.write, 1)} and leaves {_signed(best.after, 1)}."
            )
        told.append(
            "The lens reads the prediction "
            + (f"from layer {self.settled} on." if self.settled < n_layers else "at no layer.")
        )
        return told

    def to_frame(self) -> pd.DataFrame:
        """Every layer as a row."""
        return pd.DataFrame([asdict(layer) for layer in self.layers])

    def to_dict(self) -> dict[str, Any]:
        """Everything but the tensors, as strings, numbers, lists and dictionaries for JSON.

        Numbers that are not finite become None, which JSON has.
        """
        audit = self.audit
        plain = {
            name: getattr(self, name)
            for name in (
                "model", "position", "predicted", "predicted_id", "probability", "lead", "target",
                "target_id", "logit", "row_share", "bias_share", "remainder", "row_norm",
                "row_lens", "row_lens_kl", "kept", "last_third", "settled",
            )
        }  # fmt: skip
        return _finite(
            {
                **plain,
                "tokens": list(self.tokens),
                "breaking": [layer.layer for layer in self.breaking],
                "sum": asdict(self.sum),
                "audit": audit.to_dict(),
                "layers": [asdict(layer) for layer in self.layers],
                "cancellations": [vars(one) for one in self.cancellations.found],
                "findings": self.findings(),
            }
        )

    def rows(self) -> list[list[str]]:
        """Return the rows of the table, under the columns ``HEAD``."""
        share = _signed(self.row_share)
        rows = [["row", number(self.row_norm), "", "", share, "", "", repr(self.row_lens)]]
        for layer in self.layers:
            rows.append(
                [
                    str(layer.layer),
                    number(layer.update),
                    number(layer.of_row, 2),
                    number(layer.of_stream, 2),
                    _signed(layer.share),
                    "stays" if layer.kept else repr(layer.becomes),
                    _signed(layer.margin, 1),
                    repr(layer.lens),
                ]
            )
        if self.bias_share:
            rows.append(["biases", "", "", "", _signed(self.bias_share), "", "", ""])
        top = number(self.stream.top.float().norm())
        rows.append(["top", top, "", "", _signed(self.logit), "", "", repr(self.predicted)])
        return rows

    def __repr__(self) -> str:
        """One line: the model, the prediction, how many deletions keep it."""
        return (
            f"Probe({self.model}: {self.tokens[self.position]!r} → {self.predicted!r}, "
            f"{self.kept} of {len(self.layers)} deletions keep it)"
        )

    def __str__(self) -> str:
        """The story as a table, and in sentences."""
        rows = [HEAD, *self.rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
        lines = [_line(row, widths) for row in rows]
        told = [f"• {sentence}" for sentence in self.findings()]
        return "\n".join([f"text: {''.join(self.tokens)!r}", *lines, "", *told])

    def _repr_markdown_(self) -> str:
        rows = [[_cell(cell) for cell in row] for row in [HEAD, *self.rows()]]
        rule = ["---", *["--:"] * 4, "---", "--:", "---"]
        table = "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], rule, *rows[1:]])
        told = "\n".join(f"- {_cell(sentence)}" for sentence in self.findings())
        return f"{table}\n\n{told}"


def _layers(layers: tuple[LayerStory, ...], at_most: int = 3) -> str:
    worst = sorted(layers, key=lambda layer: layer.margin)[:at_most]
    named: list[object] = [f"{layer.layer} ({layer.becomes!r})" for layer in worst]
    more = [f"{len(layers) - at_most} more"] if len(layers) > at_most else []
    return f"layer{'s' if len(layers) > 1 else ''} {listing(named + more)}"


def _line(row: list[str], widths: list[int]) -> str:
    numbers = {1, 2, 3, 4, 6}
    cells = [
        cell.rjust(width) if place in numbers else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _signed(value: float, places: int = 2) -> str:
    return f"{value:+.{places}f}".replace("-", "−")


def _cell(text: str) -> str:
    """A cell that Markdown shows as it is."""
    for mark in "\\`*_[]<>|$~#":
        text = text.replace(mark, f"\\{mark}")
    return text


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
