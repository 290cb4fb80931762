r"""How a branch's output meets what was there before: every variant is one short ``forward``.

Given the stream :math:`x` and a branch :math:`f` (attention or MLP), a connection returns the next
:math:`x`. What it adds to the stream, or puts in its place, passes the hook point ``write``. Where
:attr:`Connection.sums` is true, the stream is a running sum of these writes and a ledger can be
kept of it; elsewhere it is not, and :attr:`Connection.formula` shows why. :data:`VARIANTS` pairs
each with the initialisation that belongs to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .initialisation import Scheme

Map = Callable[[Tensor], Tensor]


class Connection(nn.Module):
    """One of the connections below; made for one branch of a stack.

    Args:
        width: :math:`d`, the length of the stream's vectors.
        layer: :math:`l`, the block, counted from 1.
        n_layers: :math:`L`, the number of blocks.
        n_branches: Branches in the whole stack: 2L with attention and MLP, L with MLP only.

    Attributes:
        formula: The next stream, with :math:`x`, :math:`f` and LN.
        sums: Whether the stream is a running sum of the writes.
        final_norm: Whether the stack ends in a norm.
    """

    formula: ClassVar[str]
    sums: ClassVar[bool] = True
    final_norm: ClassVar[bool] = True

    def __init__(self, width: int, *, layer: int, n_layers: int, n_branches: int) -> None:
        """Make the connection's own parameters."""
        super().__init__()
        self.width, self.layer = width, layer
        self.n_layers, self.n_branches = n_layers, n_branches
        self.build()

    def build(self) -> None:
        """Make what this connection learns: one norm, unless a subclass says otherwise."""
        self.norm = nn.LayerNorm(self.width)

    def forward(self, x: Float[Tensor, "*at d"], f: Map, write: Map) -> Float[Tensor, "*at d"]:
        """Return the next stream."""
        raise NotImplementedError


class PreLN(Connection):
    """The branch reads a normalised copy (Xiong et al. 2020, figure 1b)."""

    formula = "x + f(LN x)"

    def forward(self, x: Float[Tensor, "*at d"], f: Map, write: Map) -> Float[Tensor, "*at d"]:
        """Return the next stream."""
        return x + write(f(self.norm(x)))


class PostLN(Connection):
    """The sum is normalised (Vaswani et al. 2017, section 3.1)."""

    formula = "LN(x + f(x))"
    sums = False
    final_norm = False

    def forward(self, x: Float[Tensor, "*at d"], f: Map, write: Map) -> Float[Tensor, "*at d"]:
        """Return the next stream."""
        return self.norm(x + write(f(x)))


class Sandwich(Connection):
    """The branch reads a normalised copy, and its output is normalised too (Kim et al. 2025)."""

    formula = "x + LN′(f(LN x))"

    def build(self) -> None:
        """Make two norms."""
        self.norm, self.norm_out = nn.LayerNorm(self.width), nn.LayerNorm(self.width)

    def forward(self, x: Float[Tensor, "*at d"], f: Map, write: Map) -> Float[Tensor, "*at d"]:
        """Return the next stream."""
        return x + write(self.norm_out(f(self.norm(x))))


class DeepNorm(Connection):
    r"""Post-LN with a *larger* skip, :math:`\alpha = (2L)^{1/4}` (Wang et al. 2022, figure 2)."""

    formula = "LN(α x + f(x)), α = (2L)^¼"
    sums = False
    final_norm = False

    @property
    def alpha(self) -> float:
        """The factor on the skip, for a decoder alone."""
        return (2 * self.n_layers) ** 0.25

    def forward(self, x: Float[Tensor, "*at d"], f: Map, write: Map) -> Float[Tensor, "*at d"]:
        """Return the next stream."""
        return self.norm(self.alpha * x + write(f(x)))


class DepthScaled(Connection):
    r"""Pre-LN whose norm's output shrinks as :math:`1/\sqrt l` (Sun et al. 2025, equation 5)."""

    formula = "x + f(LN x / √l)"

    def forward(self, x: Float[Tensor, "*at d"], f: Map, write: Map) -> Float[Tensor, "*at d"]:
        """Return the next stream."""
        return x + write(f(self.norm(x) / math.sqrt(self.layer)))


class LayerScale(Connection):
    r"""Pre-LN with one learned factor per coordinate, small at first (Touvron et al. 2021).

    :math:`\varepsilon` is 0.1 up to 18 layers, 10⁻⁵ up to 24 and 10⁻⁶ beyond (section 2).
    """

    formula = "x + λ ⊙ f(LN x), λ = ε at first"

    @property
    def epsilon(self) -> float:
        """Where the factors start."""
        return 0.1 if self.n_layers <= 18 else 1e-5 if self.n_layers <= 24 else 1e-6

    def build(self) -> None:
        """Make one norm and the factors."""
        self.norm = nn.LayerNorm(self.width)
        self.scale = nn.Parameter(torch.full((self.width,), self.epsilon))

    def forward(self, x: Float[Tensor, "*at d"], f: Map, write: Map) -> Float[Tensor, "*at d"]:
        """Return the next stream."""
        return x + write(self.scale * f(self.norm(x)))


class Scaled(Connection):
    """No norm; one learned factor per branch, 1 at first: the third rule of Fixup."""

    formula = "x + a f(x), a = 1 at first"
    final_norm = False

    @property
    def start(self) -> float:
        """Where the factor starts."""
        return 1.0

    def build(self) -> None:
        """Make the factor, and no norm."""
        self.scale = nn.Parameter(torch.tensor(self.start))

    def forward(self, x: Float[Tensor, "*at d"], f: Map, write: Map) -> Float[Tensor, "*at d"]:
        """Return the next stream."""
        return x + write(self.scale * f(x))


class ReZero(Scaled):
    """No norm; a learned factor that starts at 0 (Bachlechner et al. 2020, equation 1).

    One factor per branch; the paper's Transformer shares one between the two branches of a layer.
    """

    formula = "x + a f(x), a = 0 at first"

    @property
    def start(self) -> float:
        """Where the factor starts."""
        return 0.0


class SkipInit(Scaled):
    r"""No norm; a learned factor that starts at :math:`1/\sqrt N` for N branches.

    De and Smith (2020) start it at 0 or at this, the largest value that trained at every depth.
    From 0 it is ReZero.
    """

    formula = "x + a f(x), a = 1/√N at first"

    @property
    def start(self) -> float:
        """Where the factor starts."""
        return self.n_branches**-0.5


class Residual(Connection):
    """A shortcut and nothing else (He et al. 2015, equation 1)."""

    formula = "x + f(x)"
    final_norm = False

    def build(self) -> None:
        """Make nothing."""

    def forward(self, x: Float[Tensor, "*at d"], f: Map, write: Map) -> Float[Tensor, "*at d"]:
        """Return the next stream."""
        return x + write(f(x))


class Plain(Residual):
    """No shortcut: every branch replaces what it read."""

    formula = "f(x)"
    sums = False

    def forward(self, x: Float[Tensor, "*at d"], f: Map, write: Map) -> Float[Tensor, "*at d"]:
        """Return the next stream."""
        return write(f(x))


class PlainLN(Connection):
    """No shortcut, with a norm before every branch: sizes are kept, and nothing else is."""

    formula = "f(LN x)"
    sums = False

    def forward(self, x: Float[Tensor, "*at d"], f: Map, write: Map) -> Float[Tensor, "*at d"]:
        """Return the next stream."""
        return write(f(self.norm(x)))


class Highway(Connection):
    r"""A learned gate :math:`T = \mathrm{sigmoid}(W_T x + b_T)` divides between branch and skip.

    :math:`b_T` starts negative, so that the stack starts close to the identity (Srivastava et al.
    2015, section 2.2 and their choice for deep stacks, −2 here).
    """

    formula = "T ⊙ f(x) + (1 − T) ⊙ x"
    sums = False
    final_norm = False
    gate_bias: ClassVar[float] = -2.0

    def build(self) -> None:
        """Make the gate."""
        self.gate = nn.Linear(self.width, self.width)

    def mix(self, x: Tensor, read: Tensor, f: Map, write: Map) -> Tensor:
        """Return the stream, gated by and branched from what was read."""
        gate = self.gate(read).sigmoid()
        return write(gate * f(read)) + (1 - gate) * x

    def forward(self, x: Float[Tensor, "*at d"], f: Map, write: Map) -> Float[Tensor, "*at d"]:
        """Return the next stream."""
        return self.mix(x, x, f, write)


class HighwayLN(Highway):
    """A highway whose gate and branch read a normalised copy."""

    formula = "T ⊙ f(LN x) + (1 − T) ⊙ x"
    final_norm = True

    def build(self) -> None:
        """Make the gate and a norm."""
        super().build()
        self.norm = nn.LayerNorm(self.width)

    def forward(self, x: Float[Tensor, "*at d"], f: Map, write: Map) -> Float[Tensor, "*at d"]:
        """Return the next stream."""
        return self.mix(x, self.norm(x), f, write)


@dataclass(frozen=True)
class Variant:
    """One way to build a stack.

    Attributes:
        connection: How a branch's output meets the stream.
        scheme: Where the weights start.
        source: Where it comes from.
    """

    connection: type[Connection]
    scheme: Scheme
    source: str

    @property
    def sums(self) -> bool:
        """Whether the stream is a running sum of what the branches write."""
        return self.connection.sums


VARIANTS: dict[str, Variant] = {
    "pre-LN": Variant(PreLN, "xavier", "Xiong et al. 2020"),
    "post-LN": Variant(PostLN, "xavier", "Vaswani et al. 2017"),
    "sandwich": Variant(Sandwich, "xavier", "Kim et al. 2025"),
    "DeepNorm": Variant(DeepNorm, "deepnorm", "Wang et al. 2022"),
    "GPT-2": Variant(PreLN, "gpt2", "Radford et al. 2019"),
    "depth-scaled": Variant(DepthScaled, "xavier", "Sun et al. 2025"),
    "LayerScale": Variant(LayerScale, "xavier", "Touvron et al. 2021"),
    "ReZero": Variant(ReZero, "xavier", "Bachlechner et al. 2020"),
    "SkipInit": Variant(SkipInit, "he", "De and Smith 2020"),
    "Fixup": Variant(Scaled, "fixup", "Zhang et al. 2019"),
    "residual": Variant(Residual, "he", "He et al. 2015"),
    "residual, pre-LN": Variant(PreLN, "he", "He et al. 2016"),
    "plain": Variant(Plain, "he", "before 2015"),
    "plain, LN": Variant(PlainLN, "he", "before 2015"),
    "highway": Variant(Highway, "he", "Srivastava et al. 2015"),
    "highway, LN": Variant(HighwayLN, "he", "Srivastava et al. 2015"),
}
