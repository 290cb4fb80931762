"""Load a model as a TransformerBridge: by its name here, from the hub, a folder, or memory.

Every way ends in the same state: eval mode, eager attention, raw weights (nothing folded), and a
configuration that tells the truth about dtype and device. `requires_grad` stays as it is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import induction
from .catalogue import Catalogue, available, known, shipped, shipped_folder, smollm2_folder
from .checkpoint_files import load_weights, shipped_steps
from .devices import choose_device, require_runs
from .fetch import DamagedError
from .gguf_cache import gguf_folder
from .hub import bring, require_folder

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["Catalogue", "available", "checkpoints", "load"]

_HUB_OPTIONS = (
    "code_revision",
    "device_map",
    "hf_config_overrides",
    "max_memory",
    "n_ctx",
    "n_devices",
    "offload_folder",
    "revision",
    "trust_remote_code",
)


def load(
    name: str | os.PathLike[str] | nn.Module,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    checkpoint: int | None = None,
    **hub_options: Any,
) -> TransformerBridge:
    """A model in eval mode, ready to be recorded.

    Args:
        name: A name from `available()`, a Hugging Face name, a folder that `save_pretrained` wrote,
            a `.gguf` file of a Llama model, a loaded Hugging Face model, or a bridge. Names of
            `available()` come first; write `./bench` for a folder called `bench`. A GGUF file is
            turned into float32 weights in the cache, once. A loaded model is wrapped, not copied:
            it is put in eval mode and on eager attention, and moved and cast only as far as asked.
        tokenizer: Tokenizer of a loaded model, a folder, or a GGUF file; without one a loaded model
            takes token ids only, and so does a GGUF file whose own tokenizer isn't known here. It
            is copied.
        device: Where to put the weights. None is the best device here, in the order cuda, mps, cpu;
            a loaded model stays where it is.
        dtype: A floating dtype. None is float32; a loaded model keeps its own.
        checkpoint: Training step of a shipped model, one of `checkpoints(name)`; None is the end.
        **hub_options: For Hugging Face names and folders only, passed to TransformerLens's
            `boot_transformers`: `revision`, `trust_remote_code`, `device_map`, `max_memory`,
            `n_devices`, `offload_folder`, `n_ctx`, `hf_config_overrides`, `code_revision`.

    Returns:
        The model. `cfg.dtype`, `cfg.device` and `cfg.model_name` say what it is.

    Raises:
        ValueError: An unknown name, device, checkpoint or option, a dtype that isn't floating, or a
            loaded model that an earlier call wrapped.
        TypeError: Something that is neither a name nor a model.
        FetchError: The weights can't be fetched, checked or kept: no network (`NoNetworkError`), a
            damaged file (`DamagedError`), a full disk (`NoSpaceError`).

    Example:
        >>> model = load("bench", device="cpu")
        >>> model.cfg.n_layers, model.cfg.d_model, model.training
        (4, 128, False)
    """
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(
            f"load: dtype {dtype} is not a floating type; pass torch.float32, torch.float64, "
            "torch.bfloat16 or torch.float16"
        )
    if not isinstance(name, (str, os.PathLike, nn.Module)):
        raise TypeError(
            f"load: got a {type(name).__name__}; pass a name, a folder or a loaded model"
        )
    in_memory = isinstance(name, nn.Module)
    here = isinstance(name, str) and name in available().names
    in_gguf = not in_memory and str(name).lower().endswith(".gguf")
    if checkpoint is not None:
        _require_step(name, checkpoint)
    _require_options(hub_options, name, allowed=not (in_memory or here or in_gguf))
    if isinstance(name, nn.Module):
        where = None if device is None else choose_device(device, dtype)
        return _loaded(name, tokenizer, where, dtype)
    if here and tokenizer is not None:
        raise ValueError(f"load: {name!r} brings its own tokenizer; leave tokenizer out")
    spread = sorted({"device_map", "n_devices", "max_memory"} & set(hub_options))
    if spread and device is not None:
        raise ValueError(f"load: got device={device!r} and {spread[0]}; pass one of the two")
    where = None if spread else choose_device(device, dtype)
    dtype = dtype or torch.float32
    if here:
        return _named(str(name), where, dtype, checkpoint)
    if in_gguf:
        return _from_gguf(Path(name).expanduser(), tokenizer, where, dtype)
    return _from_hub(str(name), tokenizer, where, dtype, hub_options)


def checkpoints(name: str) -> list[int]:
    """Training steps that `load(name, checkpoint=step)` takes; the last is the finished model.

    Args:
        name: Name of a shipped model.

    Raises:
        ValueError: If the model has no checkpoints here.

    Example:
        >>> checkpoints("bench")[0]
        0
    """
    if name not in shipped():
        listed = ", ".join(map(repr, shipped())) or "none ships here"
        raise ValueError(f"checkpoints: {name!r} has none; models with checkpoints: {listed}")
    return shipped_steps(shipped_folder(name))


def _require_step(name: str | os.PathLike[str] | nn.Module, step: int) -> None:
    if name not in shipped():
        raise ValueError(
            f"load: got checkpoint={step} for {_said(name)}; only models that ship here have "
            "checkpoints (for a Hugging Face name pass revision=)"
        )
    if step not in (steps := checkpoints(str(name))):
        raise ValueError(f"load: {name} has no checkpoint {step}; steps are {steps}")


def _require_options(
    options: dict[str, Any], name: str | os.PathLike[str] | nn.Module, *, allowed: bool
) -> None:
    listed = ", ".join(_HUB_OPTIONS)
    for option in sorted(options):
        if option not in _HUB_OPTIONS:
            raise ValueError(f"load: unknown option {option!r}; options are {listed}")
        if not allowed:
            raise ValueError(
                f"load: {option} is for Hugging Face names and folders, not for {_said(name)}"
            )


def _said(name: str | os.PathLike[str] | nn.Module) -> str:
    return f"a loaded {type(name).__name__}" if isinstance(name, nn.Module) else repr(str(name))


@contextlib.contextmanager
def _without_trace() -> Iterator[None]:
    """Silence inside; the user's logging, progress bars and random state as before afterwards.

    TransformerLens sets the transformers logger to ERROR when it is imported, for good, so that
    import happens in here too; and it draws weights that it then replaces
    (test_loading_leaves_the_users_logging_and_progress_bars_alone, …_the_random_state_alone).
    """
    from transformers.utils import logging as transformers_logging

    logger, bars = logging.getLogger("transformers"), transformers_logging.is_progress_bar_enabled()
    level = logger.level
    transformers_logging.disable_progress_bar()
    logger.setLevel(logging.ERROR)
    try:
        import transformer_lens.model_bridge  # noqa: F401

        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        logger.setLevel(level)
        if bars:
            transformers_logging.enable_progress_bar()


def _named(
    name: str, device: torch.device, dtype: torch.dtype, checkpoint: int | None
) -> TransformerBridge:
    """A model of the catalogue."""
    if name in shipped():
        folder = shipped_folder(name)
        state = load_weights(folder, step=checkpoint, dtype=dtype)
    else:
        folder, state = smollm2_folder(), None
    with _without_trace():
        from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

        # with the start token switched on already, TransformerLens need not read the file again
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, add_bos_token=True)
        if name == "induction":  # attention only, which no transformers class is
            bridge = induction.boot(folder, state, tokenizer=tokenizer, device=device)
            return _honest(bridge, name)
        if state is None:
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation="eager", use_safetensors=True
            )
        else:
            config = AutoConfig.from_pretrained(folder)
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation="eager"
            )
            odd = model.load_state_dict(state, strict=False)
            tied = model._tied_weights_keys or ()
            if wrong := sorted(set(odd.missing_keys) - set(tied)) + odd.unexpected_keys:
                raise DamagedError(f"load: {folder}: {wrong[0]} is missing, or has no place")
        return _bridge(model.to(device), tokenizer, name)


def _from_gguf(
    path: Path,
    tokenizer: PreTrainedTokenizerBase | None,
    device: torch.device | None,
    dtype: torch.dtype,
) -> TransformerBridge:
    """A model from a GGUF file."""
    folder = gguf_folder(path)
    with _without_trace():
        from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

        if tokenizer is not None:
            tokenizer = _with_start_token(tokenizer)
        elif (folder / "tokenizer.json").is_file():
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, add_bos_token=True)
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", use_safetensors=True
        )
        return _bridge(model.to(device), tokenizer, path.name)


def _from_hub(
    name: str,
    tokenizer: PreTrainedTokenizerBase | None,
    device: torch.device | None,
    dtype: torch.dtype,
    options: dict[str, Any],
) -> TransformerBridge:
    """A model from a folder or by its Hugging Face name."""
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        require_folder(folder)
        name = str(folder)
    elif folder.is_absolute() or name.startswith("."):
        raise ValueError(f"load: there is no folder {folder}. {known()}")
    else:
        bring(name, revision=options.get("revision"), known=known(name))
    with _without_trace():
        from transformer_lens.model_bridge import TransformerBridge

        if tokenizer is not None:
            tokenizer = _with_start_token(tokenizer)
        bridge = TransformerBridge.boot_transformers(
            name, device=device, dtype=dtype, tokenizer=tokenizer, **options
        )
        return _honest(bridge, name)


def _loaded(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase | None,
    device: torch.device | None,
    dtype: torch.dtype | None,
) -> TransformerBridge:
    """A Hugging Face model in memory, or a bridge."""
    with _without_trace():
        from transformer_lens.model_bridge import TransformerBridge
        from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent
        from transformers import PreTrainedModel

        if isinstance(model, TransformerBridge):
            if tokenizer is not None:
                raise ValueError("load: a bridge has its tokenizer already; leave tokenizer out")
            if device is not None or dtype is not None:
                model.to(device=device, dtype=dtype, print_details=False)
            return _honest(model, model.cfg.model_name)
        if not isinstance(model, PreTrainedModel):
            inside = next((m for m in model.modules() if isinstance(m, PreTrainedModel)), None)
            hint = "" if inside is None else f" (pass the {type(inside).__name__} inside it)"
            raise TypeError(
                f"load: got a {type(model).__name__}; pass a transformers model (PreTrainedModel), "
                f"a TransformerBridge, or a name{hint}"
            )
        if any(isinstance(m, GeneralizedComponent) for m in model.modules()):
            raise ValueError(
                f"load: this {type(model).__name__} is wrapped by an earlier load already, and a "
                "second would break the first; use what that one returned, or a new model"
            )
        if device is not None or dtype is not None:
            model.to(device=device, dtype=dtype)
        if tokenizer is not None:
            tokenizer = _with_start_token(tokenizer)
        return _bridge(model, tokenizer, model.config.name_or_path or type(model).__name__)


def _with_start_token(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A copy of a tokenizer that puts its start token first, if it has one.

    TransformerLens wants that, and would read the tokenizer again by its name, from the hub.
    """
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        switch = {} if tokenizer.bos_token is None else {"add_bos_token": True}
        try:
            return type(tokenizer).from_pretrained(folder, **switch)
        except ValueError:  # a start token with a colon in it can't be put in a template
            return type(tokenizer).from_pretrained(folder)


def _bridge(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, name: str
) -> TransformerBridge:
    from transformer_lens.model_bridge import TransformerBridge, sources
    from transformer_lens.model_bridge.sources.transformers import (
        determine_architecture_from_hf_config,
    )

    if model.config.architectures is None:  # as from_config leaves it; TransformerLens wants it
        model.config.architectures = [type(model).__name__]
    if tokenizer is not None:
        bridge = TransformerBridge.boot_transformers(name, hf_model=model, tokenizer=tokenizer)
    else:
        # boot_transformers would look for a tokenizer on the hub
        model.set_attn_implementation("eager")
        bridge = sources.build_bridge_from_module(
            model,
            determine_architecture_from_hf_config(model.config),
            hf_config=model.config,
            model_name=name,
        )
    return _honest(bridge, name)


def _honest(bridge: TransformerBridge, name: str) -> TransformerBridge:
    """The bridge in eval mode, its configuration made to say what the weights are.

    With `hf_model=`, TransformerLens 4.3 notes the default dtype and the best device instead
    (test_the_configuration_says_what_the_weights_are).
    """
    weight = next(p for p in bridge.parameters() if p.is_floating_point())
    bridge.cfg.dtype = weight.dtype
    if getattr(bridge.original_model, "hf_device_map", None) is None:
        bridge.cfg.device = str(weight.device)
    bridge.cfg.model_name = name
    require_runs(bridge.eval(), weight.dtype)
    return bridge
