"""What all widgets are: data, a name, a sentence, and a still picture for where nothing runs."""

from __future__ import annotations

import base64
import io
import json
from functools import cache
from importlib.resources import files
from typing import Any

import anywidget
import traitlets
from matplotlib.figure import Figure

MAX_BYTES = 150_000
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def _shipped(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def module_of(kind: str) -> str:
    """Return the JavaScript module of one kind: what all share, its own part, and the export.

    Raises:
        ValueError: No part of ``widgets.js`` is named for the kind.

    Example:
        >>> "function packing(" in module_of("packing"), "shelf" in module_of("packing")
        (True, False)
    """
    shared, *parts = _shipped("widgets.js").split("// ==== ")[1:]
    own = [part for part in parts if kind in part.split(":")[0].split(", ")]
    if not own:
        known = [name for part in parts for name in part.split(":")[0].split(", ")]
        raise ValueError(f"MovableFigure: kind {kind!r} is not known; widgets.js draws {known}")
    render = f"render({{ model, el }}) {{ return {kind}(model, el); }}"
    return f"// {shared}// {own[0]}\nexport default {{ {render} }};\n"


class MovableFigure(anywidget.AnyWidget):
    """A figure that one can move: in Jupyter, on Colab, and on a page with no kernel.

    All that it can show is computed before and travels in ``data``, so it asks nobody for anything.
    Its output in a notebook holds, beside the widget, a still picture and a sentence; they are what
    a printed page, GitHub, or a browser without scripts shows. A kind of widget is a function of
    ``widgets.js`` that draws it and a function of Python that computes its data.

    Attributes:
        kind: The function of ``widgets.js`` that draws it.
        label: Its name, for screen readers.
        data: What it shows: lists, dicts, numbers and strings, at most 150 kB as JSON.
        value: Which of the frames in ``data`` is shown.
    """

    _css = _shipped("widgets.css")

    kind = traitlets.Unicode().tag(sync=True)
    label = traitlets.Unicode().tag(sync=True)
    data = traitlets.Dict().tag(sync=True)
    value = traitlets.Int(0).tag(sync=True)

    def __init__(
        self,
        *,
        kind: str,
        label: str,
        sentence: str,
        data: dict[str, Any],
        still: Figure | None = None,
        **traits: Any,
    ) -> None:
        """Make a widget.

        Args:
            kind: The function of ``widgets.js`` that draws it.
            label: Its name, for screen readers.
            sentence: What it shows, for where it does not run.
            data: What it shows.
            still: A picture of it, for where it does not run.
            traits: Values of other traits.

        Raises:
            ValueError: ``data`` is no JSON or more than 150 kB of it, or name or sentence is empty.
        """
        if not label.strip() or not sentence.strip():
            raise ValueError(
                f"MovableFigure: label = {label!r}, sentence = {sentence!r}; both are read aloud "
                "and must say something"
            )
        _require_small(kind, data)
        self._esm = module_of(kind)
        self.sentence = sentence
        self._still = None if still is None else _png(still)
        super().__init__(kind=kind, label=label, data=data, **traits)

    def __repr__(self) -> str:
        """The sentence: what it shows."""
        return self.sentence

    #: ipywidgets 7 would show it through this and leave picture and sentence out.
    _ipython_display_ = None

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        # On Colab the metadata name its widget manager. ipywidgets 7 with anywidget 0.9 has none.
        inherited = getattr(super(), "_repr_mimebundle_", None)
        metadata = inherited(**kwargs)[1] if inherited else {}
        view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        shown = {"text/plain": self.sentence, _WIDGET_VIEW: view}
        if self._still is not None:
            shown["image/png"] = base64.b64encode(self._still).decode()
            metadata = {**metadata, "image/png": {"alt": self.sentence}}
        return shown, metadata


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=figure.dpi, facecolor="white", bbox_inches="tight")
    return file.getvalue()


def _require_small(kind: str, data: dict[str, Any]) -> None:
    try:
        size = len(json.dumps(data, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"MovableFigure: the data of a {kind!r} are no JSON: {error}; pass lists, dicts, "
            "strings and finite numbers"
        ) from None
    if size > MAX_BYTES:
        raise ValueError(
            f"MovableFigure: the data of a {kind!r} are {size:,} bytes; at most {MAX_BYTES:,} "
            "travel with a page: round the numbers, or show fewer frames"
        )
