r"""What counts as a fault of a stream: one stated criterion each.

With :math:`x` the stream that a write :math:`\Delta` joins, :math:`g` the gradient of the loss, all
as root mean squares over tokens without position 0:

============== ==================================================================================
kind           criterion
============== ==================================================================================
dead           what differs between tokens in :math:`\Delta` is below single-precision rounding of
               :math:`\lVert x\rVert + \lVert\Delta\rVert`
unread         no gradient reaches a branch that is trained, though it reaches the stream
exploding      in the upper half of a pre-norm stack, :math:`\lVert\Delta\rVert > \lVert x\rVert`
               (one write outweighs all before it; tenfold for the last write, which may well be
               most of what is read out) and the ratio grew faster than the number of steps: more
               than twofold while the steps doubled
precision      adding :math:`\Delta` leaves more than half of the entries that it would change as
               they were; or a value is not finite
frozen         a norm's gain stayed the same to the bit while a matrix of its block moved
initialisation at the first step of a fresh stack, less than a tenth of the identity path gets
               through the norms above a block,
               :math:`\prod (1 + \lVert\Delta\rVert^2/\lVert x\rVert^2)^{-1/2} < 0.1` (post-norm);
               or :math:`\lVert g_l\rVert\lVert x_l\rVert` differs more than tenfold from the top's
gradient       the same a hundredfold, later: a depth hardly feels the loss, or feels nothing else
sink           position 0 holds more than half of the stream's squared norm (a note, no fault)
============== ==================================================================================

The first four, frozen and gradient must hold in three samples in a row. A criterion is an order of
magnitude, a majority or a rounding. Two were widened after sound runs went beyond the first choice:
gradient's hundredfold, since first steps go beyond tenfold, and exploding's tenfold for the last
write. A stack without any norm gain cannot show that it is fresh, so initialisation is not judged
there; gradient is. Behind the products: a branch that reads a normalised copy does not see the
stream's length, so in a sound stack a *relative* change of the stream moves the loss by about as
much at every depth.

Source: Xiong et al. 2020 and Liu et al. 2020 (post-norm); Micikevicius et al. 2018, section 3.1
(updates lost to rounding); Lu et al. 2020 (dying ReLU); Sun et al. 2024 (position 0).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .history import FIELDS, History

PATIENCE = 3
#: An order of magnitude, for a stack that has not been trained yet.
ORDER = 10.0
#: Two orders, while it trains: the first steps of sound runs pass through one.
TWO_ORDERS = 100.0
_SHOWN = {"attn": "attention", "mlp": "MLP"}


@dataclass(frozen=True)
class Finding:
    """One thing found in a run.

    Attributes:
        kind: Which criterion of this module's table.
        layer: The block; the number of blocks for a norm behind the last.
        step: The optimiser step at which the criterion was met.
        part: The branch, norm or stream concerned.
        text: What was found, in words.
    """

    kind: str
    layer: int
    step: int
    part: str
    text: str

    @property
    def key(self) -> tuple[str, int, str]:
        """What makes two findings the same."""
        return self.kind, self.layer, self.part

    @property
    def is_fault(self) -> bool:
        """Whether something should be done; a sink is a note."""
        return self.kind != "sink"

    def __str__(self) -> str:
        """The finding in words, with layer and step."""
        return f"step {self.step}, layer {self.layer}: {self.text}"


def judge(history: History) -> list[Finding]:
    """Return what the latest sample completes, the lowest layer first within a kind.

    Args:
        history: The samples so far.
    """
    if not history.samples:
        return []
    view = _View(history)
    found = [*_finite(view), *_start(view), *_sink(view)]
    if len(history.samples) >= PATIENCE:
        found += [*_dead(view), *_unread(view), *_exploding(view), *_lost(view), *_frozen(view)]
        found += _gradient(view)
    return found


class _View:
    """The last samples of a history, by field."""

    def __init__(self, history: History) -> None:
        self.history, self.parts = history, history.parts
        self.n_layers = history.parts[-1][0]
        self.step = history.samples[-1].step
        self.recent = history.samples[-PATIENCE:]
        self.table = torch.stack([sample.table for sample in self.recent]).double()
        self.streams = [i for i, (_, part) in enumerate(self.parts) if part == "stream"]
        self.writes = [i for i, (_, part) in enumerate(self.parts) if part != "stream"]

    def __getitem__(self, name: str) -> Float[Tensor, "time part"]:
        return self.table[:, :, FIELDS.index(name)]

    def found(self, kind: str, at: int, text: str, *, part: str | None = None) -> Finding:
        layer, own = self.parts[at]
        return Finding(kind, layer, self.step, own if part is None else part, text)

    def branch(self, at: int) -> str:
        part = self.parts[at][1]
        return f"the {_SHOWN.get(part, part)} branch"

    def sensitivity(self) -> Float[Tensor, "time depth"]:
        """‖g‖‖x‖ at every depth, over the top's."""
        felt = (self["gradient"] * self["norm"])[:, self.streams]
        return felt / felt[:, -1:]


def _finite(view: _View) -> Iterator[Finding]:
    for at in range(len(view.parts)):
        seen = view["norm"][-1, at]
        if not math.isfinite(seen) and view.history.was_finite(at):
            what = "the stream below this block" if at in view.streams else view.branch(at)
            yield view.found("precision", at, f"{what} is no longer finite", part="finite")
            return  # whatever comes after it is not finite either


def _start(view: _View) -> Iterator[Finding]:
    if view.step != 1 or not view.history.fresh:
        return
    if view.history.placement == "post":
        ratios = (view["norm"] / view["before"])[-1]
        through = 1.0
        for at in reversed(view.writes):
            through /= math.sqrt(1 + float(ratios[at]) ** 2)
            if through < 1 / ORDER:
                yield view.found(
                    "initialisation", at, "the stack starts with branches too large for norms "
                    f"that come after the sum: {through:.2g} of the identity path gets from below "
                    "this block to the top; scale branches down or the skip up, with depth",
                    part="stream",
                )  # fmt: skip
                return
    yield from _outside(view, view.sensitivity()[-1:], "initialisation", ORDER)


def _gradient(view: _View) -> Iterator[Finding]:
    known = view.history.has("initialisation") and view.history.placement == "pre"
    if view.recent[0].step > 1 and not known and not view.history.has("gradient"):
        yield from _outside(view, view.sensitivity(), "gradient", TWO_ORDERS)


def _outside(
    view: _View, felt: Float[Tensor, "time depth"], kind: str, factor: float
) -> Iterator[Finding]:
    """The highest depth at which every sample is out of proportion, all below it included."""
    for low in (True, False):
        out = ((felt < 1 / factor) if low else (felt > factor)).all(0)
        if not bool(out.any()):
            continue
        depth = int(out.nonzero().max())
        worst = float(felt[-1].min() if low else felt[-1].max())
        words = "hardly moves" if low else "is moved out of all proportion by"
        yield view.found(
            kind, view.streams[min(depth, view.n_layers - 1)],
            f"the loss {words} the stream from here down: a relative change counts "
            f"{worst:.2g} times what it counts at the top",
        )  # fmt: skip
        return


def _sink(view: _View) -> Iterator[Finding]:
    length = view.recent[-1].length
    for at in view.streams:
        ratio = float((view["first"] / view["norm"])[-1, at])
        if length > 2 and ratio**2 > length - 1:
            if not view.history.has("sink"):
                yield view.found(
                    "sink", at, f"(a note) position 0 is {ratio:.0f} times as long as the others "
                    "and holds more than half of the stream's squared norm; averages over "
                    "positions are about that one",
                )  # fmt: skip
            return


def _dead(view: _View) -> Iterator[Finding]:
    floor = torch.finfo(torch.float32).eps * (view["before"] + view["norm"])
    if not all(bool(sample.block_moved.any()) for sample in view.recent):
        return  # nothing learns yet
    for at in view.writes:
        if bool((view["varies"][:, at] <= floor[:, at]).all()):
            silent = float(view["norm"][-1, at]) <= float(floor[-1, at])
            what = "writes nothing" if silent else "writes the same vector at every position"
            yield view.found("dead", at, f"{view.branch(at)} {what}")


def _unread(view: _View) -> Iterator[Finding]:
    for at in view.writes:
        layer = view.parts[at][0]
        above = view.parts.index((layer + 1, "stream"))
        stream = (view["gradient"][:, above] > 0).all()
        own = view["gradient"][:, at]  # nan where no gradient could be seen
        if view.history.trainable[at] and bool(stream) and bool((own == 0).all()):
            yield view.found(
                "unread", at, f"{view.branch(at)} writes, but no gradient comes back to it: what "
                "it writes is detached, or nothing reads it",
            )  # fmt: skip


def _exploding(view: _View) -> Iterator[Finding]:
    if view.history.placement == "post":
        return  # there the norm takes every sum back to one length
    now = view["norm"] / view["before"]
    for at in view.writes:
        layer = view.parts[at][0]
        enough = ORDER if at == view.writes[-1] else 1.0
        if layer < view.n_layers / 2 or not bool((now[:, at] > enough).all()):
            continue
        if all(view.history.grew_faster_than_time(at, sample) for sample in view.recent):
            yield view.found(
                "exploding", at, f"{view.branch(at)} writes {float(now[-1, at]):.1f} times the "
                "stream that it joins, and this ratio grows faster than the number of steps",
            )  # fmt: skip


def _lost(view: _View) -> Iterator[Finding]:
    if view.history.has("precision"):
        return
    for at in view.writes:
        share = view["lost"][:, at]
        if bool((share > 0.5).all()):
            kind = str(view.history.dtype).removeprefix("torch.")
            yield view.found(
                "precision", at, f"the stream has outgrown {kind}: {float(share[-1]):.0%} of what "
                f"{view.branch(at)} writes is rounded away where it is added; so may be other "
                "writes from here up",
            )  # fmt: skip
            return


def _frozen(view: _View) -> Iterator[Finding]:
    gains = torch.stack([sample.gain_moved for sample in view.recent])
    blocks = torch.stack([sample.block_moved for sample in view.recent])
    silent = {finding.layer for finding in (*_dead(view), *_unread(view))}
    for i, (layer, name) in enumerate(view.history.gains):
        if layer in silent:  # of course it stands still
            continue
        moving = blocks[:, layer] if layer < view.n_layers else blocks.any(1)
        if bool(moving.all()) and not bool(gains[:, i].any()):
            yield Finding(
                "frozen", layer, view.step, name,
                f"the gain of the norm {name} has not changed by a bit while its block learns: "
                "left out of the optimiser, not trained, or stepped below its precision",
            )  # fmt: skip
