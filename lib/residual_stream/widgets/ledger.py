"""The ledger of a prediction with switches: the guess beside what the model says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from ..figures.switches import single_switches
from ..report import number, percent
from ..stream import ResidualStream
from ..switches import Switches
from .base import MovableFigure

_NAMES = {"attn": "attention", "mlp": "MLP", "embed": "row", "pos_embed": "position"}
_WORDS = {
    "prompt": "Prompt",
    "token": "Token",
    "switches": "Written to the stream (switch off):",
    "all": "Switch all on",
    "guess": "the ledger's guess",
    "real": "the model, run again",
    "axis": "share of the logit, by write (blue: attention, orange: MLP)",
    "on": "After “{prompt}” the logit of “{token}” is {guess}, counted from the vocabulary's mean: "
    "the sum of all {writes} shares. The model says “{top}” first ({p}).",
    "off": "Without {names} the ledger's guess for “{token}” is {guess}. The model, run again, "
    "says {real}, and “{top}” first ({p}).",
}


def ledger(cases: Sequence[tuple[ResidualStream, Switches]]) -> MovableFigure:
    """Return a ledger of some predictions whose largest writes one can switch off.

    Every combination has been run, so the figure can say what the model would say.

    Args:
        cases: Recorded texts and what :func:`residual_stream.switch_off` found for them; the
            still picture shows the first.

    Returns:
        The figure.

    Raises:
        ValueError: No cases.

    Example:
        >>> import residual_stream as rs
        >>> stream = rs.record(rs.load("bench"), "In the beginning")
        >>> figure = ledger([(stream, rs.switch_off(stream, [5], writes=2))])
        >>> figure.data["cases"][0]["labels"][:2]
        ['row', 'position']
    """
    if not cases:
        raise ValueError("ledger: no cases are given; pass pairs of a stream and its switches")
    shown = [_case(stream, found) for stream, found in cases]
    first = shown[0]
    return MovableFigure(
        kind="ledger",
        label="The ledger of a prediction, with switches",
        sentence=first["sentence"],
        data={"words": _WORDS, "cases": shown},
        still=still({"cases": shown}),
    )


def still(data: dict[str, Any]) -> Figure:
    """Return the picture that stands in for the figure: each switch of the first case alone."""
    case = data["cases"][0]
    alone = [1 << i for i in range(len(case["switches"]))]
    shares, lost = (
        [case[name][0][0] - case[name][at][0] for at in alone] for name in ("linear", "real")
    )
    return single_switches([case["labels"][i] for i in case["switches"]], shares, lost)


def _name(label: str) -> str:
    layer, _, rest = label.partition("_")
    if not layer.isdigit():
        return _NAMES.get(label, label)
    kind = rest.removesuffix("_out")
    return f"L{layer} {_NAMES.get(kind, kind)}"


def _case(stream: ResidualStream, found: Switches) -> dict[str, Any]:
    model = stream.model
    prompt = model.tokenizer.decode(stream.tokens[0], skip_special_tokens=True)
    names = [_name(label) for label in found.labels]
    frame = found.to_frame()
    worst = int((frame["share"] - frame["lost when run again"]).abs().argmax())
    sentence = (
        f"After “{prompt}” the model says “{model.to_single_str_token(found.tokens[0]).strip()}” "
        f"({percent(found.top_probability[0])}), {number(found.real[0, 0])} above the "
        f"vocabulary's mean. {names[found.switches[worst]]} gave "
        f"{number(frame['share'][worst])} of that; switched off, it costs "
        f"{number(frame['lost when run again'][worst])}."
    )
    tops = [model.to_single_str_token(int(i)) for i in found.top_ids]
    return {
        "prompt": prompt,
        "sentence": sentence,
        "tokens": [model.to_single_str_token(t) for t in found.tokens],
        "labels": names,
        "kinds": found.kinds,
        "shares": [_rounded(row) for row in found.shares.tolist()],
        "switches": found.switches,
        "linear": [_rounded(row) for row in found.linear.tolist()],
        "real": [_rounded(row) for row in found.real.tolist()],
        "top": tops,
        "p": [round(float(p), 3) for p in found.top_probability],
    }


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 2) + 0.0 for value in values]
