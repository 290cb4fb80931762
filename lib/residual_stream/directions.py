"""Sets of directions, careless and careful, and the largest cosine among them."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


def running_max_cosine(
    vectors: Float[Tensor, "count width"], *, block: int = 512
) -> Float[Tensor, " count"]:
    r"""Return the largest :math:`|\cos|` among the first 1, 2, … vectors (0 for the first alone).

    Args:
        vectors: Directions, one a row; lengths do not matter.
        block: Rows compared at once.

    Returns:
        A non-decreasing sequence; its last entry is the largest :math:`|\cos|` of the whole set.

    Example:
        >>> running_max_cosine(torch.eye(3)[[0, 1, 1]]).tolist()
        [0.0, 0.0, 1.0]
    """
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    worst = unit.new_zeros(len(unit))
    for start in range(0, len(unit), block):
        rows = unit[start : start + block]
        cosines = (rows @ unit[: start + len(rows)].T).abs_()
        worst[start : start + len(rows)] = cosines.tril_(start - 1).amax(dim=1)
    return worst.cummax(dim=0).values


def random_directions(
    width: int, count: int, *, seed: int = 0, device: str | torch.device = "cpu"
) -> Float[Tensor, "count width"]:
    """Return ``count`` independent uniform unit vectors, drawn on the CPU and moved.

    Example:
        >>> random_directions(576, 3).shape
        torch.Size([3, 576])
    """
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, width, generator=generator).to(device)
    return vectors / vectors.norm(dim=1, keepdim=True)


def two_bases(width: int) -> Float[Tensor, "{2*width} {width}"]:
    r"""Return 2d directions with largest :math:`|\cos|` exactly :math:`1/\sqrt d`.

    The standard basis and the rows of a Hadamard matrix over :math:`\sqrt d`. It shows what a
    careful set does where a random one is hopeless.

    Args:
        width: d, a power of 2 times any product of 12s and 20s: 576, 2,560, 4,096 and 8,192 are.

    Raises:
        ValueError: No Hadamard matrix of that order is built here.

    Example:
        >>> round(float(running_max_cosine(two_bases(576))[-1]) * 24, 5)
        1.0
    """
    return torch.cat([torch.eye(width), _hadamard(width) / math.sqrt(width)])


def _hadamard(order: int) -> Tensor:
    # Sylvester's doubling, and Paley's first construction for 12 (q = 11) and 20 (q = 19).
    matrix, rest = torch.ones(1, 1), order
    while rest > 1:
        factor = next((f for f in (12, 20, 2) if rest % f == 0 and _reaches_one(rest // f)), None)
        if factor is None:
            raise ValueError(
                f"two_bases: width {order} is not a power of 2 times 12s and 20s, so no Hadamard "
                "matrix is built for it; 576, 2560, 4096 and 8192 are such widths"
            )
        part = torch.tensor([[1.0, 1.0], [1.0, -1.0]]) if factor == 2 else _paley(factor - 1)
        matrix, rest = torch.kron(matrix, part), rest // factor
    return matrix


def _reaches_one(number: int) -> bool:
    return number == 1 or any(
        number % factor == 0 and _reaches_one(number // factor) for factor in (12, 20, 2)
    )


def _paley(prime: int) -> Tensor:
    squares = {value * value % prime for value in range(1, prime)}
    sign = [0.0] + [1.0 if value in squares else -1.0 for value in range(1, prime)]
    skew = torch.zeros(prime + 1, prime + 1)
    skew[0, 1:], skew[1:, 0] = 1.0, -1.0
    skew[1:, 1:] = torch.tensor(
        [[sign[(i - j) % prime] for j in range(prime)] for i in range(prime)]
    )
    return skew + torch.eye(prime + 1)
