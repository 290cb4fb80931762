"""The untrained model has the trained one's form and none of its weights."""

from __future__ import annotations

import pytest
import torch

import residual_stream as rs
from handmade import random_model
from residual_stream import architectures


def test_it_has_the_same_shapes_and_other_weights():
    model = random_model("llama")
    fresh = rs.untrained(model)
    for (name, old), (_, new) in zip(
        model.original_model.named_parameters(),
        fresh.original_model.named_parameters(),
        strict=True,
    ):
        assert old.shape == new.shape
        assert name.endswith("norm.weight") or not torch.equal(old, new)
    std = fresh.original_model.config.initializer_range
    assert float(fresh.blocks[0].mlp.W_out.detach().std()) == pytest.approx(std, rel=0.2)
    assert bool((fresh.ln_final.weight == 1).all()) and not fresh.original_model.training


def test_a_seed_is_a_model_and_leaves_the_readers_generator_alone():
    model = random_model("llama")
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, again, other = (rs.untrained(model, seed=s).W_E for s in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_it_keeps_dtype_and_tokenizer():
    model = rs.load("bench", dtype=torch.float64)
    fresh = rs.untrained(model)
    assert fresh.W_E.dtype == torch.float64 and fresh.tokenizer is model.tokenizer
    assert len(rs.texts.batch(fresh)) == 8


def test_a_model_without_a_configuration_is_refused():
    with pytest.raises(ValueError, match="checkpoint 0 is its start"):
        rs.untrained(rs.load("induction"))


def test_a_model_without_a_causal_head_starts_as_its_own_class():
    model = architectures.random_model("bert")
    fresh = rs.untrained(model)
    assert type(fresh.original_model) is type(model.original_model)
    assert rs.record(fresh, architectures.TOKENS).audit().ok
