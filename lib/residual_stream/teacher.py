"""One task for stacks of every depth: answer as a small random network does.

Inputs are random vectors, labels the choices of a fixed random teacher, and every batch is new, so
the loss is a training loss and a test loss at once. A deep stack could copy a shallow one and pass
its input on; whether it learns at least as much is the question of He et al. 2015.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from .blocks import Stack

WIDTH, CLASSES = 32, 10


@dataclass(frozen=True, eq=False, repr=False)
class TeacherRun:
    """One stack trained on the teacher's labels.

    Attributes:
        stack: The trained stack.
        losses: Cross-entropy at every step, in nats.
        first_gradients: Length of the loss's gradient at the input of each block before the first
            step, and at the top.
    """

    stack: Stack
    losses: Float[Tensor, " step"]
    first_gradients: Float[Tensor, " depth"]

    @property
    def final_loss(self) -> float:
        """Mean loss over the last tenth of the steps, in nats."""
        return float(self.losses[-max(1, len(self.losses) // 10) :].mean())

    def __repr__(self) -> str:
        """One line: the stack, the steps, the loss."""
        name = self.stack.cfg.model_name
        return f"TeacherRun({name}: {len(self.losses)} steps, loss {self.final_loss:.3f} nats)"


def teacher_labels(inputs: Float[Tensor, "row width"], *, seed: int = 0) -> Int[Tensor, " row"]:
    """Return the class that a fixed random network of one hidden layer gives each input.

    Args:
        inputs: Vectors of ``WIDTH`` standard normal numbers.
        seed: Seed of the teacher.

    Returns:
        Classes from 0 to ``CLASSES`` − 1.

    Example:
        >>> teacher_labels(torch.zeros(2, WIDTH)).tolist()
        [0, 0]
    """
    generator = torch.Generator().manual_seed(seed)
    hidden = 4 * torch.randn(WIDTH, 64, generator=generator) / WIDTH**0.5
    out = torch.randn(64, CLASSES, generator=generator)
    return (torch.tanh(inputs @ hidden) @ out).argmax(-1)


def train_on_teacher(
    variant: str, depth: int, *, seed: int = 0, steps: int = 300, rate: float = 1e-3
) -> TeacherRun:
    """Train a stack of MLP blocks of a variant with Adam, 256 new inputs a step.

    Args:
        variant: A name of :data:`residual_stream.connections.VARIANTS`.
        depth: Blocks; each has two weight matrices.
        seed: Seed of weights and inputs, drawn on the CPU.
        steps: Steps of the optimiser.
        rate: Its learning rate, constant.

    Returns:
        The trained stack, its losses, and its gradients before the first step.

    Example:
        >>> run = train_on_teacher("residual, pre-LN", 2, steps=20)
        >>> bool(run.losses[-1] < run.losses[0])
        True
    """
    # Imported here: blocks brings TransformerLens along, which takes seconds.
    from .blocks import Stack, StackConfig

    stack = Stack(
        StackConfig(
            variant=variant, n_layers=depth, d_model=WIDTH, d_mlp=WIDTH, d_vocab=CLASSES,
            n_heads=None, seed=seed,
        )
    )  # fmt: skip
    optimiser = torch.optim.Adam(stack.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(seed)
    losses, lengths = [], torch.zeros(0)
    for step in range(steps):
        inputs = torch.randn(256, WIDTH, generator=generator)
        streams = [inputs[:, None].requires_grad_()]
        for block in stack.blocks:
            streams.append(block(streams[-1]))
        logits = stack.unembed(stack.ln_final(streams[-1]))[:, 0]
        loss = torch.nn.functional.cross_entropy(logits, teacher_labels(inputs))
        if step == 0:
            gradients = torch.autograd.grad(loss, streams, retain_graph=True)
            lengths = torch.stack([gradient.norm() for gradient in gradients])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return TeacherRun(stack, torch.stack(losses), lengths)
