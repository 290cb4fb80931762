"""The final norm and unembedding as explicit numbers, against the models' own modules."""

from __future__ import annotations

import pytest
import torch

from handmade import random_model
from residual_stream import architectures
from residual_stream.readout import ReadoutError, own_logits, read_readout
from residual_stream.rerun import run_to_top
from residual_stream.stream import record

TOKENS = torch.tensor([[1, 5, 9, 2], [7, 7, 3, 11]])


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "gemma2", "cohere"])
def test_the_formula_gives_the_models_own_logits_before_the_cap(name):
    model = random_model(name)
    readout = read_readout(model)
    top = run_to_top(model, TOKENS)
    logits = readout.logits(top)
    assert torch.allclose(logits, own_logits(model, readout, top), atol=1e-5)
    if readout.soft_cap:
        logits = readout.soft_cap * torch.tanh(logits / readout.soft_cap)
    assert torch.allclose(logits, model(TOKENS), atol=1e-5)


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_the_formula_reads_a_stream_that_is_finer_than_the_weights(name):
    model = architectures.random_model(name, dtype=torch.bfloat16)
    top = record(model, TOKENS).top
    logits = read_readout(model).logits(top)
    assert top.dtype == torch.float32
    own = own_logits(model, read_readout(model), top)
    assert logits.dtype == own.dtype and torch.allclose(logits, own, atol=0.1)


def test_each_architectures_peculiarity_is_read():
    assert read_readout(random_model("gpt2")).centred
    assert not read_readout(random_model("llama")).centred
    assert read_readout(random_model("gemma2")).soft_cap == 30.0
    assert read_readout(random_model("cohere")).multiplier == 0.25
    assert read_readout(random_model("llama")).b_U is None
    assert read_readout(architectures.random_model("granite")).multiplier == 1 / 8


def test_gemmas_gain_has_its_offset():
    model = random_model("gemma2")
    weight = model.ln_final.original_component.weight
    assert torch.equal(read_readout(model).gain, 1 + weight)


def test_direction_and_constants_together_are_the_logit():
    model = random_model("gpt2", dtype=torch.float64)
    readout, top = read_readout(model), run_to_top(model, TOKENS)[:, -1]
    ids = torch.tensor([4, 8])
    logits = model(TOKENS)[:, -1]
    for center in (True, False):
        linear = (readout.direction(ids, center=center) * top).sum(-1) / readout.sigma(top)
        got = linear + sum(readout.constants(ids, center=center).values())
        want = logits[[0, 1], ids] - (logits.mean(-1) if center else 0.0)
        assert torch.allclose(got, want, atol=1e-10)


def test_the_mean_column_is_the_float64_mean():
    readout = read_readout(random_model("llama"))
    assert torch.allclose(readout.mean_column(), readout.W_U.double().mean(1), atol=1e-8)


def test_a_transform_after_the_unembedding_is_refused_and_not_left_out():
    model = random_model("llama")
    scaled = model.unembed.register_forward_hook(lambda module, args, out: 3 * out)
    with pytest.raises(ReadoutError, match=r"LlamaForCausalLM does not read its stream out as"):
        read_readout(model)
    scaled.remove()
    assert read_readout(model).multiplier == 1.0


def test_a_model_without_final_norm_is_refused():
    model = random_model("llama")
    del model.ln_final
    with pytest.raises(ReadoutError, match=r"LlamaForCausalLM does not read its stream out"):
        read_readout(model)


def test_a_readout_is_read_again_when_a_weight_has_changed():
    model = random_model("gemma2")
    first = read_readout(model)
    mean = first.mean_column().clone()
    assert read_readout(model) is first
    for weight in (
        model.unembed.original_component.weight,
        model.ln_final.original_component.weight,
    ):
        with torch.no_grad():
            weight.mul_(2.0)
        again = read_readout(model)
        assert again is not first and read_readout(model) is again
    assert torch.allclose(again.mean_column(), 2 * mean)
    assert torch.equal(again.gain, 1 + model.ln_final.original_component.weight)
    with torch.inference_mode():
        model = random_model("llama")
        assert read_readout(model) is not read_readout(model)
