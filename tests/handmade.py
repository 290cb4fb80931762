"""Small models whose weights are set by hand, so that every answer is known in closed form."""

from __future__ import annotations

import torch
import transformers
from transformer_lens.model_bridge.sources import build_bridge_from_module

_TINY = {"vocab_size": 23, "max_position_embeddings": 48, "attn_implementation": "eager"}
_LLAMA = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
_CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(
        n_layer=2, n_head=4, n_embd=16, vocab_size=23, n_positions=48, attn_implementation="eager"
    ),
    "llama": lambda: transformers.LlamaConfig(
        **_TINY, **_LLAMA, num_key_value_heads=2, intermediate_size=24
    ),
    "mixtral": lambda: transformers.MixtralConfig(
        **_TINY, **_LLAMA, num_key_value_heads=2, intermediate_size=24, num_local_experts=4
    ),
    "neox": lambda: transformers.GPTNeoXConfig(**_TINY, **_LLAMA, intermediate_size=32),
    "gemma2": lambda: transformers.Gemma2Config(
        **_TINY, **_LLAMA, num_key_value_heads=2, head_dim=8, intermediate_size=24
    ),
    "cohere": lambda: transformers.CohereConfig(
        **_TINY,
        **_LLAMA,
        num_key_value_heads=2,
        intermediate_size=24,
        logit_scale=0.25,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    ),
}


def bridge(hf):
    """A bridge around a Hugging Face model, in eval mode, without tokenizer."""
    return build_bridge_from_module(hf.eval(), type(hf).__name__, hf_config=hf.config)


def random_model(name, *, dtype=torch.float32, seed=0):
    """A two-layer model of an architecture, with no weight, gain or bias trivially 0 or 1."""
    torch.manual_seed(seed)
    hf = transformers.AutoModelForCausalLM.from_config(_CONFIGS[name](), dtype=dtype)
    with torch.no_grad():
        for parameter in hf.parameters():
            noise = torch.randn(parameter.shape, dtype=dtype)
            parameter.copy_(parameter + 0.2 * noise if parameter.ndim == 1 else 0.3 * noise)
    return bridge(hf)


def hadamard(n):
    """The Hadamard matrix of size n, a power of two: entries ±1, orthogonal rows."""
    matrix = torch.ones(1, 1)
    while len(matrix) < n:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


# What the hand-made ledger model writes: its stream stays a multiple of the token's own row.
HEAD_GAINS = [[1.0, 1.0], [-0.5, -0.5]]
NEURON_GAIN = 3.0
GATE = 2.0


def ledger_model():
    """Two Llama layers that write multiples of the token's row: everything is known.

    Rows are Hadamard (entries ±1), so the RMS norm returns the row itself wherever the stream is
    a positive multiple of it. Head (l, h) copies its half of the row times HEAD_GAINS[l][h]. Neuron
    n answers to token n alone, with silu(GATE), and writes NEURON_GAIN times the row of token n.
    """
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, intermediate_size=8, max_position_embeddings=16, rms_norm_eps=1e-12,
        tie_word_embeddings=False, attn_implementation="eager",
    )  # fmt: skip
    hf = transformers.LlamaForCausalLM(config)
    rows = hadamard(8)
    with torch.no_grad():
        hf.model.embed_tokens.weight.copy_(rows)
        hf.lm_head.weight.copy_(torch.arange(64.0).reshape(8, 8).sin())
        hf.model.norm.weight.copy_(torch.linspace(0.5, 2.0, 8))
        for layer, gains in zip(hf.model.layers, HEAD_GAINS, strict=True):
            layer.self_attn.q_proj.weight.zero_()  # attention is uniform
            layer.self_attn.k_proj.weight.zero_()
            layer.self_attn.v_proj.weight.copy_(torch.eye(8))
            copy = torch.tensor([gains[0]] * 4 + [gains[1]] * 4)
            layer.self_attn.o_proj.weight.copy_(copy.diag())
            layer.mlp.gate_proj.weight.copy_(GATE / 8 * rows)
            layer.mlp.up_proj.weight.copy_(rows / 8)
            layer.mlp.down_proj.weight.copy_(NEURON_GAIN * rows.T)
    return bridge(hf)


N_POS, N_TOKEN, WIDTH = 24, 12, 64


def induction_model():
    """A GPT-2 of two layers with a previous-token, a duplicate-token and an induction head by hand.

    The stream is one-hot: coordinates 0-23 hold the position, 24-35 the token, 36-47 receive the
    previous token. Head (0, 0) looks one position back and copies the token it finds into 36-47;
    head (0, 1) looks at the same token; head (1, 0) has the token as query and 36-47 as key;
    head (1, 1) is empty.
    """
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=WIDTH, vocab_size=N_TOKEN, n_positions=N_POS,
        attn_implementation="eager", tie_word_embeddings=False,
    )  # fmt: skip
    hf = transformers.GPT2LMHeadModel(config)
    token, previous = N_POS, N_POS + N_TOKEN
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.zero_()
        for module in hf.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.fill_(1.0)
        hf.transformer.wpe.weight[:, :N_POS] = torch.eye(N_POS)
        hf.transformer.wte.weight[:, token:previous] = torch.eye(N_TOKEN)
        hf.lm_head.weight[:, token:previous] = torch.eye(N_TOKEN)

        def head(layer, index, reads, keys, size):
            """Query coordinate reads[i] matches key coordinate keys[i]."""
            weight = hf.transformer.h[layer].attn.c_attn.weight  # [d_model, q | k | v]
            for slot, (read, key) in enumerate(zip(reads, keys, strict=True)):
                weight[read, 32 * index + slot] = size
                weight[key, WIDTH + 32 * index + slot] = size

        head(0, 0, range(1, N_POS), range(N_POS - 1), 10.0)
        head(0, 1, range(token, previous), range(token, previous), 10.0)
        head(1, 0, range(token, previous), range(previous, previous + N_TOKEN), 10.0)
        attn = hf.transformer.h[0].attn
        for slot in range(N_TOKEN):  # head (0, 0) copies the token it sees into 36-47
            attn.c_attn.weight[token + slot, 2 * WIDTH + slot] = 1.0
            attn.c_proj.weight[slot, previous + slot] = 1.0
        attn = hf.transformer.h[1].attn
        for slot in range(N_TOKEN):  # head (1, 0) copies the token it sees to the logits
            attn.c_attn.weight[token + slot, 2 * WIDTH + slot] = 1.0
            attn.c_proj.weight[slot, token + slot] = 5.0
    return bridge(hf)
