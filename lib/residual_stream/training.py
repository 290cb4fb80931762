"""A small training loop: windows of text, a schedule, and one generator that yields each step.

The shipped models are trained with it (`tools/train_bench.py`, `tools/train_induction.py`), and the
chapters train theirs with it. The loop knows nothing of files or plots: it yields after every
optimiser step, and the caller decides what to look at, when to save, and when to stop.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a training run.

    Attributes:
        steps: Number of optimiser steps.
        batch: Windows in a step.
        peak: Highest learning rate, reached after the warm-up.
        warmup: Steps over which the learning rate rises linearly from zero.
        floor: Learning rate at the end, as a share of the peak.
        weight_decay: AdamW's decay, on matrices only.
        betas: AdamW's two averaging rates.
        clip: Largest norm of the whole gradient; longer gradients are scaled to it.
        seed: Seed of the initialisation and of the batches.
    """

    steps: int
    batch: int
    peak: float
    warmup: int
    floor: float = 0.1
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that no run can have."""
        if not 0 <= self.warmup < self.steps:
            raise ValueError(
                f"Recipe: warmup {self.warmup} of {self.steps} steps; "
                "pass 0 or more, and fewer than steps"
            )
        if self.batch < 1:
            raise ValueError(f"Recipe: batch {self.batch}; pass 1 or more windows")


@dataclass(frozen=True)
class Step:
    """One optimiser step, as it was taken.

    Attributes:
        number: 1 for the first step; the weights now are those after `number` steps.
        loss: The loss of the batch before the step, in nats per token.
        learning_rate: Learning rate that the step used.
        grad_norm: Norm of the whole gradient before clipping.
    """

    number: int
    loss: float
    learning_rate: float
    grad_norm: float


@contextlib.contextmanager
def reproducible(*, seed: int, threads: int) -> Iterator[None]:
    """Run a block with seeded CPU draws, deterministic kernels and a fixed number of threads.

    The order of a float sum depends on the number of threads, so the number belongs to the recipe.
    Two runs on one machine then agree to the bit; machines with other vector units may not. The
    settings and the random state from before are restored at the end.

    Args:
        seed: Seed of the global generator inside the block.
        threads: Threads for one operation.

    Example:
        >>> with reproducible(seed=0, threads=1):
        ...     first = torch.randn(3)
        >>> with reproducible(seed=0, threads=1):
        ...     torch.equal(first, torch.randn(3))
        True
    """
    before_threads = torch.get_num_threads()
    before_kernels = torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        try:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(True)
            torch.manual_seed(seed)
            yield
        finally:
            torch.use_deterministic_algorithms(before_kernels)
            torch.set_num_threads(before_threads)


def learning_rate(step: int, recipe: Recipe) -> float:
    """Learning rate of a step: a linear rise to the peak, then half a cosine down to the floor.

    lr(t) = peak · t/w for t ≤ w, then peak · (f + (1 − f) · (1 + cos(π (t − w)/(T − w))) / 2).

    Args:
        step: Step number, 1 to `recipe.steps`.
        recipe: Gives the peak, the warm-up w, the floor f and the number of steps T.

    Raises:
        ValueError: If the step is outside 1 … `recipe.steps`.

    Source: Loshchilov & Hutter 2017 (SGDR), equation 5, without restarts.

    Example:
        >>> recipe = Recipe(steps=100, batch=1, peak=1e-3, warmup=10)
        >>> [round(learning_rate(t, recipe), 6) for t in (1, 10, 55, 100)]
        [0.0001, 0.001, 0.00055, 0.0001]
    """
    if not 1 <= step <= recipe.steps:
        raise ValueError(f"learning_rate: step {step}; pass 1 to {recipe.steps}")
    if step <= recipe.warmup:
        return recipe.peak * step / recipe.warmup
    progress = (step - recipe.warmup) / (recipe.steps - recipe.warmup)
    cosine = (1 + math.cos(math.pi * progress)) / 2
    return recipe.peak * (recipe.floor + (1 - recipe.floor) * cosine)


def log_steps(last: int, *, ratio: float = 4.0, count: int = 5) -> list[int]:
    """Step numbers on a log scale: 0, then `count` steps that end at `last`.

    Args:
        last: Number of the last step.
        ratio: Factor between neighbours.
        count: Steps after step 0. Those that round to the same number are listed once.

    Raises:
        ValueError: If `last` or `count` is below 1, or the ratio not above 1.

    Example:
        >>> log_steps(1280)
        [0, 5, 20, 80, 320, 1280]
    """
    if last < 1 or count < 1 or ratio <= 1:
        raise ValueError(
            f"log_steps: last={last}, count={count}, ratio={ratio}; "
            "last and count must be at least 1 and the ratio above 1"
        )
    return sorted({0} | {max(1, round(last / ratio**power)) for power in range(count)})


def windows(
    tokens: Int[Tensor, "length"], starts: Int[Tensor, "batch"], *, n_ctx: int, bos: int
) -> Int[Tensor, "batch n_ctx"]:
    """Windows of a token sequence, each with the start token at position 0.

    Args:
        tokens: The whole text as token ids.
        starts: Index into `tokens` of each window's first text token.
        n_ctx: Length of a window, the start token included.
        bos: Id of the start token.

    Returns:
        Token ids, shape `[batch, n_ctx]`; row i is `bos, tokens[s], …, tokens[s + n_ctx − 2]`
        with s = `starts[i]`.

    Raises:
        ValueError: If a window would run past either end of the text.

    Example:
        >>> windows(torch.arange(10, 20), torch.tensor([0, 5]), n_ctx=4, bos=0).tolist()
        [[0, 10, 11, 12], [0, 15, 16, 17]]
    """
    last = len(tokens) - (n_ctx - 1)
    if starts.numel() and (int(starts.min()) < 0 or int(starts.max()) > last):
        raise ValueError(
            f"windows: starts span {int(starts.min())} to {int(starts.max())}; "
            f"windows of {n_ctx} in {len(tokens)} tokens may start at 0 to {last}"
        )
    text = tokens[starts[:, None] + torch.arange(n_ctx - 1)]  # [batch, n_ctx - 1]
    return torch.cat([torch.full_like(text[:, :1], bos), text], dim=1)


def token_losses(
    logits: Float[Tensor, "batch pos vocab"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch predicted"]:
    """Cross-entropy of every predicted token, −log p(token at p + 1 | tokens up to p).

    Args:
        logits: The model's scores, shape `[batch, pos, vocab]`.
        tokens: What the model read, shape `[batch, pos]`.

    Returns:
        Losses in nats, shape `[batch, pos − 1]`; column p is the loss of the token at p + 1.

    Example:
        >>> uniform = torch.zeros(1, 3, 8)
        >>> token_losses(uniform, torch.tensor([[1, 2, 3]])).div(math.log(8)).tolist()
        [[1.0, 1.0]]
    """
    predicted, actual = logits[:, :-1], tokens[:, 1:]
    # flattened: over a transposed vocabulary, cross_entropy is several times slower
    losses = nn.functional.cross_entropy(
        predicted.flatten(0, 1), actual.flatten(), reduction="none"
    )
    return losses.view(actual.shape)


def train(
    model: nn.Module,
    batches: Iterable[Int[Tensor, "batch pos"]],
    recipe: Recipe,
    *,
    loss: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[Step]:
    """Train a language model with AdamW and yield each step after it was taken.

    The model is set to training mode at every step, so a caller may evaluate between two steps.

    Args:
        model: Module whose parameters are trained, in place.
        batches: Token ids, one tensor `[batch, pos]` a step; at least `recipe.steps` of them.
        recipe: Learning rate, decay, clipping and the number of steps.
        loss: Function from a batch's tokens to the scalar to lower, in nats per token. If None, it
            is the mean of `token_losses` of the model's output, logits `[batch, pos, vocab]`.

    Yields:
        `Step` with the batch's loss, the learning rate and the gradient's norm.

    Raises:
        ValueError: If the batches end before `recipe.steps`.
        FloatingPointError: If a loss or a gradient is not finite; the weights are those before.

    Source: Loshchilov & Hutter 2019 (AdamW); decay on matrices only as in GPT-2's descendants.
    """
    measure = loss or (lambda tokens: token_losses(model(tokens), tokens).mean())
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": recipe.weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ],
        betas=recipe.betas,
    )
    source = iter(batches)
    for number in range(1, recipe.steps + 1):
        tokens = next(source, None)
        if tokens is None:
            raise ValueError(
                f"train: the batches ended after {number - 1} steps; pass {recipe.steps}"
            )
        model.train()
        rate = learning_rate(number, recipe)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad()
        with torch.enable_grad():
            value = measure(tokens)
            value.backward()
        norm = float(nn.utils.clip_grad_norm_(trained, recipe.clip))
        if not (math.isfinite(value.item()) and math.isfinite(norm)):
            raise FloatingPointError(
                f"train: step {number} has loss {value.item()}, gradient {norm}"
            )
        optimiser.step()
        yield Step(number, value.item(), rate, norm)
