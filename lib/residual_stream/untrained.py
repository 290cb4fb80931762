"""The same architecture before training: what a measurement is compared with."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from .models import load

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def untrained(model: TransformerBridge, *, seed: int = 0) -> TransformerBridge:
    """Return a model of the same configuration with the weights that training would start from.

    Drawn by the architecture's own initialisation (for Llama's family normal with
    ``config.initializer_range``, gains one), on the CPU, so a seed means the same
    on every device; in the configuration's dtype, so in float64 it is another draw.

    Args:
        model: A ``TransformerBridge`` around a Hugging Face model; it is not changed.
        seed: Seed of the weights.

    Returns:
        A bridge with the tokenizer, device and dtype of ``model``, in eval mode.

    Raises:
        ValueError: A model that has no Hugging Face configuration.

    Example:
        >>> import residual_stream as rs
        >>> model = rs.load("bench")
        >>> fresh = rs.untrained(model)
        >>> bool((fresh.W_E == model.W_E).all()), fresh.W_E.shape == model.W_E.shape
        (False, True)
    """
    import transformers

    config = getattr(model.original_model, "config", None)
    if not isinstance(config, transformers.PreTrainedConfig):
        raise ValueError(
            f"untrained: {model.cfg.model_name} has no Hugging Face configuration to start from; "
            "a shipped model's checkpoint 0 is its start: residual_stream.load(name, checkpoint=0)"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # What AutoModelForCausalLM.from_config calls, of the model's own class.
        fresh = type(model.original_model)._from_config(copy.deepcopy(config))
    fresh.to(device=model.cfg.device, dtype=model.cfg.dtype)
    bridge = load(fresh)
    bridge.tokenizer = model.tokenizer
    bridge.cfg.model_name = f"{model.cfg.model_name}, untrained"
    return bridge
