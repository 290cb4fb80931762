r"""Everything that one sampled training step says about a stream, measured inside hooks.

For every block: the stream's norm, each write :math:`\Delta` beside the stream :math:`x` it joins,
and the gradients of both. Norms are roots of the mean square over tokens,
:math:`\sqrt{\mathrm{E}\lVert\Delta\rVert^2}`, in the units of the stream, position 0 left out and
kept apart. Forward passes that autograd does not see (validation, the recomputed half of activation
checkpointing) do not count; several passes in one step are pooled, each with the same weight (what
``varies`` is taken within each pass). The position is the axis before the width: texts come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .anatomy import AnatomyError, Block, Call, factors_of, resolve
from .history import FIELDS


class Gauges:
    """Hooks for one step; they are on the module from the construction until :meth:`remove`.

    Args:
        names: The blocks' names.
        modules: The blocks, in order.
        anatomy: Where they write, filled by the first pass if empty.
        given: Paths of the writing modules by kind, or None to find them.
        tokens: How many tokens of a pass are measured, at most.
        give_up: Returns what to call when a block cannot be read, if it is still there.
    """

    def __init__(
        self,
        names: Sequence[str],
        modules: Sequence[nn.Module],
        anatomy: dict[int, Block],
        *,
        given: Mapping[str, str] | None,
        tokens: int,
        give_up: Callable[[], Callable[[], None] | None],
    ) -> None:
        """Put the hooks on."""
        self.names, self.anatomy, self.given = names, anatomy, given
        self.tokens, self.give_up = tokens, give_up
        self.passes, self.length = 0, 1
        self.dtype: torch.dtype | None = None
        self._sums: dict[tuple[int, str, str], Tensor] = {}
        self._counts: dict[tuple[int, str, str], int] = {}
        self._awaited: set[tuple[int, str, str]] = set()
        self._weights: dict[int, dict[int, Tensor]] = {}
        self._handles: list[Any] = []
        for layer, module in enumerate(modules):
            self._watch(layer, module)

    def remove(self) -> None:
        """Take every hook off again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def table(self, parts: Sequence[tuple[int, str]]) -> Float[Tensor, "part field"]:
        """Return the measured values on the CPU, nan where there is none.

        One transfer from the device, whatever the number of parts.
        """
        nan, zero = torch.full((), float("nan")), torch.zeros(())
        went_back = any(field == "gradient" for _, _, field in self._sums)
        cells = []
        for layer, part in parts:
            for field in FIELDS:
                key = (layer, part, field)
                if field == "weights_gradient":
                    squares = self._weights.get(layer, {}) if part == "stream" else {}
                    cells.append(
                        torch.stack(list(squares.values())).sum().sqrt() if squares else nan
                    )
                elif key not in self._sums:
                    cells.append(zero if key in self._awaited and went_back else nan)
                else:
                    mean = self._sums[key] / self._counts[key]
                    cells.append(mean if field == "lost" else mean.sqrt())
        device = next((c.device for c in cells if c is not nan and c is not zero), nan.device)
        flat = torch.stack([c.to(device=device, dtype=torch.float32) for c in cells])
        return flat.view(len(parts), len(FIELDS)).cpu()

    # -- hooks ---------------------------------------------------------------------------------

    def _watch(self, layer: int, block: nn.Module) -> None:
        calls: list[Call] = []
        state: dict[str, Tensor] = {}

        # Closures, not bound methods: a deep copy of the module must not copy the monitor.
        def entering(module: nn.Module, args: tuple, kwargs: dict) -> None:
            if module is block and _counts():
                calls.clear()
                state["entered"] = _first_tensor((*args, *kwargs.values()))

        def leaving(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            if module is block and _counts() and "entered" in state:
                left = _first_tensor(output)
                with torch.no_grad():  # inside a checkpoint, autograd counts what is saved
                    self._close(layer, block, state.pop("entered"), left, calls)
                calls.clear()

        def called(path: str, child: nn.Module) -> Callable[..., None]:
            def hook(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
                returned = _first_tensor(output)
                if module is child and "entered" in state and returned is not None:
                    calls.append(
                        Call(
                            path, child, _first_tensor((*args, *kwargs.values())), returned,
                            torch.is_grad_enabled(),
                        )
                    )  # fmt: skip

            return hook

        known = self.anatomy.get(layer)
        wanted = None
        if known is not None:
            wanted = {p for b in known.branches for p in (b.path, b.closing) if p is not None}
        put = self._handles.append
        put(block.register_forward_pre_hook(entering, with_kwargs=True))
        for path, child in block.named_modules():
            if path and (wanted is None or path in wanted):
                put(child.register_forward_hook(called(path, child), with_kwargs=True))
        put(block.register_forward_hook(leaving, with_kwargs=True))
        for parameter in block.parameters():
            if parameter.requires_grad:
                put(parameter.register_post_accumulate_grad_hook(self._on_weights(layer)))

    def _on_weights(self, layer: int) -> Callable[[Tensor], None]:
        squares = self._weights.setdefault(layer, {})

        def hook(parameter: Tensor) -> None:
            if parameter.grad is not None:  # the last call has seen all accumulated passes
                squares[id(parameter)] = parameter.grad.detach().float().square().sum()

        return hook

    def _close(
        self, layer: int, block: nn.Module, entered: Tensor, left: Tensor, calls: list[Call]
    ) -> None:
        if layer not in self.anatomy:
            try:
                self.anatomy[layer] = resolve(
                    layer, self.names[layer], block, entered, left, calls, self.given
                )
            except AnatomyError:
                if (give_up := self.give_up()) is not None:
                    give_up()
                raise
        plan = self.anatomy[layer]
        last = {call.path: call for call in calls}
        made = [last[branch.path] for branch in plan.branches]
        writes = [call.returned for call in made]
        factors: list[float] = [1.0] * len(writes)
        if any(branch.scaled for branch in plan.branches):
            shaped = [write.reshape(left.shape) for write in writes]
            factors = factors_of(entered, left, shaped) or factors
        if layer == 0:
            self.passes += 1
            self.dtype = left.dtype
            self.length = left.shape[-2] if left.ndim >= 3 else 1
        self._on_stream(layer, entered)
        running = entered.detach()
        for branch, call, factor in zip(plan.branches, made, factors, strict=True):
            added = call.returned.detach().reshape(left.shape)
            added = added if factor == 1.0 else factor * added
            if branch.closing is not None:
                total = last[branch.closing].read.detach().reshape(left.shape)
                before = total - added
            else:
                before = running if branch.reads_before else entered.detach()
                total = before + added
                running = running + added
            self._on_write((layer, branch.kind), added, before, total)
            self._on_way_back((layer, branch.kind), call, added.shape)
        if layer == len(self.names) - 1:
            self._on_stream(layer + 1, left)

    def _on_stream(self, layer: int, stream: Tensor) -> None:
        key = (layer, "stream")
        self._norms(key, self._kept(stream.detach()))
        if stream.requires_grad:
            stream.register_hook(self._on_gradient(key, stream.shape))

    def _on_write(self, key: tuple[int, str], added: Tensor, before: Tensor, total: Tensor) -> None:
        kept, stood = self._kept(added), self._kept(before)
        self._norms(key, kept)
        later = _later(kept).float()
        rows = later.reshape(-1, later.shape[-1])
        self._add((*key, "before"), _later(stood).float().square().sum(-1).mean())
        self._add((*key, "varies"), (rows - rows.mean(0)).square().sum(-1).mean())
        # an entry is lost if adding it left the stream as it was, in the stream's own precision
        wrote = kept != 0
        gone = ((self._kept(total) == stood) & wrote).sum() / wrote.sum().clamp(min=1)
        self._add((*key, "lost"), gone.float())

    def _on_way_back(self, key: tuple[int, str], call: Call, shape: torch.Size) -> None:
        """Wait for a write's gradient: one that does not come back is zero, unless none is seen."""
        if call.seen_by_autograd:
            self._awaited.add((*key, "gradient"))
        if call.returned.requires_grad:
            call.returned.register_hook(self._on_gradient(key, shape))

    def _on_gradient(self, key: tuple[int, str], shape: torch.Size) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            kept = _later(self._kept(gradient.detach().reshape(shape))).float()
            self._add((*key, "gradient"), kept.square().sum(-1).mean())

        return hook

    def _norms(self, key: tuple[int, str], kept: Tensor) -> None:
        squares = kept.float().square().sum(-1)
        if kept.ndim >= 3 and kept.shape[-2] > 1:
            self._add((*key, "norm"), squares[..., 1:].mean())
            self._add((*key, "first"), squares[..., 0].mean())
        else:
            self._add((*key, "norm"), squares.mean())

    def _add(self, key: tuple[int, str, str], value: Tensor) -> None:
        self._sums[key] = self._sums[key] + value if key in self._sums else value
        self._counts[key] = self._counts.get(key, 0) + 1

    def _kept(self, value: Tensor) -> Tensor:
        """A part of the batch, of at most ``tokens`` tokens: whole rows if they fit."""
        if value.ndim < 3:
            return value[: self.tokens]
        rows = max(1, self.tokens // value.shape[-2])
        stride = -(-value.shape[-2] // self.tokens)
        return value.flatten(0, -3)[:rows, ::stride]


def _later(value: Tensor) -> Tensor:
    return value[..., 1:, :] if value.ndim >= 3 and value.shape[-2] > 1 else value


def _counts() -> bool:
    """Whether this pass is one that the loss is made of: seen by autograd, and not recomputed."""
    return torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1


def _first_tensor(value: Any) -> Any:
    """The first floating tensor of what a module took or gave."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, tuple | list):
        return next((t for t in map(_first_tensor, value) if t is not None), None)
    return None
