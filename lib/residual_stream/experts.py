"""What each expert of a mixture writes: the routed ones by themselves, and the shared one."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .targets import Projection

_SHARED = ("shared_experts", "shared_expert")


def _mixture(block: Any) -> Any:
    return getattr(getattr(block, "mlp", None), "original_component", None)


def has_experts(block: Any) -> bool:
    """Return whether the MLP of a bridge's block is a mixture of experts."""
    return isinstance(getattr(_mixture(block), "experts", None), torch.nn.Module)


class Experts:
    """Watches one mixture during a forward pass, and then asks every expert alone.

    In transformers the experts of a block are one module, called with the tokens, the chosen
    experts and their weights. Called again with the weight of one expert and zeros for the others,
    it returns what that expert wrote.

    Args:
        block: A bridge's block whose MLP is a mixture.
        positions: The positions to keep.
    """

    def __init__(self, block: Any, positions: Int[Tensor, " pos"]) -> None:
        """Start watching; :meth:`remove` ends it."""
        mixture = _mixture(block)
        self._experts, self._positions = mixture.experts, positions
        self._shape = (0, 0)
        self._call: tuple[Tensor, Tensor, Tensor] | None = None
        self._shared: Tensor | None = None
        self._gate: Tensor | None = None
        self._handles = [
            mixture.register_forward_pre_hook(self._on_mixture, with_kwargs=True),
            self._experts.register_forward_pre_hook(self._on_experts, with_kwargs=True),
        ]
        for name in _SHARED:
            if isinstance(shared := getattr(mixture, name, None), torch.nn.Module):
                self._handles.append(shared.register_forward_hook(self._on_shared))
            if isinstance(gate := getattr(mixture, f"{name}_gate", None), torch.nn.Module):
                self._handles.append(gate.register_forward_hook(self._on_gate))

    def remove(self) -> None:
        """Take the watching hooks off."""
        for handle in self._handles:
            handle.remove()

    def _on_mixture(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        value = args[0] if args else next(iter(kwargs.values()))
        self._shape = (value.shape[0], value.shape[1])

    def _on_experts(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden, index, weights = (*args, *kwargs.values())[:3]
        self._call = (self._rows(hidden), self._rows(index), self._rows(weights))

    def _on_shared(self, module: Any, args: tuple[Any, ...], output: Tensor) -> None:
        self._shared = self._rows(output)

    def _on_gate(self, module: Any, args: tuple[Any, ...], output: Tensor) -> None:
        self._gate = self._rows(output).sigmoid()

    def _rows(self, value: Tensor) -> Tensor:
        """The kept places of a tensor over all tokens, ``[batch · pos, ...]``."""
        value = value.detach().reshape(*self._shape, -1)
        kept = value.index_select(1, self._positions.to(value.device))
        return kept.reshape(-1, value.shape[-1])

    def shares(
        self, along: Projection, layer: int
    ) -> tuple[list[str], Float[Tensor, "part batch pos"]]:
        """Return the experts that were chosen somewhere, and the shared one, with their shares.

        Args:
            along: What the mixture's write is projected on.
            layer: Its block, for the labels.

        Returns:
            Labels such as ``"L3E17"`` and ``"L3_shared"``, and each one's share at every place;
            zero where an expert was not chosen.

        Raises:
            RuntimeError: The mixture did not run since this was made.
        """
        if self._call is None:
            raise RuntimeError(f"Experts: the mixture of block {layer} did not run")
        self.remove()  # the experts are about to run again
        hidden, index, weights = self._call
        shape = (*along.index.shape, hidden.shape[-1])
        names, values = [], []
        for expert in index.unique().tolist():
            alone = torch.where(index == expert, weights, torch.zeros_like(weights))
            with torch.no_grad():
                wrote = self._experts(hidden, index, alone)
            names.append(f"L{layer}E{expert}")
            values.append(along.of(wrote.reshape(shape)))
        if self._shared is not None:
            wrote = self._shared if self._gate is None else self._shared * self._gate
            names.append(f"L{layer}_shared")
            values.append(along.of(wrote.reshape(shape)))
        return names, torch.cat(values)
