"""What runs in a submission's own process: its cells, then the questions; plain data goes out.

Nothing here knows a right answer. A cell that fails or takes too long is noted, and the next one
runs: a notebook is graded for what it holds.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import residual_stream as rs
from residual_stream import checks

from .plain import NotPlain, frame

Emit = Callable[[bytes], None]
_COLAB = re.compile(
    r"^(\s*)(from\s+google\.colab\b|import\s+google\.colab\b|drive\.mount\().*$", re.M
)


class TooSlow(BaseException):
    """A cell or a test used up its time; no `Exception`, so that `except Exception` ends too."""


@contextlib.contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` inside after so many seconds, again and again until it is heard."""

    def stop(number: int, where: FrameType | None) -> None:
        raise TooSlow(f"more than {seconds:g} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def warm_up() -> None:
    """Import what is otherwise imported when the first model is loaded; it takes seconds."""
    from residual_stream.architectures import random_model

    rs.load("bench")
    for name in ("gpt2", "llama"):
        random_model(name)


def run(job: dict[str, Any], emit: Emit) -> None:
    """Run a submission's cells and ask what the sheet asks.

    Args:
        job: `cells` (sources), `tests` (key, inputs, given), `checks` (sheet and names), `texts`
            (names), `closed` (names of the library), `seed`, `cell_seconds`.
        emit: Takes frames of plain data.
    """
    shell = _shell()
    _close(job["closed"])
    trouble = [
        _run_cell(shell, i, cell, job["cell_seconds"]) for i, cell in enumerate(job["cells"])
    ]
    emit(frame("cells", [note for note in trouble if note]))
    names = dict(shell.user_ns)
    for name in job["texts"]:
        text = names.get(name)
        emit(frame(f"text/{name}", text if isinstance(text, str) else None))
    for test in job["tests"]:
        space = {**names, "rs": rs, "torch": torch, "SEED": job["seed"]}
        emit(_answer(test["key"], lambda space=space, test=test: _given(test, space), job))
    for sheet, name in job["checks"]:
        answer = names.get(name)
        if answer is not None and answer is not ...:
            emit(
                _answer(
                    f"check/{name}", lambda s=sheet, n=name, a=answer: checks.collect(s, n, a), job
                )
            )


def _given(test: dict[str, str], space: dict[str, Any]) -> Any:
    exec(compile(test["inputs"], "<inputs>", "exec"), space)
    exec(compile(test["given"], "<question>", "exec"), space)
    return space["given"]


def _answer(key: str, ask: Callable[[], Any], job: dict[str, Any]) -> bytes:
    try:
        with interrupted_after(job["cell_seconds"]):
            return frame(key, {"given": ask()})
    except NotPlain as error:
        return frame(key, {"error": f"it returned {error}, where numbers or tensors are asked"})
    except BaseException as error:
        return frame(key, {"error": _said(error)})


def _said(error: BaseException) -> str:
    with contextlib.suppress(BaseException):
        return f"{type(error).__name__}: {error}"[:400]
    return "an error that can't be printed"


def _run_cell(shell: InteractiveShell, index: int, source: str, seconds: float) -> dict | None:
    source = _COLAB.sub(r"\1pass  # not on Colab here", source)
    try:
        with interrupted_after(seconds):
            result = shell.run_cell(source, store_history=False)
        error = result.error_before_exec or result.error_in_exec
    except BaseException as caught:
        error = caught
    return None if error is None else {"cell": index, "error": _said(error)}


def _shell() -> InteractiveShell:
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "NoColor"
    config.InteractiveShell.xmode = "Minimal"
    shell = InteractiveShell.instance(config=config)
    shell.display_formatter.active_types = ["text/plain"]
    shell.system = shell.system_raw  # the other ways want a terminal
    return shell


def _close(names: list[str]) -> None:
    """Put a refusal in the place of library functions that would answer a question of the sheet.

    A courtesy to those who forget, not a wall: what keeps marks honest is that the answer has to be
    computed. The library's own modules keep the functions that they use.
    """
    for name in names:
        original = getattr(rs, name)
        refuse = _refusal(name)
        if inspect.ismodule(original):  # "growth" closes what a chapter imports from it
            for part, function in inspect.getmembers(original, inspect.isfunction):
                if function.__module__ == original.__name__:
                    setattr(original, part, refuse)
            continue
        setattr(rs, name, refuse)
        home = sys.modules.get(getattr(original, "__module__", ""))
        if home is not None and hasattr(home, name):
            setattr(home, name, refuse)


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"rs.{name} is closed on this sheet: write it yourself")

    return refuse
