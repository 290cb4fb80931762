"""Six small training runs for the clinic: five with one planted fault each, one sound.

Every patient is a stack of :mod:`residual_stream.blocks` that learns the characters of the book's
own passages, in seconds and from a seed. The losses are recorded as they come; the monitor sees
what it would see in anybody's loop. :func:`diagnosis` says what was planted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor, nn

from .monitor import StreamMonitor
from .texts import PASSAGES
from .training import Recipe, reproducible, token_losses, train

WINDOW, BATCH, EVERY = 32, 16, 5
_WIDTH, _LAYERS = 64, 6
#: The largest number of the float8 format e4m3, to which weights are scaled before they are stored.
_FLOAT8_MAX = 448.0


@dataclass(frozen=True, eq=False, repr=False)
class Patient:
    """A training run that is over.

    Attributes:
        name: The patient's letter.
        losses: Loss of every step, nats per character.
        monitor: What the monitor saw, taken off.
    """

    name: str
    losses: list[float]
    monitor: StreamMonitor

    def __repr__(self) -> str:
        """One line: the letter, the steps, the loss at the end."""
        last = sum(self.losses[-10:]) / len(self.losses[-10:])
        return f"Patient({self.name}: {len(self.losses)} steps, loss {last:.2f} at the end)"


@dataclass(frozen=True)
class Diagnosis:
    """What was planted in a patient.

    Attributes:
        kind: The kind of finding that names it; empty if nothing was planted.
        layer: The block in which it shows; −1 if nothing was planted.
        cause: What was done, in words.
    """

    kind: str
    layer: int
    cause: str


def _nothing(model: nn.Module) -> None:
    """Leave the stack as it is."""


@dataclass(frozen=True)
class _Case:
    diagnosis: Diagnosis
    variant: str = "GPT-2"
    n_layers: int = _LAYERS
    steps: int = 80
    peak: float = 3e-3
    half: bool = False
    before: Callable[[nn.Module], None] = _nothing
    after: Callable[[nn.Module], None] = _nothing


def patients() -> list[str]:
    """Return the patients' letters.

    Example:
        >>> patients()
        ['A', 'B', 'C', 'D', 'E', 'F']
    """
    return list(_CASES)


def diagnosis(name: str) -> Diagnosis:
    """Return what was planted in a patient: look at the pictures first.

    Raises:
        ValueError: No such patient.
    """
    return _case(name).diagnosis


def train_patient(name: str, *, seed: int = 0, every: int = EVERY) -> Patient:
    """Train a patient with a monitor on and return its record.

    Args:
        name: One of :func:`patients`.
        seed: Of the initialisation and of the batches.
        every: Distance between the monitor's samples.

    Returns:
        Losses and monitor. The same seed gives the same run.

    Raises:
        ValueError: No such patient.
    """
    case = _case(name)
    with reproducible(seed=seed, threads=1):
        model = _stack(case, seed)
        with torch.no_grad():
            case.before(model)
        recipe = Recipe(steps=case.steps, batch=BATCH, peak=case.peak, warmup=8, seed=seed)
        monitor, losses = StreamMonitor(model, every=every), []
        for step in train(model, batches(seed), recipe, loss=_loss(model, half=case.half)):
            losses.append(step.loss)
            with torch.no_grad():
                case.after(model)
            monitor.step()
        monitor.remove()
    return Patient(name, losses, monitor)


def characters() -> list[str]:
    """Return the characters of the book's passages, each one a token."""
    return sorted(set("".join(PASSAGES.values())))


def batches(seed: int) -> Iterator[Int[Tensor, "batch pos"]]:
    """Yield windows of the passages, drawn at random."""
    known = characters()
    text = torch.tensor([known.index(character) for character in "".join(PASSAGES.values())])
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - WINDOW, (BATCH, 1), generator=generator)
        yield text[starts + torch.arange(WINDOW)]


def _case(name: str) -> _Case:
    if name not in _CASES:
        raise ValueError(f"clinic: no patient {name!r}; there are {patients()}")
    return _CASES[name]


def _stack(case: _Case, seed: int) -> nn.Module:
    # Imported here: the stacks bring TransformerLens along, which takes seconds to import.
    from .blocks import Stack, StackConfig

    return Stack(
        StackConfig(
            variant=case.variant, n_layers=case.n_layers, d_model=_WIDTH, n_ctx=WINDOW,
            d_vocab=len(characters()), seed=seed,
        )
    )  # fmt: skip


def _loss(model: nn.Module, *, half: bool) -> Callable[[Tensor], Tensor]:
    def in_single(tokens: Tensor) -> Tensor:
        return token_losses(model(tokens), tokens).mean()

    def in_half(tokens: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            stream = model.embedded(tokens).bfloat16()  # the stream itself, to save memory
            logits = model.unembed(model.ln_final(model.run_blocks(stream)))
        return token_losses(logits.float(), tokens).mean()

    return in_half if half else in_single


def _dying_relu(model: nn.Module) -> None:
    model.blocks[2].mlp.W_in.bias.fill_(-8.0)


def _unit_normal(model: nn.Module) -> None:
    mlp, generator = model.blocks[2].mlp, torch.Generator().manual_seed(0)
    for linear in (mlp.W_in, mlp.W_out):
        linear.weight.normal_(generator=generator)


def _growing(model: nn.Module) -> None:
    model.blocks[4].mlp.W_out.weight.mul_(1.05)


def _untrained_gain(model: nn.Module) -> None:
    model.blocks[3].mlp_connection.norm.weight.requires_grad_(False)


def _without_scale(model: nn.Module) -> None:
    weight = model.blocks[2].mlp.W_out.weight
    weight.mul_(_FLOAT8_MAX / weight.abs().max())


_CASES = {
    "A": _Case(
        Diagnosis(
            "frozen", 3, "the gain of the norm before the MLP of block 3 was not trained"
        ),
        before=_untrained_gain,
    ),
    "B": _Case(
        Diagnosis(
            "precision", 3, "the output matrix of the MLP of block 2 was read from float8 without "
            "its scale, and the stream is kept in bfloat16: what block 3 and those above write is "
            "rounded away",
        ),
        half=True,
        before=_without_scale,
    ),
    "C": _Case(Diagnosis("", -1, "nothing was planted")),
    "D": _Case(
        Diagnosis(
            "dead", 2, "the biases inside the MLP of block 2 started so low that no ReLU ever opens"
        ),
        before=_dying_relu,
    ),
    "E": _Case(
        Diagnosis(
            "initialisation",
            2,
            "the MLP of block 2 in a post-norm stack was drawn with unit normal weights instead "
            "of DeepNorm's",
        ),
        variant="DeepNorm",
        before=_unit_normal,
    ),
    "F": _Case(
        Diagnosis(
            "exploding", 4, "weight decay with the wrong sign on the output matrix of the MLP of "
            "block 4: it grows by a twentieth at every step",
        ),
        after=_growing,
    ),
}  # fmt: skip
