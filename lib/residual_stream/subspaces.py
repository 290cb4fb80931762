r"""Where each head and MLP reads from the stream and writes to it, as subspaces.

A writer adds :math:`W^\top a` to the stream, so it writes into the columns of a
``[d_model, width]`` matrix. A reader takes :math:`W^\top(\gamma \odot x/\sigma)`, so what it reads
of the stream is the span of :math:`\gamma \odot W` (for a LayerNorm, with the mean over the width
taken out of every column): the gain belongs to the reader. TransformerLens's own head affinity
(``attention_head_subspace_affinity``) leaves the gain out on a raw model; its projection kernel is
used here, on matrices with the gain in.

How many directions a set of vectors really uses is measured by its singular values :math:`s_i`:

* numerical rank: how many :math:`s_i` exceed rounding;
* participation ratio: :math:`(\sum s_i^2)^2/\sum s_i^4`, the number of equal directions with the
  same concentration;
* stable rank: :math:`\sum s_i^2/\max s_i^2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from .divisor import read_norm

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

_READERS = {"q": "W_Q", "k": "W_K", "v": "W_V", "in": "W_in", "gate": "W_gate"}
_WRITERS = {"o": "W_O", "out": "W_out"}


@dataclass(frozen=True)
class Bandwidth:
    """How many directions a set of vectors spans and uses.

    Attributes:
        width: The dimension of the space, d_model.
        rank: Numerical rank.
        participation: Participation ratio, between 1 and ``rank``.
        stable: Stable rank, between 1 and ``rank``.
        singular_values: In descending order.
    """

    width: int
    rank: int
    participation: float
    stable: float
    singular_values: Float[Tensor, " value"]

    def directions_for(self, share: float) -> int:
        """Return how many leading directions hold ``share`` of the squared length.

        Raises:
            ValueError: ``share`` is not in (0, 1].
        """
        if not 0 < share <= 1:
            raise ValueError(f"Bandwidth.directions_for: share = {share}; allowed is 0 < share ≤ 1")
        power = self.singular_values.double().square().cumsum(0)
        # The last entries differ by rounding only; without the slack, share = 1 overshoots.
        return int((power < share * power[-1] * (1 - 1e-12)).sum()) + 1

    def __repr__(self) -> str:
        """One line: rank, participation ratio and stable rank."""
        return (
            f"Bandwidth(rank {self.rank} of {self.width}, participation {self.participation:.1f}, "
            f"stable rank {self.stable:.1f})"
        )


def bandwidth(vectors: Float[Tensor, "n d_model"], *, center: bool = False) -> Bandwidth:
    r"""Return how many directions the rows of ``vectors`` span and use.

    Args:
        vectors: One vector a row: the columns of a weight matrix (transposed), or what was written
            at many positions.
        center: Whether to take the mean vector out first, so that only variation counts.

    Returns:
        Rank, participation ratio and stable rank.

    Raises:
        ValueError: Fewer than one vector, or all of them zero.

    Example:
        >>> bandwidth(torch.eye(5)[:3])
        Bandwidth(rank 3 of 5, participation 3.0, stable rank 3.0)
    """
    matrix = vectors - vectors.mean(0) if center else vectors
    if len(matrix) == 0 or not bool(matrix.any()):
        raise ValueError(
            f"bandwidth: got {len(matrix)} vectors of width {matrix.shape[1]}, all zero; pass at "
            "least one that is not"
        )
    values = _singular_values(matrix)
    power = values.double().square()
    threshold = values[0] * max(matrix.shape) * torch.finfo(matrix.dtype).eps
    return Bandwidth(
        width=matrix.shape[1],
        rank=int((values > threshold).sum()),
        participation=float(power.sum().square() / power.square().sum()),
        stable=float(power.sum() / power[0]),
        singular_values=values,
    )


@dataclass(frozen=True, eq=False, repr=False)
class Port:
    """One reader's or writer's access to the stream.

    Attributes:
        layer: The block.
        kind: ``"q"``, ``"k"``, ``"v"``, ``"o"`` for a head; ``"in"``, ``"gate"``, ``"out"`` for
            an MLP.
        head: The head (key–value head for ``"k"`` and ``"v"``), None for an MLP.
        matrix: What it reads or writes, the norm's gain included for a reader.
    """

    layer: int
    kind: str
    head: int | None
    matrix: Float[Tensor, "d_model width"]

    @property
    def label(self) -> str:
        """For example ``"L3.H2.o"`` or ``"L3.mlp.in"``."""
        return f"L{self.layer}.{'mlp' if self.head is None else f'H{self.head}'}.{self.kind}"

    @cached_property
    def bandwidth(self) -> Bandwidth:
        """Its rank and effective ranks."""
        return bandwidth(self.matrix.T)

    @cached_property
    def subspace(self) -> Any:
        """TransformerLens's ``SubspaceBasis`` of the matrix: ``.basis``, ``.rank``."""
        # Imported here: TransformerLens takes seconds to import.
        from transformer_lens.tools.analysis.projection_kernel import orthonormal_subspace

        return orthonormal_subspace(self.matrix)

    def __repr__(self) -> str:
        """One line: label and shape."""
        return f"Port({self.label}: {self.matrix.shape[0]} × {self.matrix.shape[1]})"


def ports(
    model: TransformerBridge,
    *,
    direction: Literal["read", "write"],
    kinds: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
) -> list[Port]:
    """Return every head's and MLP's access to the stream.

    Args:
        model: A ``TransformerBridge`` with sequential or parallel blocks.
        direction: ``"read"`` for q, k, v, in, gate; ``"write"`` for o, out.
        kinds: Only these kinds; all of the direction if None.
        layers: Only these blocks; all if None.

    Returns:
        The ports, by block, then kind, then head.

    Raises:
        ValueError: A kind that the direction or the model does not have.

    Example:
        >>> import residual_stream as rs
        >>> rs.subspaces.ports(rs.load("bench"), direction="write", layers=[0])[-1]
        Port(L0.mlp.out: 128 × 512)
    """
    table = _READERS if direction == "read" else _WRITERS
    wanted = list(table) if kinds is None else list(kinds)
    if unknown := [kind for kind in wanted if kind not in table]:
        raise ValueError(
            f"ports: kind {unknown[0]!r} is not a {direction} kind; there are {list(table)}"
        )
    found = [
        port
        for layer in (range(len(model.blocks)) if layers is None else layers)
        for kind in wanted
        for port in _block_ports(model, layer, kind, table[kind])
    ]
    if missing := [kind for kind in kinds or () if all(port.kind != kind for port in found)]:
        raise ValueError(
            f"ports: this model has no {missing[0]!r}; it has {sorted({p.kind for p in found})}"
        )
    return found


def stacked(accesses: Sequence[Port]) -> Float[Tensor, "n d_model"]:
    """Return the columns of all ports as rows, each port scaled to squared length 1.

    With that scaling every port counts the same in :func:`bandwidth`, whatever its weights' size.
    """
    return torch.cat([port.matrix.T / port.matrix.norm() for port in accesses])


def principal_angles(
    first: Float[Tensor, "d_model p"], second: Float[Tensor, "d_model q"]
) -> Float[Tensor, " angle"]:
    """Return the principal angles between two column spaces, in degrees, smallest first.

    Args:
        first: A matrix whose columns span the first subspace.
        second: A matrix whose columns span the second.

    Returns:
        As many angles as the smaller rank; 0 for a shared direction, 90 for orthogonal ones.

    Example:
        >>> plane, line = torch.eye(3)[:, :2], torch.tensor([[0.0], [1.0], [1.0]])
        >>> [round(float(angle), 3) for angle in principal_angles(plane, line)]
        [45.0]
    """
    from transformer_lens.tools.analysis.projection_kernel import (
        orthonormal_subspace,
        projection_kernel,
    )

    result = projection_kernel(orthonormal_subspace(first), orthonormal_subspace(second))
    return torch.rad2deg(result.angles)


def overlaps(
    first: Sequence[Port], second: Sequence[Port]
) -> Float[Tensor, "{len(first)} {len(second)}"]:
    r"""Return the overlap of every pair of subspaces.

    .. math:: o = \frac{\lVert U^\top V\rVert_F^2}{\sqrt{r_U r_V}}

    with orthonormal bases U and V: 0 for orthogonal subspaces, 1 for equal ones. Two random
    subspaces of rank r have r/d on average. It is TransformerLens's normalised projection kernel,
    computed from projectors for all pairs at once.

    Args:
        first: Ports, one row of the result each.
        second: Ports, one column each.

    Returns:
        The overlaps, in [0, 1].
    """
    rows, columns = (_projectors(accesses) for accesses in (first, second))
    return rows @ columns.T


def mean_by_block(
    overlap: Float[Tensor, "first second"], first: Sequence[Port], second: Sequence[Port]
) -> Float[Tensor, "block_a block_b"]:
    """Return the mean overlap of the ports of every two blocks, a port with itself left out.

    Args:
        overlap: As :func:`overlaps` returns it.
        first: The ports of its rows.
        second: The ports of its columns.

    Returns:
        One row and column a block, from 0 to the highest; NaN where there is no pair.
    """
    same = torch.tensor([[a is b for b in second] for a in first], device=overlap.device)
    weight = (~same).to(overlap)
    rows, columns = (
        torch.nn.functional.one_hot(torch.tensor([port.layer for port in accesses])).to(overlap)
        for accesses in (first, second)
    )
    return (rows.T @ (overlap * weight) @ columns) / (rows.T @ weight @ columns)


def cosines(
    vectors: Float[Tensor, "n d_model"], *, pairs: int = 100_000, seed: int = 0
) -> Float[Tensor, " {pairs}"]:
    r"""Return the cosines of random pairs of different rows.

    Independent random directions would have mean 0 and standard deviation :math:`1/\sqrt d`.

    Args:
        vectors: At least two vectors, none of them zero.
        pairs: How many pairs to draw.
        seed: Of the draw, made on the CPU.

    Raises:
        ValueError: Fewer than two vectors.
    """
    if len(vectors) < 2:
        raise ValueError(f"cosines: got {len(vectors)} vector; a pair needs two")
    generator = torch.Generator().manual_seed(seed)
    left = torch.randint(len(vectors), (pairs,), generator=generator)
    step = torch.randint(1, len(vectors), (pairs,), generator=generator)
    right = (left + step) % len(vectors)
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    return (unit[left.to(unit.device)] * unit[right.to(unit.device)]).sum(1)


def _singular_values(matrix: Tensor) -> Tensor:
    # Many float32 vectors: the float64 Gram matrix is much faster, and its squared values still
    # resolve float32 rounding.
    if matrix.dtype == torch.float64 or len(matrix) <= matrix.shape[1]:
        return torch.linalg.svdvals(matrix.cpu())
    gram = sum((part.double().T @ part.double() for part in matrix.split(4096)), torch.zeros(()))
    return torch.linalg.eigvalsh(gram.cpu()).clamp_min(0).sqrt().flip(0).to(matrix.dtype)


def _projectors(accesses: Sequence[Port]) -> Tensor:
    rows = []
    for port in accesses:
        basis = port.subspace.basis
        rows.append((basis @ basis.T).flatten() / port.subspace.rank**0.5)
    return torch.stack(rows)


def _block_ports(model: TransformerBridge, layer: int, kind: str, name: str) -> list[Port]:
    block = model.blocks[layer]
    part = "mlp" if kind in ("in", "gate", "out") else "attn"
    if part not in block.submodules or (kind == "gate" and "gate" not in block.mlp.submodules):
        return []
    weight = getattr(getattr(block, part), name).detach()
    if kind in ("o", "out"):
        matrix = weight.mT
    else:
        norm = read_norm(block.ln2 if part == "mlp" and "ln2" in block.submodules else block.ln1)
        seen = [norm.seen_by(one) for one in weight.reshape(-1, *weight.shape[-2:])]
        matrix = torch.stack(seen).reshape(weight.shape)
    if part == "mlp":
        return [Port(layer, kind, None, matrix)]
    return [Port(layer, kind, head, one) for head, one in enumerate(matrix)]
