"""Rotating the stream of a whole model: same logits, ordinary coordinates, clear refusals."""

import pytest
import torch
import transformers

import residual_stream as rs
from handmade import bridge, random_model
from residual_stream.coordinates import kurtosis
from residual_stream.rotation import RotationError, random_rotation, rotate_model

TOKENS = torch.tensor([[1, 5, 9, 2, 4, 4], [7, 7, 3, 11, 0, 22]])


@pytest.mark.parametrize("keep_mean", [False, True])
def test_a_rotation_keeps_lengths_orientation_and_if_asked_the_mean(keep_mean):
    turn = random_rotation(7, seed=3, keep_mean=keep_mean)
    assert torch.allclose(turn @ turn.T, torch.eye(7).double(), atol=1e-12)
    assert float(torch.linalg.det(turn)) == pytest.approx(1)
    assert torch.allclose(turn.sum(1), torch.ones(7).double()) == keep_mean
    assert not torch.allclose(turn, random_rotation(7, seed=4, keep_mean=keep_mean))


def test_rotations_are_uniform():
    entries = torch.stack([random_rotation(5, seed=s) for s in range(400)])
    assert float(entries.mean(0).abs().max()) < 0.1
    assert float((entries.square().mean(0) - 1 / 5).abs().max()) < 0.06


@pytest.mark.parametrize("name", ["llama", "gpt2", "neox"])
def test_a_rotated_model_gives_the_same_logits(name):
    model = random_model(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    turned = rotate_model(model, seed=1)
    found = turned.agreement(TOKENS)
    assert found.largest_difference < 1e-4 * max(1, found.largest_logit)
    assert found.same_top1 == found.positions == TOKENS.numel()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_in_float64_the_symmetry_is_exact_to_its_rounding():
    model = random_model("gpt2", dtype=torch.float64)  # Llama's norms stay in float32
    assert rotate_model(model).agreement(TOKENS).largest_difference < 1e-10


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_stream_of_the_copy_is_the_turned_stream(name):
    model = random_model(name, dtype=torch.float64)
    turned = rotate_model(model)
    original, copy = rs.record(model, TOKENS), rs.record(turned.model, TOKENS)
    assert torch.allclose(turned.turn(original.final), copy.final, rtol=1e-5, atol=1e-4)
    assert float((original.final - copy.final).abs().max()) > 0.1
    assert copy.audit().ok


def test_a_tied_table_is_untied_and_the_gains_are_gone():
    config = transformers.LlamaConfig(
        vocab_size=23, hidden_size=16, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=24, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = bridge(transformers.LlamaForCausalLM(config))
    with torch.no_grad():
        model.ln_final.weight.mul_(torch.linspace(0.5, 2, 16))
    turned = rotate_model(model)
    assert turned.agreement(TOKENS).largest_difference < 1e-5
    assert turned.model.embed.weight.data_ptr() != turned.model.unembed.weight.data_ptr()
    assert not turned.model.original_model.config.tie_word_embeddings
    assert bool((turned.model.ln_final.weight == 1).all())


def test_skipping_a_gain_would_be_noticed(monkeypatch):
    from residual_stream import rotation

    monkeypatch.setattr(rotation, "_clear", lambda norm: None)
    with pytest.raises(RotationError, match="is off by"):
        rotate_model(random_model("llama"))


def test_skipping_a_writer_would_be_noticed(monkeypatch):
    from residual_stream import rotation

    monkeypatch.setattr(rotation, "_turn_writer", lambda writer, turn: None)
    with pytest.raises(RotationError, match="is off by"):
        rotate_model(random_model("llama"))


def test_post_norms_are_refused_by_name():
    with pytest.raises(RotationError, match="ln1_post"):
        rotate_model(random_model("gemma2"))


def test_experts_are_refused_by_name():
    config = transformers.MixtralConfig(
        vocab_size=23, hidden_size=16, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=24, num_local_experts=2,
    )  # fmt: skip
    with pytest.raises(RotationError, match=r"block 0 of Mixtral.*mlp"):
        rotate_model(bridge(transformers.MixtralForCausalLM(config)))


def test_half_precision_is_refused():
    with pytest.raises(RotationError, match="float32"):
        rotate_model(random_model("llama", dtype=torch.bfloat16))


def test_matrices_that_are_no_rotation_are_refused():
    with pytest.raises(ValueError, match="orthogonal"):
        rotate_model(random_model("llama"), matrix=2 * torch.eye(16))
    with pytest.raises(ValueError, match="keep_mean"):
        rotate_model(random_model("gpt2"), matrix=random_rotation(16))
    with pytest.raises(ValueError, match="nothing to turn"):
        random_rotation(1)


@pytest.mark.real
@pytest.mark.slow
def test_the_real_model_is_the_same_in_a_random_basis_and_its_coordinates_look_gaussian(smollm2):
    tokens = rs.texts.batch(smollm2, length=32)[:4]
    turned = rotate_model(smollm2)
    found = turned.agreement(tokens)
    assert found.largest_difference < 1e-2 and found.same_top1 == found.positions
    for model, low, high in ((smollm2, 20, 600), (turned.model, 2.4, 3.8)):
        stream = rs.record(model, tokens)
        medians = [float(kurtosis(stream.after(k)[:, 1:]).median()) for k in (10, 30, 60)]
        assert all(low < value < high for value in medians), medians
