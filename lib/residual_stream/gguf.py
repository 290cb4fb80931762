"""From a GGUF file of a Llama model to a Hugging Face folder: float32 weights and a tokenizer.

Each quantised block is turned back into the float32 numbers it stands for; nothing is rounded
again. The query and key rows, which GGUF keeps in another order for its rotary embedding, return to
the order that Hugging Face's Llama expects.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_IN_BLOCK = [name for name in _NAMES if name.startswith(("attn", "ffn"))]
_KNOWN_TOKENIZER = ("gpt2", "smollm")
_SPECIAL = 3  # the token type that GGUF gives to control tokens


def convert(source: Path, folder: Path, *, tokenizer: bool = True) -> str:
    """Write a GGUF file's model as a Hugging Face folder.

    Args:
        source: GGUF file of a Llama model with a byte-level BPE tokenizer.
        folder: Existing folder; receives `config.json`, `model.safetensors` (float32),
            `tokenizer.json`, `tokenizer_config.json` and, if there is one, `chat_template.jinja`.
        tokenizer: Whether to write the tokenizer's files.

    Returns:
        `tensors_sha256` of the weights.

    Raises:
        ValueError: If the file holds something that this conversion doesn't know. Nothing that it
            doesn't know is left out in silence.
    """
    reader = _reader(source)
    fields = _fields(reader)
    config = _config(fields)
    weights = _weights(reader, config)
    config["tie_word_embeddings"] = "lm_head.weight" not in weights
    _write_json(folder / "config.json", config)
    if tokenizer:
        _write_tokenizer(fields, folder, n_ctx=config["max_position_embeddings"])
    # "format" is what Hugging Face's loader looks for
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors_sha256(weights)


def require_supported(source: Path) -> int:
    """Check by a GGUF file's header that `convert` knows its model; the tokenizer apart.

    Args:
        source: The file.

    Returns:
        Bytes that the weights take in float32.

    Raises:
        ValueError: Not a GGUF file, or a model that isn't known.
    """
    reader = _reader(source)
    _config(_fields(reader))
    return 4 * sum(int(stored.n_elements) for stored in reader.tensors) + 20_000_000


def has_known_tokenizer(source: Path) -> bool:
    """Whether the tokenizer in a GGUF file is of the kind that `convert` writes."""
    return _tokenizer_kind(_fields(_reader(source))) == _KNOWN_TOKENIZER


def _reader(source: Path) -> gguf.GGUFReader:
    try:
        return gguf.GGUFReader(source)
    except (ValueError, IndexError, KeyError) as error:
        raise ValueError(f"convert: {source} can't be read as a GGUF file ({error})") from error


def _fields(reader: gguf.GGUFReader) -> dict[str, Any]:
    return {key: field.contents() for key, field in reader.fields.items()}


def tensors_sha256(weights: dict[str, Tensor]) -> str:
    """Checksum of tensors: their names, types, shapes and bytes, whatever file they are in.

    Args:
        weights: Tensors by name, on the CPU.

    Example:
        >>> a, b = torch.zeros(2), torch.ones(3)
        >>> tensors_sha256({"a": a, "b": b}) == tensors_sha256({"b": b, "a": a})
        True
        >>> tensors_sha256({"a": a}) == tensors_sha256({"a": torch.zeros(2, 1)})
        False
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise ValueError(
            f"convert: the GGUF file holds a {architecture!r} model; pass a 'llama' one"
        )
    scaled = [key for key in fields if key.startswith("llama.rope.scaling")]
    if scaled:
        raise ValueError(
            f"convert: the rotary embedding is scaled ({scaled[0]}); this isn't supported"
        )

    def read(key: str) -> Any:
        if f"llama.{key}" not in fields:
            raise ValueError(f"convert: the GGUF file has no llama.{key}")
        return fields[f"llama.{key}"]

    d_model, n_heads = read("embedding_length"), read("attention.head_count")
    d_head = read("rope.dimension_count")
    if d_head * n_heads != d_model:
        raise ValueError(
            f"convert: {n_heads} heads × {d_head} rotary dimensions ≠ {d_model} model dimensions; "
            "partly rotated heads aren't supported"
        )
    ids = {
        name: fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "padding")
    }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": d_model,
        "intermediate_size": read("feed_forward_length"),
        "num_hidden_layers": read("block_count"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": read("attention.head_count_kv"),
        "head_dim": d_head,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": read("context_length"),
        # the file's float32 1e-5 reads as 9.99999974e-06; the shortest decimal is the same float32
        "rms_norm_eps": float(str(np.float32(read("attention.layer_norm_rms_epsilon")))),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(read("rope.freq_base"))},
        "bos_token_id": ids["bos"],
        "eos_token_id": ids["eos"],
        "pad_token_id": ids["padding"],
    }


def _weights(reader: gguf.GGUFReader, config: dict[str, Any]) -> dict[str, Tensor]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for stored in reader.tensors:
        match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", stored.name)
        block, kind = match.groups() if match else (None, None)
        if kind not in _NAMES or (kind in _IN_BLOCK) != (block is not None):
            raise ValueError(
                f"convert: the GGUF file has a tensor {stored.name!r} that isn't known"
            )
        values = torch.from_numpy(
            np.array(gguf.quants.dequantize(stored.data, stored.tensor_type), np.float32)
        )
        if kind in heads:
            values = from_gguf_rotary(values, n_heads=heads[kind])
        prefix = f"model.layers.{block}." if block is not None else ""
        weights[f"{prefix}{_NAMES[kind]}.weight"] = values
    wanted = {f"{_NAMES[kind]}.weight" for kind in ("token_embd", "output_norm")} | {
        f"model.layers.{layer}.{_NAMES[kind]}.weight"
        for layer in range(config["num_hidden_layers"])
        for kind in _IN_BLOCK
    }
    odd = sorted(wanted ^ (set(weights) - {"lm_head.weight"}))
    if odd:
        raise ValueError(
            f"convert: {len(odd)} tensors are missing or beyond the {config['num_hidden_layers']} "
            f"layers, the first is {odd[0]}"
        )
    return weights


def from_gguf_rotary(
    rows: Float[Tensor, "out d_model"], *, n_heads: int
) -> Float[Tensor, "out d_model"]:
    """Query or key rows in Hugging Face's rotary order.

    GGUF pairs neighbouring rows of a head (0, 1), (2, 3), …; Hugging Face pairs row i with row
    i + d_head/2. Row 2i of a head becomes row i, row 2i + 1 becomes row i + d_head/2.

    Args:
        rows: Projection matrix as GGUF stores it, `[n_heads · d_head, d_model]`.
        n_heads: Number of heads in it (key/value heads for keys).

    Example:
        >>> from_gguf_rotary(torch.arange(8.0)[:, None], n_heads=2).flatten().tolist()
        [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]
    """
    out, d_model = rows.shape
    # [n_heads, d_head/2, 2, d_model] -> [n_heads, 2, d_head/2, d_model]
    pairs = rows.reshape(n_heads, out // n_heads // 2, 2, d_model)
    return pairs.transpose(1, 2).reshape(out, d_model)


def _tokenizer_kind(fields: dict[str, Any]) -> tuple[str | None, str | None]:
    return fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")


def _write_tokenizer(fields: dict[str, Any], folder: Path, *, n_ctx: int) -> None:
    if (found := _tokenizer_kind(fields)) != _KNOWN_TOKENIZER:
        kind, cut = found
        raise ValueError(
            f"convert: the tokenizer is {kind!r} with the pre-tokenizer {cut!r}; "
            "pass a file with 'gpt2' and 'smollm'"
        )
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # "smollm" cuts off every digit first; transformers' own GGUF reader leaves that step out and
    # tokenises "a  12" differently (test_digits_are_cut_before_the_spaces_are_grouped)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _SPECIAL
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    special = {
        f"{name}_token": tokens[fields[f"tokenizer.ggml.{key}_token_id"]]
        for key, name in names.items()
        if f"tokenizer.ggml.{key}_token_id" in fields
    }
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": n_ctx,
            "clean_up_tokenization_spaces": False,
            **special,
        },
    )
    if "tokenizer.chat_template" in fields:
        (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"])


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
