"""Run the rest of a model from the stream at some layer, without running the layers before it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from .wiring import final_norm

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

Hook = tuple[str, Callable[..., Any]]


@contextmanager
def skipped_blocks(model: TransformerBridge, layers: Sequence[int]) -> Iterator[None]:
    """Let the blocks ``layers`` pass their input on untouched inside a ``with`` block.

    Nothing inside a skipped block runs and none of its hooks fire. What the model computes once
    for all blocks (mask, position ids, rotary angles) is computed as always.

    Args:
        model: A ``TransformerBridge`` with a stack called ``blocks``.
        layers: Indices of the blocks to skip; these blocks may be skipped already.

    Yields:
        Nothing; the blocks are restored at the end, also after an error.
    """

    def pass_on(*args: Any, **kwargs: Any) -> Any:
        return args[0] if args else kwargs["hidden_states"]

    def pass_on_in_a_tuple(*args: Any, **kwargs: Any) -> Any:
        return (pass_on(*args, **kwargs),)

    forward = pass_on_in_a_tuple if layers and _blocks_return_tuples(model) else pass_on
    with ExitStack() as restore:
        for block in dict.fromkeys(model.blocks[layer] for layer in layers):
            # Past the bridge's own __setattr__, which would set it on the Hugging Face block.
            if (before := vars(block).get("forward")) is not None:
                restore.callback(object.__setattr__, block, "forward", before)
            else:
                restore.callback(object.__delattr__, block, "forward")
            object.__setattr__(block, "forward", forward)
        yield


_TUPLES: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def _blocks_return_tuples(model: TransformerBridge) -> bool:
    """Whether the stack expects ``(stream, ...)`` from a block; seen once, on one token.

    Falcon, GPT-Neo, BLOOM and TransformerLens's own blocks return tuples, GPT-1's lists, most
    others a tensor; the annotations of their forward methods do not tell
    (test_every_architecture_runs_on_from_a_layer).
    """
    if model not in _TUPLES:
        block, forms = getattr(model.blocks[0], "original_component", None), []
        if block is None:  # not a bridge: a module of this library, which returns the stream
            return False
        handle = block.register_forward_hook(
            lambda *call: forms.append(isinstance(call[2], (tuple, list)))
        )
        token = torch.zeros(1, 1, dtype=torch.long, device=model.cfg.device)
        try:
            with torch.no_grad(), without_hooks(model):
                model(token, return_type=None)
        finally:
            handle.remove()
        _TUPLES[model] = forms[0]
    return _TUPLES[model]


@contextmanager
def without_hooks(module: torch.nn.Module) -> Iterator[None]:
    """Let no hook point of ``module`` fire inside a ``with`` block: that run is not the caller's.

    Args:
        module: A ``TransformerBridge`` or a part of one.

    Yields:
        Nothing; the hooks are back at the end, also after an error.
    """
    from transformer_lens.hook_points import HookPoint

    kept = [(m, m._forward_hooks) for m in module.modules() if isinstance(m, HookPoint)]
    try:
        for point, _ in kept:
            point._forward_hooks = OrderedDict()
        yield
    finally:
        for point, hooks in kept:
            point._forward_hooks = hooks


def rerun_from(
    model: TransformerBridge,
    residual: Float[Tensor, "batch seq d_model"],
    layer: int,
    *,
    fwd_hooks: Sequence[Hook] = (),
) -> Float[Tensor, "batch seq d_model"]:
    """Return the top of the stream when the model goes on from ``residual`` at ``layer``.

    Equal to the bit to the top of a full run whose stream at ``layer`` is ``residual``, at the
    cost of the blocks from ``layer`` up only. TransformerLens's ``start_at_layer`` runs the earlier
    blocks too and drops their outputs; here they are skipped.

    Args:
        model: A ``TransformerBridge`` with a stack called ``blocks``.
        residual: The stream entering block ``layer``, at every position from the first.
        layer: The first block to run, from 0 to ``n_layers``; ``n_layers`` runs none.
        fwd_hooks: Hooks of the form ``(name, function(value, hook))`` on the blocks that run.

    Returns:
        The stream at the input of the final norm.

    Raises:
        ValueError: ``layer`` is out of range.

    Example:
        >>> import residual_stream as rs
        >>> model = rs.load("bench")
        >>> stream = rs.record(model, "In the beginning")
        >>> top = rs.rerun_from(model, stream.after("1_mlp_out"), 2)
        >>> bool((top == stream.final).all())
        True
    """
    n_layers = len(model.blocks)
    if not 0 <= layer <= n_layers:
        raise ValueError(
            f"rerun_from: layer {layer} is out of range; the model has {n_layers} blocks, so "
            f"0 ≤ layer ≤ {n_layers}"
        )
    if layer == n_layers:
        return residual.clone()
    with torch.no_grad():
        return run_blocks(model, residual, layer, n_layers, fwd_hooks=fwd_hooks).clone()


def run_to_top(
    model: TransformerBridge,
    inputs: Tensor,
    *,
    fwd_hooks: Sequence[Hook] = (),
    **options: Any,
) -> Float[Tensor, "batch seq d_model"]:
    """Run ``model`` up to the input of its final norm and return the stream there.

    In a post-LN model that is the last norm of its last block.

    Args:
        model: A ``TransformerBridge``.
        inputs: What the model's own call takes: token ids.
        fwd_hooks: Hooks of the form ``(name, function(value, hook))``.
        options: Passed to the model's call.

    Returns:
        The stream at the input of the final norm. The unembedding does not run.
    """
    with torch.no_grad():
        top = f"{final_norm(model)}.hook_in"
        return run_until(model, inputs, top, fwd_hooks=fwd_hooks, **options).clone()


def run_blocks(
    model: TransformerBridge,
    residual: Float[Tensor, "batch seq d_model"],
    start: int,
    stop: int,
    *,
    fwd_hooks: Sequence[Hook] = (),
) -> Float[Tensor, "batch seq d_model"]:
    """Return the stream after the blocks ``start`` to ``stop - 1``: an exact function of blocks.

    Autograd is left as it is, so the result can be differentiated with respect to ``residual``,
    also by ``torch.func``.

    Args:
        model: A ``TransformerBridge`` with a stack called ``blocks``.
        residual: The stream entering block ``start``, at every position from the first.
        start: The first block to run.
        stop: One past the last block to run; at most ``n_layers``.
        fwd_hooks: Hooks of the form ``(name, function(value, hook))`` on the blocks that run.

    Returns:
        The stream that enters block ``stop``, or the final norm.

    Raises:
        ValueError: ``start`` or ``stop`` is out of range.

    Example:
        >>> import residual_stream as rs
        >>> model = rs.load("bench")
        >>> stream = rs.record(model, "In the beginning")
        >>> after = rs.run_blocks(model, stream.after("0_mlp_out"), 1, 3)
        >>> bool((after == stream.after("2_mlp_out")).all())
        True
    """
    n_layers = len(model.blocks)
    if not 0 <= start <= stop <= n_layers:
        raise ValueError(
            f"run_blocks: blocks {start} to {stop} are out of range; the model has {n_layers} "
            f"blocks, so 0 ≤ start ≤ stop ≤ {n_layers}"
        )
    if start == stop:
        return residual.clone()
    # The stream is put in by hook: TransformerLens's start_at_layer does not reach BLOOM's blocks.
    tokens = torch.zeros(residual.shape[:2], dtype=torch.long, device=model.cfg.device)
    entering = (f"blocks.{start}.hook_in", lambda value, hook: residual.to(value.device))
    end = f"{final_norm(model)}.hook_in" if stop == n_layers else f"blocks.{stop}.hook_in"
    with skipped_blocks(model, range(start)):
        return run_until(model, tokens, end, fwd_hooks=[entering, *fwd_hooks])


def run_until(
    model: TransformerBridge,
    inputs: Tensor,
    point: str,
    *,
    fwd_hooks: Sequence[Hook] = (),
    **options: Any,
) -> Tensor:
    """Run ``model`` up to the hook point ``point`` and return the value there; the rest is not run.

    Args:
        model: A ``TransformerBridge``.
        inputs: What the model's own call takes: token ids.
        point: Name of the hook point, for example ``"blocks.1.hook_in"``.
        fwd_hooks: Hooks of the form ``(name, function(value, hook))``.
        options: Passed to the model's call.

    Returns:
        The value at the hook point, with its autograd graph if one is being kept.
    """
    # TransformerLens's own way to end a forward pass early.
    from transformer_lens.model_bridge.exceptions import StopAtLayerException

    def stop(value: Tensor, hook: Any) -> None:
        raise StopAtLayerException(value)

    with model.hooks(fwd_hooks=[*fwd_hooks, (point, stop)]):
        return model(inputs, return_type=None, **options)
