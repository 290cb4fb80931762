r"""The last step, written out: final norm and unembedding as explicit numbers.

For the top of the stream :math:`x`, before any soft-cap,

.. math:: \mathrm{logit}_v = m\,\Big(\sum_i \frac{x_i - \bar x}{\sigma(x)}\gamma_i W_{U,iv}
          + \sum_i \beta_i W_{U,iv} + b_v\Big),

with :math:`\bar x = 0` for an RMS norm and :math:`\sigma` the root of the variance (of the mean
square for an RMS norm) plus :math:`\epsilon`. The weights are the model's own, nothing is folded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .audit import tensor_state
from .rerun import skipped_blocks
from .wiring import final_norm

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


# Models whose readout has been held against their own logits: a matter of wiring, not of weights.
_CHECKED: WeakSet[Any] = WeakSet()
# The last readout of each model and the state of the weights that it was read from.
_READ: WeakKeyDictionary[Any, tuple[object, Readout]] = WeakKeyDictionary()


class ReadoutError(NotImplementedError):
    """The model reads its stream out in a way this library does not know."""


@dataclass(frozen=True, eq=False, repr=False)
class Readout:
    """Final norm and unembedding of a model, in its own numbers.

    Attributes:
        gain: γ of the final norm (ones where it has none).
        bias: β of the final norm, None where it has none.
        centred: Whether the norm subtracts the mean over the width (LayerNorm).
        eps: ε under the root.
        W_U: The unembedding.
        b_U: Its bias, None where it has none (TransformerLens fills zeros in).
        multiplier: The factor on every logit (Granite's 1/``logits_scaling``); 1 for most.
        soft_cap: The bound of a tanh on the logits (Gemma 2), None for most. Never applied here:
            every logit of this library stands before it.
    """

    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"] | None
    centred: bool
    eps: float
    W_U: Float[Tensor, "d_model d_vocab"]
    b_U: Float[Tensor, " d_vocab"] | None
    multiplier: float
    soft_cap: float | None

    def sigma(self, top: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead"]:
        """Return the norm's divisor σ at each row of ``top``, in float64."""
        x = top.double()
        if self.centred:
            x = x - x.mean(-1, keepdim=True)
        return (x.square().mean(-1) + self.eps).sqrt()

    def direction(
        self,
        ids: Int[Tensor, "*lead"],
        *,
        versus: Int[Tensor, "*lead"] | None = None,
        center: bool = True,
    ) -> Float[Tensor, "*lead d_model"]:
        r"""Return the direction in the stream whose dot product over σ is the logit.

        .. math:: d_i = m\,\gamma_i\,(W_{U,it} - \textstyle\frac1V\sum_v W_{U,iv}),

        minus its own mean for a LayerNorm, which is how the norm's centring acts.

        Args:
            ids: The target tokens.
            versus: Tokens whose logit is subtracted, None for none.
            center: Whether to measure from the vocabulary's mean logit. It cancels with ``versus``.

        Returns:
            One direction per target, in float64.
        """
        d = self.gain.double() * self.target_columns(ids, versus=versus, center=center)
        if self.centred:
            d = d - d.mean(-1, keepdim=True)
        return self.multiplier * d

    def target_columns(
        self,
        ids: Int[Tensor, "*lead"],
        *,
        versus: Int[Tensor, "*lead"] | None = None,
        center: bool = True,
    ) -> Float[Tensor, "*lead d_model"]:
        """Return the targets' columns of the unembedding, centred or compared, in float64."""
        columns = self.W_U[:, ids].double().movedim(0, -1)
        if versus is not None:
            return columns - self.W_U[:, versus].double().movedim(0, -1)
        if center:
            columns = columns - self.mean_column()
        return columns

    def mean_column(self) -> Float[Tensor, " d_model"]:
        """Return the unembedding's mean over the vocabulary, in float64."""
        if "_mean_column" not in vars(self):  # once per readout
            vars(self)["_mean_column"] = self._mean_over_vocabulary()
        return vars(self)["_mean_column"]

    def _mean_over_vocabulary(self) -> Float[Tensor, " d_model"]:
        # In slabs: a float64 mean over a transposed view of 50,000 rows takes a second.
        total = self.W_U.new_zeros(self.W_U.shape[0], dtype=torch.float64)
        for slab in self.W_U.T.split(256):
            total += slab.float().sum(0).double()
        return total / self.W_U.shape[1]

    def constants(
        self,
        ids: Int[Tensor, "*lead"],
        *,
        versus: Int[Tensor, "*lead"] | None = None,
        center: bool = True,
    ) -> dict[str, Float[Tensor, "*lead"]]:
        """Return what the logit owes to no write: the norm's bias and the unembedding's.

        Args:
            ids: The target tokens.
            versus: Tokens whose logit is subtracted, None for none.
            center: Whether to measure from the vocabulary's mean logit.

        Returns:
            ``"ln_final_bias"`` and ``"unembed_bias"``, those that the model has, in float64.
        """
        found: dict[str, Tensor] = {}
        if self.bias is not None:
            columns = self.target_columns(ids, versus=versus, center=center)
            found["ln_final_bias"] = self.multiplier * (columns @ self.bias.double())
        if self.b_U is not None:
            b = self.b_U.double()
            value = b[ids]
            if versus is not None:
                value = value - b[versus]
            elif center:
                value = value - b.mean()
            found["unembed_bias"] = self.multiplier * value
        return found

    def logits(self, top: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead d_vocab"]:
        """Return the logits that this formula gives for a top of the stream, before a soft-cap.

        They are where the unembedding is, wherever the top is kept.
        """
        top = top.to(self.W_U.device)
        x = top - top.mean(-1, keepdim=True) if self.centred else top
        x = x / self.sigma(top).to(top.dtype)[..., None] * self.gain
        if self.bias is not None:
            x = x + self.bias
        out = x.to(self.W_U.dtype) @ self.W_U  # Mamba's stream may be finer
        return self.multiplier * (out if self.b_U is None else out + self.b_U)

    def capped(self, logits: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
        """Return what the model makes of logits: bounded by its soft-cap, if it has one."""
        if not self.soft_cap:
            return logits
        return self.soft_cap * torch.tanh(logits / self.soft_cap)

    def __repr__(self) -> str:
        """One line: the norm, its biases, the size of the vocabulary."""
        norm = "LayerNorm" if self.centred else "RMSNorm"
        terms = [name for name, v in (("β", self.bias), ("b_U", self.b_U)) if v is not None]
        extra = f" with {' and '.join(terms)}" if terms else ""
        cap = f", soft-cap {self.soft_cap:g} after it" if self.soft_cap else ""
        return (
            f"Readout({norm}{extra}, ε = {self.eps:.3g}, {self.W_U.shape[0]} → "
            f"{self.W_U.shape[1]}, × {self.multiplier:g}{cap})"
        )


def read_readout(model: TransformerBridge) -> Readout:
    """Return the final norm and unembedding of ``model``, checked against the model's own logits.

    The check runs the model on two tokens with every block skipped, once per model, so a transform
    that this formula lacks is refused and never left out in silence. While PyTorch's version
    counters say that the weights are the same, so is the readout, and what it has worked out.
    Changes through ``.data`` are not counted: of them the mean over the vocabulary is not told
    (:func:`logit_attribution` holds it against the model's own logits, and refuses).

    Args:
        model: A ``TransformerBridge``, as :func:`residual_stream.load` returns it.

    Returns:
        The readout; its tensors are the model's own.

    Raises:
        ReadoutError: No final norm, or a readout that the formula does not reproduce.

    Example:
        >>> import residual_stream as rs
        >>> rs.read_readout(rs.load("bench")).centred
        True
    """
    if hasattr(model, "mlm_head"):
        raise ReadoutError(
            f"read_readout: {_name(model)} has a head of its own between its stream and its "
            "unembedding (BERT's dense layer and GELU), so its logits are no sum of shares; the "
            "ledger of its stream closes, see `record(...).audit()`"
        )
    name = final_norm(model)
    if not hasattr(model, "unembed") or model.get_hook_point(f"{name}.hook_in") is None:
        raise ReadoutError(
            f"read_readout: {_name(model)} has no `{name}` and `unembed`; this library reads a "
            "stream through a final norm and an unembedding"
        )
    norm = model.get_submodule(name).original_component
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    W_U = model.W_U.detach()
    gain = W_U.new_ones(W_U.shape[0]) if weight is None else weight.detach()
    if getattr(model.cfg, "rmsnorm_uses_offset", False):
        gain = 1.0 + gain  # Gemma stores γ − 1
    b_U = getattr(model.unembed.original_component, "bias", None)
    multiplier, soft_cap = _after_unembedding(model)
    eps = float(getattr(norm, "variance_epsilon", getattr(norm, "eps", model.cfg.eps)))
    weights = tensor_state([weight, bias, W_U, b_U])
    state = None if weights is None else (*weights, multiplier, soft_cap, eps)
    if model in _READ and state is not None and _READ[model][0] == state:
        return _READ[model][1]
    readout = Readout(
        gain=gain,
        bias=None if bias is None else bias.detach(),
        centred=not getattr(model.cfg, "uses_rms_norm", False),
        eps=eps,
        W_U=W_U,
        b_U=b_U.detach() if b_U is not None and b_U.any() else None,
        multiplier=multiplier,
        soft_cap=soft_cap,
    )
    if model not in _CHECKED:
        _require_identity(model, readout)
        _CHECKED.add(model)
    _READ[model] = (state, readout)
    return readout


def own_logits(
    model: TransformerBridge, readout: Readout, top: Float[Tensor, "*lead d_model"]
) -> Float[Tensor, "*lead d_vocab"]:
    """Return the logits of the model's own norm and unembedding modules, before a soft-cap."""
    with torch.no_grad():
        normed = model.get_submodule(final_norm(model))(top)
        logits = model.unembed(normed.to(readout.W_U.dtype))  # Mamba's stream may be finer
    return logits if readout.multiplier == 1.0 else logits * readout.multiplier


def _name(model: TransformerBridge) -> str:
    return str(getattr(model.cfg, "architecture", None) or type(model).__name__)


def _after_unembedding(model: TransformerBridge) -> tuple[float, float | None]:
    config: Any = getattr(model.original_model, "config", None)
    multiplier = 1.0
    if getattr(config, "logits_scaling", None):  # Granite divides
        multiplier /= float(config.logits_scaling)
    if getattr(config, "logit_scale", None):  # Cohere multiplies
        multiplier *= float(config.logit_scale)
    soft_cap = getattr(config, "final_logit_softcapping", None)
    return multiplier, (float(soft_cap) if soft_cap else None)


def _require_identity(model: TransformerBridge, readout: Readout) -> None:
    seen: list[Tensor] = []
    tokens = torch.tensor([[0, 1]], device=model.cfg.device)
    top = f"{final_norm(model)}.hook_in"
    skipped = range(len(model.blocks)) if top == "ln_final.hook_in" else ()  # else it is in a block
    with (
        torch.no_grad(),
        skipped_blocks(model, skipped),
        model.hooks(fwd_hooks=[(top, lambda value, hook: seen.append(value))]),
    ):
        own = model(tokens, return_type="logits")
    ours = readout.capped(readout.logits(seen[0]))
    spread = float(own.float().std())
    error = float((own.float() - ours.float()).abs().max())
    coarse = max(torch.finfo(kind).eps for kind in (own.dtype, readout.W_U.dtype)) > 1e-6
    allowed = 0.1 if coarse else 1e-3
    if not error <= allowed * spread:
        raise ReadoutError(
            f"read_readout: {_name(model)} does not read its stream out as final norm, then "
            f"unembedding: its own logits differ from that by up to {error:.3g} (they spread by "
            f"{spread:.3g})"
        )
