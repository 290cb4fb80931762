r"""Turn the stream of a whole model by a random rotation, weights and all: same logits.

Let R be a rotation of the stream's d_model numbers. Fold every norm's gain γ and bias β into the
matrices that read it, :math:`W^\top(\gamma\odot\hat x+\beta) = (\gamma\odot W)^\top\hat x +
W^\top\beta`; turn every reader, :math:`W \to RW`, and every writer, :math:`W \to WR^\top`, the
embedding included. An RMSNorm without gain commutes with R, because it only divides by a length.
A LayerNorm also takes the mean over the width out; it commutes with every R that keeps the
direction of the mean, so for LayerNorm models R is drawn among those.

Source: the symmetry is that of Elhage et al. 2021, *A Mathematical Framework for Transformer
Circuits* ("no privileged basis"); with gains folded it is used by Ashkboos et al. 2024, *SliceGPT*.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .divisor import NormError, read_norm
from .wiring import WiringError, read_wiring

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

_READERS = ("q", "k", "v", "qkv", "in", "gate")
_WRITERS = ("o", "out")
_INNER = ("q_norm", "k_norm")  # act inside a head, after the stream has been read
_STAGES = ("embed", "pos_embed", "rotary_emb", "blocks", "ln_final", "unembed")


class RotationError(NotImplementedError):
    """A model whose stream this library does not know how to rotate."""


@dataclass(frozen=True, eq=False, repr=False)
class RotatedModel:
    """A copy of a model whose stream is turned.

    Attributes:
        model: The rotated copy: a ``TransformerBridge`` like the original, its table untied.
        matrix: R, on the CPU in float64; the stream of the copy is the original's times
            :math:`R^\\top`.
        original: The model it was made from, untouched.
    """

    model: TransformerBridge
    matrix: Float[Tensor, "d_model d_model"]
    original: TransformerBridge

    def turn(self, vectors: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead d_model"]:
        """Return where vectors of the original's stream lie in the rotated stream."""
        return (vectors.double() @ self.matrix.to(vectors.device).T).to(vectors)

    def agreement(self, tokens: Int[Tensor, "batch seq"]) -> Agreement:
        """Run both models on ``tokens`` and compare their logits at every position."""
        with torch.no_grad():
            own, turned = self.original(tokens), self.model(tokens)
        return Agreement(
            positions=tokens.numel(),
            largest_difference=float((own - turned).abs().max()),
            largest_logit=float(own.abs().max()),
            same_top1=int((own.argmax(-1) == turned.argmax(-1)).sum()),
        )

    def __repr__(self) -> str:
        """One line: the model and the rotation's size."""
        return f"RotatedModel({_name(self.original)}, {len(self.matrix)} × {len(self.matrix)})"


@dataclass(frozen=True)
class Agreement:
    """Two models on the same tokens.

    Attributes:
        positions: How many positions were compared.
        largest_difference: Largest difference between any two logits.
        largest_logit: Largest logit in size, for comparison.
        same_top1: At how many positions the most likely token is the same.
    """

    positions: int
    largest_difference: float
    largest_logit: float
    same_top1: int


def random_rotation(
    width: int, *, seed: int = 0, keep_mean: bool = False
) -> Float[Tensor, "{width} {width}"]:
    r"""Return a random rotation, uniform (Haar), in float64, drawn on the CPU.

    Args:
        width: Number of rows and columns.
        seed: Of the draw.
        keep_mean: Whether :math:`R\mathbf 1 = \mathbf 1`, so that a LayerNorm commutes with it;
            uniform among those.

    Returns:
        A matrix with :math:`R^\top R = I` and determinant 1.

    Raises:
        ValueError: Too few dimensions to turn.

    Example:
        >>> turn = random_rotation(4, keep_mean=True)
        >>> turn.sum(1).round(decimals=9).tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    if width < 2 + keep_mean:
        raise ValueError(f"random_rotation: width = {width} leaves nothing to turn")
    generator = torch.Generator().manual_seed(seed)
    size = width - keep_mean
    gauss = torch.randn(size, size, generator=generator, dtype=torch.float64)
    turn, triangle = torch.linalg.qr(gauss)
    turn = turn * triangle.diagonal().sign()  # QR alone is not uniform
    if torch.linalg.det(turn) < 0:
        turn[0] = -turn[0]
    if not keep_mean:
        return turn
    # A reflection that carries the first axis to the direction of the mean, and back.
    mean = torch.full((width,), width**-0.5, dtype=torch.float64)
    axis = mean.clone()
    axis[0] -= 1
    mirror = torch.eye(width, dtype=torch.float64) - 2 * torch.outer(axis, axis) / axis.dot(axis)
    return mirror @ torch.block_diag(torch.ones(1, 1, dtype=torch.float64), turn) @ mirror


def rotate_model(
    model: TransformerBridge,
    *,
    seed: int = 0,
    matrix: Float[Tensor, "d_model d_model"] | None = None,
) -> RotatedModel:
    """Return a copy of ``model`` whose stream is turned, with the same logits.

    Gains and biases of all norms are folded, the table is untied where it was tied. Everything is
    computed in float64 and rounded once. The copy is run against the original on a few tokens, so
    that a model which this does not turn rightly is refused.

    Args:
        model: A float32 or float64 ``TransformerBridge`` with sequential or parallel blocks.
        seed: Of the rotation.
        matrix: The rotation to use instead of a random one, ``[d_model, d_model]``.

    Returns:
        The rotated copy, the rotation, and the original.

    Raises:
        RotationError: A part of the model that this library does not know how to turn; it is named.
        ValueError: ``matrix`` is not a rotation, or does not keep the mean of a LayerNorm model.

    Example:
        >>> import residual_stream as rs
        >>> model = rs.load("bench")
        >>> turned = rs.rotation.rotate_model(model)
        >>> turned.agreement(model.to_tokens("In the beginning")).largest_difference < 1e-3
        True
    """
    _require_known(model)
    centred = read_norm(model.ln_final).centred
    if matrix is None:
        matrix = random_rotation(model.cfg.d_model, seed=seed, keep_mean=centred)
    matrix = matrix.double().cpu()
    _require_rotation(matrix, model.cfg.d_model, centred)
    turned = RotatedModel(copy.deepcopy(model), matrix, model)
    with torch.no_grad():
        _turn(turned.model, matrix.to(model.W_E.device))
    _require_same(turned)
    return turned


def _turn(model: TransformerBridge, turn: Tensor) -> None:
    model.original_model.config.tie_word_embeddings = False
    norm = read_norm(model.ln_final)
    _turn_reader(model.unembed, norm.gain, norm.bias, turn, untie=True)
    for stage in ("embed", "pos_embed"):
        if hasattr(model, stage):
            _turn_writer(getattr(model, stage), turn)
    for block in model.blocks:
        norms = {name: read_norm(getattr(block, name)) for name in _norms(block)}
        for part in ("attn", "mlp"):
            if part not in block.submodules:
                continue
            norm = norms["ln2" if part == "mlp" and "ln2" in norms else "ln1"]
            for name, linear in _linears(getattr(block, part)).items():
                if name in _READERS:
                    _turn_reader(linear, norm.gain, norm.bias, turn)
                else:
                    _turn_writer(linear, turn)
        for name in norms:
            _clear(getattr(block, name))
    _clear(model.ln_final)


def _turn_reader(
    bridge: Any, gain: Tensor, bias: Tensor, turn: Tensor, *, untie: bool = False
) -> None:
    linear = bridge.original_component
    reads = _input_first(linear).double()  # [d_model, out]
    if bool(bias.any()):
        linear.bias.data += (bias.double() @ reads).to(linear.bias)
    turned = turn @ (gain.double()[:, None] * reads)
    turned = (turned if _is_conv1d(linear) else turned.T).to(linear.weight).contiguous()
    if untie:
        linear.weight = nn.Parameter(turned, requires_grad=linear.weight.requires_grad)
    else:
        linear.weight.data.copy_(turned)


def _turn_writer(bridge: Any, turn: Tensor) -> None:
    inner = bridge.original_component
    is_linear = isinstance(inner, nn.Linear)
    writes = inner.weight.double().T if is_linear else inner.weight.double()  # [in, d_model]
    turned = writes @ turn.T
    inner.weight.data.copy_(turned.T if is_linear else turned)
    if getattr(inner, "bias", None) is not None:
        inner.bias.data.copy_(inner.bias.double() @ turn.T)


def _clear(bridge: Any) -> None:
    inner = bridge.original_component
    inner.weight.data.fill_(0.0 if bridge.uses_weight_offset else 1.0)
    if getattr(inner, "bias", None) is not None:
        inner.bias.data.zero_()


def _is_conv1d(linear: nn.Module) -> bool:
    return type(linear).__name__ == "Conv1D"  # GPT-2's linear, stored [in, out]


def _input_first(linear: nn.Module) -> Tensor:
    return linear.weight.detach() if _is_conv1d(linear) else linear.weight.detach().T


def _norms(block: Any) -> list[str]:
    return [name for name in ("ln1", "ln2") if name in block.submodules]


def _linears(part: Any) -> dict[str, Any]:
    return {
        name: child
        for name, child in part.named_children()
        if name in (*_READERS, *_WRITERS) and hasattr(child, "original_component")
    }


def _require_known(model: TransformerBridge) -> None:
    name = _name(model)
    try:
        read_wiring(model)
        for bridge in (model.ln_final, *(getattr(b, n) for b in model.blocks for n in _norms(b))):
            read_norm(bridge)
    except (WiringError, NormError) as error:
        raise RotationError(f"rotate_model: cannot rotate {name}: {error}") from error
    if model.W_E.dtype not in (torch.float32, torch.float64):
        raise RotationError(
            f"rotate_model: {name} is in {model.W_E.dtype}, whose rounding would hide whether the "
            "logits are the same; load it with dtype=torch.float32"
        )
    if unknown := [part for part in _children(model) if part not in _STAGES]:
        raise RotationError(f"rotate_model: {name} has a stage {unknown[0]!r}; known are {_STAGES}")
    for layer, block in enumerate(model.blocks):
        where = f"rotate_model: block {layer} of {name}"
        if unknown := set(block.submodules) - {"ln1", "ln2", "attn", "mlp"}:
            raise RotationError(
                f"{where} has {sorted(unknown)[0]!r}; known are a norm before each branch, "
                "attention and an MLP"
            )
        for part in sorted({"attn", "mlp"} & set(block.submodules)):
            _require_linears(getattr(block, part), f"{where}, {part}")


def _require_linears(part: Any, where: str) -> None:
    allowed = (*_READERS, *_WRITERS, *_INNER)
    if unknown := [name for name in _children(part) if name not in allowed]:
        raise RotationError(f"{where}: {unknown[0]!r} is not one of {allowed}")
    linears = _linears(part)
    if not set(linears) & set(_READERS) or not set(linears) & set(_WRITERS):
        raise RotationError(f"{where}: no reading or no writing matrix; it has {list(linears)}")
    for name, bridge in linears.items():
        inner = bridge.original_component
        if not (isinstance(inner, nn.Linear) or _is_conv1d(inner)):
            raise RotationError(f"{where}.{name} is a {type(inner).__name__}, not a plain matrix")


def _children(bridge: Any) -> list[str]:
    return [
        name
        for name, child in bridge.named_children()
        if hasattr(child, "original_component") or name == "blocks"
    ]


def _require_rotation(matrix: Tensor, width: int, centred: bool) -> None:
    if matrix.shape != (width, width) or not torch.allclose(
        matrix @ matrix.T, torch.eye(width, dtype=torch.float64), atol=1e-9
    ):
        raise ValueError(
            f"rotate_model: matrix is {tuple(matrix.shape)}; pass an orthogonal one of "
            f"{width} × {width}"
        )
    if centred and not torch.allclose(matrix.sum(1), torch.ones(width, dtype=torch.float64)):
        raise ValueError(
            "rotate_model: the model has LayerNorms, which only rotations that keep the direction "
            "of the mean commute with; draw one with random_rotation(width, keep_mean=True)"
        )


def _require_same(turned: RotatedModel) -> None:
    generator = torch.Generator().manual_seed(0)
    length = min(8, turned.original.cfg.n_ctx)
    ids = torch.randint(turned.original.cfg.d_vocab, (1, length), generator=generator)
    found = turned.agreement(ids.to(turned.original.W_E.device))
    if found.largest_difference > 1e-3 * max(1.0, found.largest_logit):
        raise RotationError(
            f"rotate_model: the rotated {_name(turned.original)} is off by "
            f"{found.largest_difference:.2g} (largest logit {found.largest_logit:.2g}): something "
            "in it reads or writes the stream that this library does not know"
        )


def _name(model: TransformerBridge) -> str:
    return str(getattr(model.cfg, "architecture", None) or type(model).__name__)
