"""A probe as one HTML file: the book's figures, the table, the findings; nothing else is loaded."""

from __future__ import annotations

import base64
import io
from html import escape
from typing import TYPE_CHECKING

import torch

from . import figures
from .audit import Audit
from .probe_story import HEAD, Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark; --ink: #1f1f1f; --paper: #ffffff; --soft: #5c5c5c;
        --line: #d9d9d9; --lost: #a04000; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #14171a; --soft: #a3a3a3; --line: #3a3f44; --lost: #ff9a5c; }
}
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem; background: var(--paper);
       color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.text { border-left: 3px solid var(--line); padding-left: 1rem; color: var(--soft);
        white-space: pre-wrap; overflow-wrap: anywhere; }
.text b { color: var(--ink); }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; height: auto; border-radius: 6px;
         background: #ffffff; } figcaption, footer { color: var(--soft); font-size: 0.9rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.7rem; border-bottom: 1px solid var(--line); text-align: left;
         white-space: nowrap; font-variant-numeric: tabular-nums; }
td.n, th.n { text-align: right; } td.lost { color: var(--lost); }
"""
_NUMBERS = {1, 2, 3, 4, 6}


def to_html(probe: Probe) -> str:
    """Return a probe as one self-contained page, readable in light and dark.

    Pictures are inside it; it asks no host for anything, and runs no script. Every text that comes
    from the model or the reader is escaped.

    Args:
        probe: What :func:`residual_stream.probe` returns.

    Returns:
        The page's HTML.

    Example:
        >>> import residual_stream as rs
        >>> page = to_html(rs.probe(rs.load("bench"), "In the beginning"))
        >>> page.startswith("<!doctype html>"), "http" in page
        (True, False)
    """
    title = f"{probe.model}: {probe.predicted!r} after {probe.tokens[probe.position]!r}"
    findings = "".join(f"<li>{escape(sentence)}</li>" for sentence in probe.findings())
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="text">{_text(probe)}</p>',
        f"<ul>{findings}</ul>",
        *(_section(*drawn) for drawn in _pictures(probe)),
        "<h2>Layer by layer</h2>",
        _table(probe),
        "<h2>The ledger</h2>",
        _audit(probe.audit),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n<footer>Written by residual_stream, the library of <i>The Residual Stream</i>."
        "</footer>\n</body>\n</html>\n"
    )


def _text(probe: Probe) -> str:
    before, here, after = (
        escape("".join(part))
        for part in (
            probe.tokens[: probe.position],
            probe.tokens[probe.position : probe.position + 1],
            probe.tokens[probe.position + 1 :],
        )
    )
    return f"{before}<b>{here}</b> → <b>{escape(repr(probe.predicted))}</b><br>{after}"


def _pictures(probe: Probe) -> list[tuple[str, Figure, str, str]]:
    """Heading, figure, caption and alt text of every picture."""
    layers, n_layers = probe.layers, len(probe.layers)
    lost = [str(layer.layer) for layer in probe.breaking]
    pictures = [
        (
            "Updates",
            figures.probe.updates(
                torch.tensor([layer.of_row for layer in layers]),
                torch.tensor([layer.of_stream for layer in layers]),
            ),
            "Every layer's update beside the row, and beside the stream that it joins.",
            f"Two lines over {n_layers} layers on a log scale: the length of each update divided "
            "by the row's, and by that of the stream it joins.",
        ),
        (
            "Deletions",
            figures.probe.deletions(
                torch.tensor([layer.margin for layer in layers]),
                intact=probe.lead,
                becomes=[layer.becomes for layer in layers],
                names=len(lost) <= 40,
            ),
            "Each layer taken out, the layers above run again. Above zero the prediction stays.",
            f"One bar per deleted layer: the lead of {probe.predicted!r}. It is lost without "
            + (f"layers {', '.join(lost)}." if lost else "no layer."),
        ),
        (
            "Shares of the logit",
            figures.attribution.waterfall(probe.split),
            f"The logit of {probe.target!r}, built up layer by layer, from the vocabulary's mean.",
            f"A waterfall of {n_layers} layers, from zero to {probe.logit:.1f} logits.",
        ),
        (
            "The lens",
            figures.probe.lens_of_one(
                torch.tensor([probe.row_lens_kl, *(layer.lens_kl for layer in layers)]),
                reads=[probe.row_lens, *(layer.lens for layer in layers)],
                predicted=probe.predicted,
            ),
            "The stream read at every depth as it is read at the top.",
            f"One bar per depth: the lens's distance from the prediction in nats, 0 at the top "
            f"after {n_layers} layers.",
        ),
    ]
    if len(probe.cancellations):
        best, stream = probe.cancellations[0], probe.stream
        assert best.coordinate is not None
        story = (
            "The strongest cancellation",
            figures.bus.coordinate_story(
                stream.accumulated()[:, 0, 0, best.coordinate].float().cpu(),
                stream.writes[:, 0, 0, best.coordinate].float().cpu(),
                stream.kinds,
                legend="best",
            ),
            f"Number {best.coordinate} of the stream, write by write.",
            f"Bars for the writes to number {best.coordinate} and a line for its value: "
            f"{best.before:+.1f} before {best.label}, {best.after:+.1f} after it.",
        )
        pictures.insert(3, story)
    return pictures


def _section(heading: str, figure: Figure, caption: str, alt: str) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=160, metadata={"Software": None})
    data = base64.b64encode(file.getvalue()).decode()
    return (
        f"<h2>{escape(heading)}</h2>\n<figure>"
        f'<img src="data:image/png;base64,{data}" alt="{escape(alt)}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _table(probe: Probe) -> str:
    def cell(tag: str, place: int, text: str, lost: bool = False) -> str:
        names = [name for name, on in (("n", place in _NUMBERS), ("lost", lost)) if on]
        kind = f' class="{" ".join(names)}"' if names else ""
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    head = "".join(cell("th", place, text) for place, text in enumerate(HEAD))
    rows = "".join(
        "<tr>"
        + "".join(
            cell("td", place, text, lost=place == 5 and text not in ("", "stays"))
            for place, text in enumerate(row)
        )
        + "</tr>"
        for row in probe.rows()
    )
    return f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def _audit(audit: Audit) -> str:
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>"
        for row in audit.rows()
    )
    head = "".join(f"<th>{text}</th>" for text in ("check", "measured", "required"))
    table = f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'
    return f"{table}<p>{escape(audit.verdict)}</p>"
