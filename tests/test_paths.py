"""An attention-only model is the sum of its paths, each of them known by hand."""

from __future__ import annotations

import pytest
import torch

import residual_stream as rs
from handmade import random_model
from residual_stream.paths import expand_paths
from residual_stream.precision import Float64Throughout

TEXT = "In the beginning God created the heaven and the earth."


@pytest.fixture(scope="module")
def expansion():
    return expand_paths(rs.load("induction"), TEXT)


def test_the_paths_of_the_attention_only_model_add_up(expansion):
    assert len(expansion.paths) == len(set(expansion.paths)) == 25
    assert expansion.error < 1e-5
    assert expansion.lengths.bincount().tolist() == [1, 8, 16]


def test_they_add_up_to_rounding_in_float64():
    with Float64Throughout():
        assert expand_paths(rs.load("induction", dtype=torch.float64), TEXT).error < 1e-12


def test_a_lost_path_is_noticed(expansion):
    rest = expansion.terms[torch.arange(25) != 3].sum(0) + expansion.biases - expansion.top
    assert float((rest.norm(dim=-1) / expansion.top.norm(dim=-1)).max()) > 1e-3


def test_the_direct_path_is_the_embedding_itself(expansion):
    stream = rs.record(rs.load("induction"), TEXT)
    assert torch.equal(expansion.terms[0], stream.after("pos_embed"))
    assert expansion.labels[0] == "direct"


def test_paths_of_one_head_and_more_add_up_to_the_heads_own_writes(expansion):
    model = rs.load("induction")
    stream = rs.record(model, TEXT)
    first = [i for i, path in enumerate(expansion.paths) if path and path[-1][0] == 0]
    gap = expansion.terms[first].sum(0) - stream.write("0_attn_out")
    # All that is missing is the layer's constant, the same at every position.
    assert torch.allclose(gap, gap[:, :1].expand_as(gap), atol=1e-5)


def test_shares_add_up_to_the_logit(expansion):
    model = rs.load("induction")
    stream = rs.record(model, TEXT)
    split = rs.logit_attribution(stream, stream.tokens, position=None)
    shares = expansion.logits(stream.tokens).sum(0)
    readout = expansion.readout
    direction = readout.direction(stream.tokens) / readout.sigma(expansion.top)[..., None]
    constant = (expansion.biases.double() * direction).sum(-1).float()
    parts = torch.tensor([layer >= -1 and kind != "bias" for layer, kind in
                          zip(split.layers, split.kinds, strict=True)])  # fmt: skip
    assert torch.allclose(shares + constant, split.values[parts].sum(0), atol=1e-3)


def test_the_frame_and_the_line_say_what_it_is(expansion):
    frame = expansion.to_frame(torch.zeros_like(rs.record(rs.load("induction"), TEXT).tokens))
    assert list(frame.columns) == ["path", "length", "logits", "size"] and len(frame) == 25
    assert repr(expansion).startswith("PathExpansion(25 paths of up to 2 heads, ")


def test_a_model_with_mlps_is_refused():
    with pytest.raises(ValueError, match="block 0 writes '0_mlp_out'; only attention-only models"):
        expand_paths(random_model("gpt2"), torch.tensor([[1, 2, 3]]))
