"""Run the rest of a model from the stream at some layer, without running the layers before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

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
        layers: Indices of the blocks to skip.

    Yields:
        Nothing; the blocks are restored at the end, also after an error.
    """

    # Imported here: TransformerLens takes seconds to import.
    from transformer_lens.model_bridge.sources.native.model import NativeBlock

    def pass_on(*args: Any, **kwargs: Any) -> Any:
        return args[0] if args else kwargs["hidden_states"]

    def pass_on_in_a_tuple(*args: Any, **kwargs: Any) -> Any:
        return (pass_on(*args, **kwargs),)

    with ExitStack() as restore:
        for layer in layers:
            block = model.blocks[layer]
            # TransformerLens's own blocks return a tuple of one, Hugging Face's a tensor.
            native = isinstance(block.original_component, NativeBlock)
            # Past the bridge's own __setattr__, which would set it on the Hugging Face block.
            object.__setattr__(block, "forward", pass_on_in_a_tuple if native else pass_on)
            restore.callback(object.__delattr__, block, "forward")
        yield


def rerun_from(
    model: TransformerBridge,
    residual: Float[Tensor, "batch seq d_model"],
    layer: int,
    *,
    fwd_hooks: Sequence[Hook] = (),
) -> Float[Tensor, "batch seq d_model"]:
    """Return the top of the stream when the model goes on from ``residual`` at ``layer``.

    Equal to the bit to the top of a full run whose stream at ``layer`` is ``residual``, at the
    cost of the blocks from ``layer`` up only. TransformerLens's ``start_at_layer`` gives the same
    numbers but runs the earlier blocks too and drops their outputs; here they are skipped.

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
    with torch.no_grad(), skipped_blocks(model, range(layer)):
        return run_to_top(model, residual, fwd_hooks=fwd_hooks, start_at_layer=layer)


def run_to_top(
    model: TransformerBridge,
    inputs: Tensor,
    *,
    fwd_hooks: Sequence[Hook] = (),
    **options: Any,
) -> Float[Tensor, "batch seq d_model"]:
    """Run ``model`` up to the input of its final norm and return the stream there.

    Args:
        model: A ``TransformerBridge``.
        inputs: What the model's own call takes: token ids, or a stream with ``start_at_layer``.
        fwd_hooks: Hooks of the form ``(name, function(value, hook))``.
        options: Passed to the model's call.

    Returns:
        The stream at the input of the final norm. The unembedding does not run.
    """
    with torch.no_grad():
        return _to_top(model, inputs, fwd_hooks, options).clone()


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
    with skipped_blocks(model, range(start)):
        if stop == n_layers:  # stop_at_layer = n_layers would run the unembedding
            return _to_top(model, residual, fwd_hooks, {"start_at_layer": start})
        with model.hooks(fwd_hooks=list(fwd_hooks)):
            return model(residual, return_type=None, start_at_layer=start, stop_at_layer=stop)


def _to_top(
    model: TransformerBridge, inputs: Tensor, fwd_hooks: Sequence[Hook], options: dict[str, Any]
) -> Tensor:
    # TransformerLens's own way to end a forward pass early.
    from transformer_lens.model_bridge.exceptions import StopAtLayerException

    def stop(value: Tensor, hook: Any) -> None:
        raise StopAtLayerException(value)

    with model.hooks(fwd_hooks=[*fwd_hooks, ("ln_final.hook_in", stop)]):
        return model(inputs, return_type=None, **options)
