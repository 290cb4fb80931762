"""The logit lens through TransformerLens, against the readout's own formula."""

from __future__ import annotations

import pytest
import torch

from handmade import random_model
from residual_stream import architectures
from residual_stream.lens import lens_by_depth
from residual_stream.readout import read_readout
from residual_stream.stream import record

TOKENS = torch.tensor([[1, 5, 9, 2, 4], [7, 7, 3, 11, 0]])


def test_the_lens_is_the_readout_of_the_stream_at_each_depth():
    model = random_model("gpt2")
    stream, readout = record(model, TOKENS), read_readout(model)
    lens = lens_by_depth(model, TOKENS, chunk=2)
    own = model(TOKENS).log_softmax(-1)
    for depth, label in enumerate(["pos_embed", "0_mlp_out", "1_mlp_out"]):
        logp = readout.logits(stream.after(label)).log_softmax(-1)
        kl = (own.exp() * (own - logp)).sum(-1)
        assert torch.allclose(lens.kl[depth], kl, atol=1e-5)
        assert torch.equal(lens.top_ids[depth], logp.argmax(-1))


def test_at_the_top_the_lens_is_the_model():
    lens = lens_by_depth(random_model("llama"), TOKENS)
    assert bool(lens.agrees[-1].all()) and float(lens.kl[-1].abs().max()) < 1e-6
    assert float(lens.kl[0].mean()) > 0.01


def test_the_lens_of_a_sum_is_not_the_sum_of_lenses():
    """A6: the divisor at each depth is its own, so lens differences are not shares."""
    model = random_model("llama")
    stream, readout = record(model, TOKENS), read_readout(model)
    top = readout.sigma(stream.top)
    part = readout.sigma(stream.after("0_mlp_out"))
    assert float(((top - part).abs() / top).min()) > 1e-3


def test_the_size_of_the_chunk_changes_nothing():
    model = random_model("llama")
    a, b = (lens_by_depth(model, TOKENS, chunk=chunk) for chunk in (1, 64))
    assert torch.allclose(a.kl, b.kl, atol=1e-6) and torch.equal(a.top_ids, b.top_ids)


def test_the_frame_has_one_row_per_depth():
    frame = lens_by_depth(random_model("llama"), TOKENS).to_frame()
    assert frame["depth"].tolist() == ["0_pre", "1_pre", "final_post"]
    assert frame["agreement"].iloc[-1] == 1.0


def test_the_uniform_readers_cost_is_the_vocabularys_entropy_less_the_models():
    model = random_model("llama")
    logp = model(TOKENS).log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    lens = lens_by_depth(model, TOKENS)
    assert torch.allclose(lens.uniform_kl, torch.tensor(23.0).log() - entropy, atol=1e-5)


def test_chosen_positions_are_the_same_places_of_all():
    model = random_model("llama")
    some, every = lens_by_depth(model, TOKENS, positions=slice(1, 4)), lens_by_depth(model, TOKENS)
    assert torch.allclose(some.kl, every.kl[:, :, 1:4], atol=1e-5)
    assert torch.equal(some.top_ids, every.top_ids[:, :, 1:4])


def test_a_post_ln_model_has_no_lens():
    with pytest.raises(ValueError, match="lens_by_depth: Block is post-LN"):
        lens_by_depth(architectures.random_model("gpt1"), architectures.TOKENS)
