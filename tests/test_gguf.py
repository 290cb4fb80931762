"""From GGUF to safetensors: the same numbers, in the order that Hugging Face expects."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from residual_stream.gguf import convert, from_gguf_rotary, tensors_sha256

Q = gguf.GGMLQuantizationType
CONFIG = LlamaConfig(
    vocab_size=288,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=32,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    tie_word_embeddings=True,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=2,
    attn_implementation="eager",
)
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def original(seed: int = 0, **changes: object) -> LlamaForCausalLM:
    config = LlamaConfig(**{**CONFIG.to_dict(), **changes, "attn_implementation": "eager"})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # norms of 1 would hide a swap of the two
                parameter.copy_(0.3 * torch.randn_like(parameter))
    return model


def gguf_name(name: str) -> str:
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in outside:
        return f"{outside[stem]}.weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[rest]}.weight"


def to_gguf_rotary(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """Row i of a head's first half and row i of its second half become neighbours."""
    d_head = len(rows) // n_heads
    order = [
        head * d_head + half * d_head // 2 + i
        for head in range(n_heads)
        for i in range(d_head // 2)
        for half in (0, 1)
    ]
    return rows[order]


def tokens() -> tuple[list[str], list[str], list[int]]:
    """A byte-level vocabulary with three control tokens and a few merges."""
    from tokenizers import pre_tokenizers

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merged = ["ĠĠ", "Ġt", "Ġth", "Ġthe"]
    merges = ["Ġ Ġ", "Ġ t", "Ġt h", "Ġth e"]
    vocabulary = special + sorted(pre_tokenizers.ByteLevel.alphabet()) + merged
    vocabulary += [f"<unused{i}>" for i in range(288 - len(vocabulary))]
    return vocabulary, merges, [3] * 3 + [1] * 285


def write(
    path: Path,
    model: LlamaForCausalLM,
    *,
    kinds: dict[str, Q] | None = None,
    architecture: str = "llama",
    pre: str = "smollm",
    without: str = "",
    beside: tuple[str, ...] = (),
    scaled: bool = False,
) -> dict[str, np.ndarray]:
    """Write a model as GGUF; returns the stored bytes by Hugging Face name."""
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    if scaled:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    vocabulary, merges, types = tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary)
    writer.add_token_merges(merges)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages }}")
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    stored = {}
    for name, tensor in model.state_dict().items():
        if name == without or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        values = tensor.numpy()
        if (projection := name.split(".")[-2]) in heads:
            values = to_gguf_rotary(values, heads[projection])
        kind = (kinds or {}).get(name, Q.F32)
        stored[name] = gguf.quants.quantize(values, kind)
        writer.add_tensor(gguf_name(name), stored[name], raw_dtype=kind)
    for name in beside:
        writer.add_tensor(name, np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "hf").mkdir()
    return tmp_path / "hf"


@pytest.mark.parametrize("tied", [True, False])
def test_a_float32_file_gives_the_models_own_logits_to_the_bit(tmp_path, folder, tied):
    model = original(tie_word_embeddings=tied)
    write(tmp_path / "a.gguf", model)
    convert(tmp_path / "a.gguf", folder)
    again = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.arange(40, 60)[None]
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    assert again.config.tie_word_embeddings is tied
    assert again.config.rms_norm_eps == 1e-5
    assert again.config.max_position_embeddings == 32


def test_a_wrong_row_order_of_the_queries_would_change_the_logits():
    # the mutation that the test above must notice
    model, ids = original(), torch.arange(40, 60)[None]
    with torch.no_grad():
        before = model(ids).logits
        query = model.model.layers[0].self_attn.q_proj.weight
        query.copy_(torch.from_numpy(to_gguf_rotary(query.numpy(), 4)))
        assert (model(ids).logits - before).abs().max() > 1e-3


def test_rotary_rows_return_to_their_places():
    rows = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))
    stored = torch.from_numpy(to_gguf_rotary(rows.numpy(), 3))
    assert not torch.equal(stored, rows)
    assert torch.equal(from_gguf_rotary(stored, n_heads=3), rows)


def by_hand(stored: np.ndarray, kind: Q) -> np.ndarray:
    """The numbers of quantised rows, block by block of 32, as the format defines them."""
    rows = []
    for row in stored:
        values: list[float] = []
        size = {Q.Q8_0: 34, Q.Q4_1: 20}[kind]
        for start in range(0, len(row), size):
            block = row[start : start + size].tobytes()
            scale = np.frombuffer(block[:2], np.float16).astype(np.float32)[0]
            if kind == Q.Q8_0:
                values += [scale * np.float32(n) for n in np.frombuffer(block[2:], np.int8)]
            else:
                low = np.frombuffer(block[2:4], np.float16).astype(np.float32)[0]
                packed = block[4:]
                numbers = [byte & 15 for byte in packed] + [byte >> 4 for byte in packed]
                values += [scale * np.float32(n) + low for n in numbers]
        rows.append(values)
    return np.array(rows, np.float32)


@pytest.mark.parametrize("kind", [Q.Q8_0, Q.Q4_1])
def test_quantised_blocks_become_the_numbers_they_stand_for(tmp_path, folder, kind):
    named = {
        f"model.layers.1.{part}.weight": kind
        for part in ("mlp.up_proj", "self_attn.v_proj", "self_attn.q_proj", "self_attn.k_proj")
    } | {"model.embed_tokens.weight": kind}
    model = original()
    stored = write(tmp_path / "a.gguf", model, kinds=named)
    convert(tmp_path / "a.gguf", folder)
    weights = load_file(folder / "model.safetensors")
    for name in named:
        expected = by_hand(stored[name], kind)
        got = weights[name].numpy()
        if (n_heads := {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])) is not None:
            got = to_gguf_rotary(got, n_heads)
        assert np.array_equal(got, expected)
        rounding = (weights[name] - model.state_dict()[name]).abs().max()
        assert 0 < rounding < 0.1, "it is the quantised matrix, near the one it came from"
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


def test_digits_are_cut_before_the_spaces_are_grouped(tmp_path, folder):
    write(tmp_path / "a.gguf", original())
    convert(tmp_path / "a.gguf", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("the  12 the<|im_end|>").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == [
        *("t", "h", "e"),
        *("ĠĠ", "1", "2"),
        *("Ġthe", "<|im_end|>"),
    ]
    assert tokenizer.decode(ids) == "the  12 the<|im_end|>"
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (tokenizer.unk_token, tokenizer.pad_token) == ("<|endoftext|>", "<|im_end|>")
    assert tokenizer.chat_template == "{{ messages }}"


def test_the_checksum_of_the_tensors_does_not_depend_on_the_file(tmp_path, folder):
    write(tmp_path / "a.gguf", original())
    got = convert(tmp_path / "a.gguf", folder)
    weights = load_file(folder / "model.safetensors")
    assert tensors_sha256(dict(reversed(weights.items()))) == got
    weights["model.norm.weight"][3] += 1e-7
    assert tensors_sha256(weights) != got


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architecture": "gemma"}, "holds a 'gemma' model; pass a 'llama' one"),
        ({"pre": "llama-bpe"}, "'gpt2' with the pre-tokenizer 'llama-bpe'; pass a file"),
        ({"scaled": True}, "the rotary embedding is scaled"),
        ({"beside": ("blk.0.attn_q.bias",)}, "a tensor 'blk.0.attn_q.bias' that isn't known"),
        ({"beside": ("attn_q.weight",)}, "a tensor 'attn_q.weight' that isn't known"),
        ({"beside": ("blk.7.attn_norm.weight",)}, "beyond the 2 layers.*layers.7.input_layernorm"),
        (
            {"without": "model.layers.1.mlp.up_proj.weight"},
            "1 tensors are missing .* model.layers.1.mlp.up_proj.weight",
        ),
    ],
)
def test_what_is_not_understood_is_refused_by_name(tmp_path, folder, changes, said):
    write(tmp_path / "a.gguf", original(), **changes)
    with pytest.raises(ValueError, match=f"convert: .*{said}"):
        convert(tmp_path / "a.gguf", folder)


@pytest.mark.real
def test_the_real_models_weights_are_the_pinned_ones():
    from residual_stream import catalogue

    weights = load_file(catalogue.smollm2_folder() / "model.safetensors")
    # found equal, bit for bit, to what transformers 5.24's own GGUF reader makes of the file
    assert tensors_sha256(weights) == catalogue.SMOLLM2_TENSORS
    assert sum(tensor.numel() for tensor in weights.values()) == 134_515_008


@pytest.mark.real
def test_the_real_models_matrices_have_sixteen_levels_to_a_block():
    from residual_stream import catalogue

    weights = load_file(catalogue.smollm2_folder() / "model.safetensors")
    for part in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj"):
        blocks = weights[f"model.layers.17.{part}.weight"][:8].reshape(-1, 32)
        assert max(len(block.unique()) for block in blocks) <= 16


@pytest.mark.real
def test_the_real_model_knows_a_capital(smollm2):
    # a wrong row order of queries or keys leaves no sense in what it says
    with torch.no_grad():
        logits = smollm2(smollm2.to_tokens("The capital of France is"))
    assert smollm2.tokenizer.decode(logits[0, -1].argmax()) == " Paris"


@pytest.mark.real
def test_the_real_configuration_is_the_published_one():
    from residual_stream import catalogue

    config = json.loads((catalogue.smollm2_folder() / "config.json").read_text())
    shape = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    assert [config[key] for key in shape] == [576, 1536, 30, 9]
    assert config["rope_parameters"]["rope_theta"] == 100_000
    assert config["rms_norm_eps"] == 1e-5
