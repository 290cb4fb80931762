"""The prediction box: commit to an answer before you read on, and look back at what you said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import traitlets

from .base import MovableFigure

_BOX = {
    "legend": "Your prediction:",
    "compare": "Compare with the result",
    "forget": "Forget my answer",
    "none": "Pick one before you read on. Your answer is kept in this browser and goes nowhere.",
    "picked": "You predict {picked}. Read on; compare when you have seen the result.",
    "right": "You predicted {picked}, and so it came out.",
    "wrong": "You predicted {picked}. It came out as {answer}.",
}
_SHELF = {
    "none": "You have not predicted anything here yet, or this browser keeps nothing.",
    "chapter": "· {made} of {all}",
    "some": "You made {made} of {all} predictions; of {compared} compared, {right} came out.",
    "open": "{name}: you predict {predicted}; not compared yet.",
    "right": "{name}: you predicted {predicted}, and so it came out.",
    "wrong": "{name}: you predicted {predicted}; it came out as {found}.",
}


class Prediction(MovableFigure):
    """A question with options, of which the reader picks one before the result is shown.

    The answer is kept in the reader's browser alone (``localStorage``), under the box's name; where
    a browser keeps nothing, in the widget. :func:`predict` makes one.

    Attributes:
        picked: The letter picked; empty before.
        compared: Whether the reader has asked how it came out.
    """

    picked = traitlets.Unicode("").tag(sync=True)
    compared = traitlets.Bool(False).tag(sync=True)


def predict(
    name: str, options: Sequence[str] | Mapping[str, str], *, answer: str, question: str = ""
) -> Prediction:
    """Return a prediction box.

    Args:
        name: What the answer is kept under: ``"chapter/claim"``; one name a box.
        options: What can be predicted, in order; they get the letters a, b, c, …, or those that a
            mapping has for keys.
        answer: The letter of what came out.
        question: The question; if empty, it stands above the box with the options' texts, and the
            box shows the letters alone (screen readers get the texts).

    Returns:
        The box; show it as a cell's last value.

    Raises:
        ValueError: A name without a chapter, fewer than two options, an answer that is none of the
            letters.

    Example:
        >>> predict("subspaces/S2", ["all of it", "half"], answer="b")
        A box to predict in, for S2: (a) all of it, (b) half.
    """
    if not isinstance(options, Mapping):
        options = {chr(ord("a") + i): text for i, text in enumerate(options)}
    lettered = dict(options)
    _require(name, lettered, answer)
    listed = ", ".join(f"({letter}) {text}" for letter, text in lettered.items())
    about = name.split("/")[1]
    asked = f"{question} " if question else f"A box to predict in, for {about}: "
    return Prediction(
        kind="prediction",
        label=f"Your prediction for {about}",
        sentence=f"{asked}{listed}.",
        data={
            "name": name,
            "question": question,
            "options": lettered,
            "answer": answer,
            "words": _BOX,
        },
    )


def predictions(chapter: str, claims: Sequence[str]) -> MovableFigure:
    """Return a list of what the reader predicted in a chapter, and how it came out.

    Args:
        chapter: The part of the boxes' names before the slash.
        claims: The parts after it, in order.

    Raises:
        ValueError: No claims.

    Example:
        >>> predictions("subspaces", ["S2", "S5"])
        What you predicted in this chapter, for S2, S5: it shows where scripts run.
    """
    if not claims:
        raise ValueError("predictions: no claims are given; pass the names of the chapter's boxes")
    names = [f"{chapter}/{claim}" for claim in claims]
    return MovableFigure(
        kind="predictions",
        label="What you predicted in this chapter",
        sentence=f"What you predicted in this chapter, for {', '.join(claims)}: it shows where "
        "scripts run.",
        data={"chapters": [{"title": "", "names": names}], "words": _SHELF},
    )


def look_back(
    chapters: Mapping[str, Sequence[str]], *, links: Mapping[str, str] | None = None
) -> MovableFigure:
    """Return a list of what the reader predicted in several chapters, and how it came out.

    It can show what was kept by the same browser for the same site: answers given on Colab are
    Colab's, and stay there.

    Args:
        chapters: Title to the names of its boxes, each ``"chapter/claim"``, in order.
        links: Title to an address, for chapters that have one.

    Raises:
        ValueError: No chapters, or one without boxes.

    Example:
        >>> look_back({"1 · The bus": ["bus/B8"], "3 · Attribution": ["attribution/A3"]})
        What you predicted in 1 · The bus, 3 · Attribution: it shows where scripts run.
    """
    if not chapters or not all(chapters.values()):
        raise ValueError(
            f"look_back: chapters = {dict(chapters)}; pass titles, each with the names of its boxes"
        )
    return MovableFigure(
        kind="predictions",
        label="What you predicted, chapter by chapter",
        sentence=f"What you predicted in {', '.join(chapters)}: it shows where scripts run.",
        data={
            "chapters": [
                {"title": title, "href": (links or {}).get(title, ""), "names": list(names)}
                for title, names in chapters.items()
            ],
            "words": _SHELF,
        },
    )


def _require(name: str, options: dict[str, Any], answer: str) -> None:
    chapter, slash, claim = name.partition("/")
    if not (chapter and slash and claim) or "/" in claim:
        raise ValueError(
            f'predict: name = {name!r}; it must be "chapter/claim", so that answers do not collide'
        )
    if len(options) < 2:
        raise ValueError(f"predict: {len(options)} options; one can be wrong among two at least")
    if answer not in options:
        raise ValueError(f"predict: answer = {answer!r}; the options are {list(options)}")
