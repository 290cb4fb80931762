"""The shared divisor: exact on random and real norms, for RMSNorm and LayerNorm."""

import pytest
import torch
import transformers

import residual_stream as rs
from handmade import bridge, random_model
from residual_stream.divisor import (
    NormError,
    divisor_effect,
    orthogonal_write,
    read_norm,
    shared_factor,
)

SIZES = [0.0, 0.1, 1.0, 10.0]


def stream(dtype=torch.float64):
    return 3 * torch.randn(7, 16, generator=torch.Generator().manual_seed(0), dtype=dtype) + 1


@pytest.mark.parametrize("name", ["llama", "gpt2", "neox", "cohere"])
def test_the_formula_is_the_norm(name):
    module = random_model(name).blocks[0].ln1
    x = stream(torch.float32)
    assert torch.allclose(read_norm(module).formula(x).float(), module(x), atol=1e-5)


def test_gemmas_offset_is_in_the_gain():
    module = random_model("gemma2").ln_final
    assert torch.equal(read_norm(module).gain, 1 + module.weight)


@pytest.mark.parametrize("relative", SIZES)
def test_the_law_is_exact_for_a_layer_norm_with_gain_and_bias(relative):
    block = random_model("gpt2", dtype=torch.float64).blocks[1]
    effect = divisor_effect(block.ln1, block.attn.W_Q[0], stream(), relative=relative)
    assert effect.predicted == (1 + relative**2) ** -0.5
    assert effect.error < 1e-10
    assert torch.allclose(effect.measured, torch.tensor(effect.predicted).double(), atol=1e-10)


@pytest.mark.parametrize("relative", SIZES)
def test_the_law_is_exact_to_float32_rounding_for_an_rms_norm(relative):
    block = random_model("llama").blocks[1]  # this norm always computes in float32
    effect = divisor_effect(block.ln1, block.attn.W_Q[0], stream(torch.float32), relative=relative)
    assert effect.error < 1e-5


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_write_is_orthogonal_to_reader_and_stream(name):
    block = random_model(name).blocks[0]
    norm, reader, x = read_norm(block.ln1), block.attn.W_Q[0].detach().double(), stream()
    write = orthogonal_write(block.ln1, reader, x, relative=0.5)
    assert float((write @ norm.seen_by(reader)).abs().max()) < 1e-10
    assert float((norm.center(write) * norm.center(x)).sum(-1).abs().max()) < 1e-9
    if norm.centred:
        assert float(write.sum(-1).abs().max()) < 1e-10


def test_a_large_epsilon_is_part_of_the_law():
    config = transformers.LlamaConfig(
        vocab_size=23, hidden_size=16, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=24, rms_norm_eps=5.0,
    )  # fmt: skip
    block = bridge(transformers.LlamaForCausalLM(config)).blocks[0]
    effect = divisor_effect(block.ln1, block.attn.W_Q[0], stream(torch.float32), relative=2.0)
    assert effect.error < 1e-5


def test_a_write_along_the_mean_is_invisible_to_a_layer_norm_and_not_to_an_rms_norm():
    x, mean = stream(torch.float32), torch.ones(7, 16)
    layer, rms = random_model("gpt2").blocks[0].ln1, random_model("llama").blocks[0].ln1
    assert torch.allclose(shared_factor(layer, x, 9 * mean), torch.ones(7).double(), atol=1e-6)
    assert torch.allclose(layer(x + 9 * mean), layer(x), atol=1e-4)
    assert float((shared_factor(rms, x, 9 * mean) - 1).abs().min()) > 0.1


def test_a_write_against_the_stream_amplifies_every_reading():
    x = stream()
    norm = random_model("llama").blocks[0].ln1
    assert float(shared_factor(norm, x, -0.5 * x).min()) == pytest.approx(2, rel=1e-4)


def test_a_reader_of_everything_and_a_negative_size_are_refused():
    block = random_model("llama").blocks[0]
    with pytest.raises(ValueError, match="16 of 16"):
        divisor_effect(block.ln1, torch.eye(16), stream(torch.float32), relative=1.0)
    with pytest.raises(ValueError, match="0 or more"):
        divisor_effect(block.ln1, block.attn.W_Q[0], stream(torch.float32), relative=-1.0)


def test_a_norm_of_another_kind_is_refused(monkeypatch):
    module = random_model("llama").blocks[0].ln1
    monkeypatch.setattr(type(module.original_component), "forward", lambda self, x: x)
    with pytest.raises(NormError, match="LlamaRMSNorm"):
        read_norm(module)


@pytest.mark.real
def test_the_law_holds_on_the_real_models_own_norm_and_stream(smollm2):
    recorded = rs.record(smollm2, "The quick brown fox jumps over the lazy dog")
    for layer in (3, 15, 27):
        block = smollm2.blocks[layer]
        x = recorded.after(f"{layer - 1}_mlp_out")[0, 1:]
        for relative in (0.1, 1.0, 3.0):
            effect = divisor_effect(block.ln1, block.attn.W_Q[0], x, relative=relative)
            assert effect.error < 1e-5
            assert float((effect.measured - effect.predicted).abs().max()) < 1e-5
