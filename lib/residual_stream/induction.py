"""The shipped induction model: two layers, attention only, in TransformerLens's native form.

No Hugging Face class has blocks without an MLP, so this model is built from TransformerLens's
own `NativeModel`: learned positions, LayerNorm before each attention, an output head of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerBase

CONFIG = "config.json"


def native_module(config: dict[str, Any], *, seed: int | None = None) -> nn.Module:
    """A plain, trainable `NativeModel` of a configuration, without hooks.

    Args:
        config: Fields of TransformerLens's `TransformerBridgeConfig`.
        seed: Seed of the initialisation, drawn on the CPU; PyTorch's default one if not given.

    Returns:
        A module from token ids `[batch, pos]` to logits `[batch, pos, vocab]`.
    """
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge.sources.native import NativeModel, initialize_native_model

    bridge_config = TransformerBridgeConfig.from_dict(config)
    with torch.random.fork_rng(devices=[]):  # building the layers draws from the global generator
        module = NativeModel(bridge_config)
        if seed is not None:
            initialize_native_model(module, bridge_config, seed=seed)
    return module


def bridge_of(
    module: nn.Module, *, tokenizer: PreTrainedTokenizerBase | None, name: str = "induction"
) -> TransformerBridge:
    """A `TransformerBridge` around a module of `native_module`, in eval mode, weights shared.

    Args:
        module: The module; it is wrapped, so hand in a copy if it is to be trained further.
        tokenizer: Tokenizer of the bridge, or None for token ids only.
        name: What `cfg.model_name` says.
    """
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    weight = next(module.parameters())
    return build_bridge_from_module(
        module,
        "TransformerLensNative",
        tl_config=module.cfg,
        tokenizer=tokenizer,
        dtype=weight.dtype,
        device=weight.device,
        model_name=name,
    ).eval()


def boot(
    folder: Path,
    weights: dict[str, Tensor],
    *,
    tokenizer: PreTrainedTokenizerBase | None,
    device: torch.device | str = "cpu",
) -> TransformerBridge:
    """The model of a folder as a `TransformerBridge` in eval mode.

    Args:
        folder: Holds `config.json`, the fields of a `TransformerBridgeConfig`.
        weights: Tensors by name, as `checkpoint_files.load_weights(folder, step=…)` returns them.
        tokenizer: Tokenizer of the bridge.
        device: Where to put the weights.

    Raises:
        RuntimeError: If the weights are not those of the configuration.
    """
    module = native_module(json.loads((folder / CONFIG).read_text()))
    module.to(next(iter(weights.values())).dtype).load_state_dict(weights)
    return bridge_of(module.to(device), tokenizer=tokenizer)
