"""Small random models of every architecture that this library is tested on.

Each is built from its ``transformers`` configuration, so that its block is the one people load, and
no gain, bias or gate of it is trivially 0 or 1. They take milliseconds and need no network: to see
how a wiring behaves, to test code of one's own, to compare libraries.

Not imported with the package: ``from residual_stream import architectures``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers as hf

from .models import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformer_lens.model_bridge import TransformerBridge

VOCABULARY = 29
#: Two texts of eight tokens that every model here reads.
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [27, 1, 8, 2, 8, 18, 28, 4]])

# Where the automatic class would take another: Qwen3.5's for pictures too, BERT's without its mask.
_CLASSES = {"qwen3_5": "Qwen3_5ForCausalLM", "bert": "BertForMaskedLM"}
_IDS = {"bos_token_id": 1, "eos_token_id": 2}
_BASE = {"vocab_size": VOCABULARY, "max_position_embeddings": 48, "pad_token_id": 0, **_IDS}
_SIZES = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 24,
}  # fmt: skip
_MHA = {**_BASE, **_SIZES}
_GQA = {**_MHA, "num_key_value_heads": 2}
_WIDE = {**_GQA, "head_dim": 8}
_GPT = {
    "vocab_size": VOCABULARY,
    "n_positions": 48,
    "n_embd": 16,
    "n_layer": 3,
    "n_head": 4,
    **_IDS,
}
_SSM = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 3, "state_size": 4,
        "pad_token_id": 0, **_IDS}  # fmt: skip
_MOE = {"num_experts_per_tok": 2}

SEQUENTIAL = {
    "gpt2": lambda: hf.GPT2Config(**_GPT),
    "gpt_neo": lambda: hf.GPTNeoConfig(
        **_BASE, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=24, window_size=4,
        attention_types=[[["global", "local"], 1]],
    ),
    "opt": lambda: hf.OPTConfig(
        **_BASE, hidden_size=16, num_hidden_layers=3, num_attention_heads=4, ffn_dim=24,
        word_embed_proj_dim=16,
    ),
    "bloom": lambda: hf.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=16, n_layer=3, n_head=4, pad_token_id=0, **_IDS
    ),
    "llama": lambda: hf.LlamaConfig(**_GQA),
    "mistral": lambda: hf.MistralConfig(**_GQA, sliding_window=4),
    "qwen2": lambda: hf.Qwen2Config(**_GQA),
    "qwen3": lambda: hf.Qwen3Config(**_WIDE),
    "smollm3": lambda: hf.SmolLM3Config(**_GQA),
    "starcoder2": lambda: hf.Starcoder2Config(**_GQA),
    "gemma": lambda: hf.GemmaConfig(**_WIDE),
    "phi3": lambda: hf.Phi3Config(**_GQA),
    "stablelm": lambda: hf.StableLmConfig(**_GQA, partial_rotary_factor=0.5),
    "nemotron": lambda: hf.NemotronConfig(**_GQA),
    "olmo": lambda: hf.OlmoConfig(**_GQA),
    "neox, sequential": lambda: hf.GPTNeoXConfig(**_MHA, use_parallel_residual=False),
}  # fmt: skip
PARALLEL = {
    "neox": lambda: hf.GPTNeoXConfig(**_MHA),
    "gptj": lambda: hf.GPTJConfig(**_GPT, rotary_dim=4),
    "phi": lambda: hf.PhiConfig(**_MHA),
    "falcon": lambda: hf.FalconConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=3, num_attention_heads=4,
        bias=True, alibi=False, **_IDS,
    ),
    "cohere": lambda: hf.CohereConfig(**_GQA, logit_scale=0.25),
    "stablelm, parallel": lambda: hf.StableLmConfig(
        **_GQA, partial_rotary_factor=0.5, use_parallel_residual=True
    ),
}  # fmt: skip
POST_NORM = {
    "gemma2": lambda: hf.Gemma2Config(**_WIDE),
    "gemma3": lambda: hf.Gemma3TextConfig(**_WIDE),
    "olmo2": lambda: hf.Olmo2Config(**_GQA),
    "glm4": lambda: hf.Glm4Config(**_WIDE),
}
SCALED = {
    "granite": lambda: hf.GraniteConfig(
        **_GQA, residual_multiplier=0.22, embedding_multiplier=12.0, logits_scaling=8.0,
        attention_multiplier=0.3,
    ),
}  # fmt: skip
EXPERTS = {
    "mixtral": lambda: hf.MixtralConfig(**_GQA, **_MOE, num_local_experts=4),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(
        **_WIDE, **_MOE, num_experts=4, moe_intermediate_size=12, decoder_sparse_step=1
    ),
    "qwen2_moe": lambda: hf.Qwen2MoeConfig(
        **_GQA, **_MOE, num_experts=4, moe_intermediate_size=12, decoder_sparse_step=1,
        shared_expert_intermediate_size=12,
    ),
    "gpt_oss": lambda: hf.GptOssConfig(
        **_WIDE, **_MOE, num_local_experts=4,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    "deepseek_v3": lambda: hf.DeepseekV3Config(
        **_MHA, **_MOE, num_key_value_heads=4, n_routed_experts=4, n_group=2, topk_group=1,
        n_shared_experts=1, moe_intermediate_size=12, kv_lora_rank=8, q_lora_rank=8,
        qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=4, first_k_dense_replace=1,
    ),
}  # fmt: skip
HYBRID = {
    "qwen3_5": lambda: hf.Qwen3_5TextConfig(
        **{**_WIDE, "num_hidden_layers": 4}, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=4, linear_value_head_dim=4, full_attention_interval=4,
    ),
    "mamba": lambda: hf.MambaConfig(**_SSM),
    "mamba2": lambda: hf.Mamba2Config(**_SSM, num_heads=4, head_dim=8, n_groups=1),
}  # fmt: skip
POST_LN = {
    "gpt1": lambda: hf.OpenAIGPTConfig(**{k: v for k, v in _GPT.items() if k not in _IDS}),
    "bert": lambda: hf.BertConfig(**_MHA),
}
#: Every architecture by name: a function that makes its configuration.
CONFIGS: dict[str, Callable[[], Any]] = {
    **SEQUENTIAL,
    **PARALLEL,
    **POST_NORM,
    **SCALED,
    **EXPERTS,
    **HYBRID,
    **POST_LN,
}


def random_hf(name: str, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Return a random Hugging Face model of an architecture, in eval mode on the CPU.

    Args:
        name: A key of ``CONFIGS``.
        dtype: The dtype of its weights; the same numbers in any of them, up to rounding.
        seed: Seed of the weights; the global random state is left alone.

    Raises:
        ValueError: An unknown name.
    """
    if name not in CONFIGS:
        raise ValueError(f"random_hf: no architecture {name!r}; known are {', '.join(CONFIGS)}")
    config = CONFIGS[name]()
    # Experts one by one: the grouped product that transformers prefers has no float64.
    config._attn_implementation = config._experts_implementation = "eager"
    kind = _CLASSES.get(name)
    build = getattr(hf, kind)._from_config if kind else hf.AutoModelForCausalLM.from_config
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = build(config, dtype=torch.float32, attn_implementation="eager")
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape)
            parameter.copy_(parameter + 0.2 * noise if parameter.ndim == 1 else 0.3 * noise)
    return model.to(dtype).eval()


def random_model(
    name: str, *, dtype: torch.dtype = torch.float32, seed: int = 0
) -> TransformerBridge:
    """Return the same model as :func:`residual_stream.load` gives it.

    Example:
        >>> import residual_stream as rs
        >>> stream = rs.record(random_model("gemma2"), TOKENS)
        >>> heads = rs.logit_attribution(stream, 5, unit="head")
        >>> stream.audit().ok, heads.relative_remainder < 1e-5
        (True, True)
    """
    return load(random_hf(name, dtype=dtype, seed=seed))
