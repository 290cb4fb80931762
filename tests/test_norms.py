"""Lengths and angles of updates against streams whose numbers are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import residual_stream as rs
from residual_stream.architectures import POST_LN, TOKENS, random_model
from residual_stream.blocks import Stack, StackConfig
from residual_stream.norms import _norms_of


@pytest.fixture(scope="module")
def stream(bench):
    return rs.record(bench, rs.texts.batch(bench, length=24))


@pytest.mark.parametrize("unit", ["layer", "sublayer"])
def test_the_lengths_are_those_of_the_accumulated_stream(stream, unit):
    norms = rs.stream_norms(stream, unit=unit)
    depths = stream.accumulated()[1:].double()  # from the whole embedding on
    expected = depths[:: 2 if unit == "layer" else 1].norm(dim=-1)
    torch.testing.assert_close(norms.lengths, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(norms.before, expected[:-1], rtol=1e-6, atol=1e-6)


def test_a_layer_is_the_sum_of_its_writes(stream):
    norms = rs.stream_norms(stream)
    both = stream.write("2_attn_out") + stream.write("2_mlp_out")
    torch.testing.assert_close(norms.size[2], both.double().norm(dim=-1), rtol=1e-6, atol=1e-6)
    assert norms.labels == [f"layer {i}" for i in range(4)]
    assert norms.kinds == ["layer"] * 4


def test_the_angle_is_between_the_write_and_what_it_finds(stream):
    norms = rs.stream_norms(stream, unit="sublayer")
    found, write = stream.after("1_attn_out").double(), stream.write("1_mlp_out").double()
    at = norms.labels.index("1_mlp_out")
    torch.testing.assert_close(
        norms.cosine[at], (found * write).sum(-1) / found.norm(dim=-1) / write.norm(dim=-1)
    )
    torch.testing.assert_close(norms.ratio[at], write.norm(dim=-1) / found.norm(dim=-1))


def test_orthogonal_updates_add_their_squares():
    model = Stack(StackConfig(variant="ReZero", n_layers=3, d_model=16, d_vocab=5, n_heads=None))
    stream = rs.record(model, [1, 2])
    writes = torch.zeros_like(stream.writes)
    for index in range(4):
        writes[index, ..., index] = index + 1.0
    norms = _norms_of(writes, stream, "layer")
    assert norms.lengths[-1].flatten().tolist() == pytest.approx([30**0.5] * 2)
    torch.testing.assert_close(norms.lengths.square(), norms.sum_of_squares)
    assert not norms.cosine.any()


def test_position_0_is_kept_apart(stream):
    norms = rs.stream_norms(stream)
    assert norms.first.size.shape == (4, 8, 1)
    assert norms.later.size.shape == (4, 8, 23)
    torch.testing.assert_close(norms.first.size, norms.size[..., :1])
    frame = norms.to_frame()
    assert frame["size at 0"][3] == pytest.approx(float(norms.size[3, :, 0].median()))
    assert frame["size"][3] == pytest.approx(float(norms.size[3, :, 1:].median()))


def test_a_class_of_positions_that_was_not_recorded_is_refused(bench):
    norms = rs.stream_norms(rs.record(bench, "In the beginning", positions=[2, 3]))
    with pytest.raises(ValueError, match="none of the 2 recorded positions"):
        _ = norms.first
    assert "size at 0" not in norms.to_frame()


def test_updates_of_one_kind_are_picked(stream):
    norms = rs.stream_norms(stream, unit="sublayer")
    assert norms.of_kind("attn").labels == [f"{i}_attn_out" for i in range(4)]
    torch.testing.assert_close(norms.of_kind("mlp").size, norms.size[1::2])
    with pytest.raises(ValueError, match="no update of kind 'head'"):
        norms.of_kind("head")


def test_an_unknown_unit_and_an_open_ledger_are_refused(stream):
    with pytest.raises((ValueError, TypeError)):
        rs.stream_norms(stream, unit="head")
    lost = stream.writes.clone()
    lost[4] = 0
    with pytest.raises(rs.LedgerError):
        rs.stream_norms(replace(stream, writes=lost))


def rewritten(stream, writes):
    """The stream with other writes and the top that they add up to."""
    changed = replace(stream, writes=writes)
    return replace(changed, top=changed.final.clone())


def test_the_common_share_is_1_for_a_constant_and_chance_for_noise(stream):
    generator = torch.Generator().manual_seed(0)
    writes = torch.randn(stream.writes.shape, generator=generator)
    writes[3] = writes[3, 0, 0]
    share = rs.common_share(rewritten(stream, writes))
    n_tokens = 8 * 23
    assert float(share[3]) == pytest.approx(1.0)
    assert float(share[4]) == pytest.approx(1 / n_tokens, rel=0.3)


def test_the_common_share_leaves_position_0_out_unless_asked(stream):
    writes = torch.zeros_like(stream.writes)
    writes[:, :, 0] = 1.0
    alone = rewritten(stream, writes)
    assert rs.common_share(alone).isnan().all()
    assert rs.common_share(alone, first=True).tolist() == pytest.approx([1 / 24] * 10)


def test_norms_say_in_one_line_and_in_a_table_what_they_are(stream):
    norms = rs.stream_norms(stream)
    assert repr(norms).startswith("StreamNorms(4 updates × 192 places; median length")
    table = norms._repr_markdown_().splitlines()
    assert len(table) == 2 + 4
    assert "ratio at 0" in table[0]


@pytest.mark.parametrize("name", POST_LN)
def test_a_post_ln_write_joins_what_came_out_of_the_norms_below_it(name):
    stream = rs.record(random_model(name), TOKENS)
    norms = rs.stream_norms(stream, unit="sublayer")
    first = stream.layers.index(0)
    for at, index in enumerate(range(first, len(stream.labels))):
        found, write = stream.after(index - 1).double(), stream.writes[index].double()
        torch.testing.assert_close(norms.before[at], found.norm(dim=-1), rtol=1e-5, atol=1e-5)
        cosine = torch.cosine_similarity(found, write, dim=-1)
        torch.testing.assert_close(norms.cosine[at], cosine, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        norms.lengths[-1], stream.top.double().norm(dim=-1), rtol=1e-5, atol=1e-5
    )
    with pytest.raises(ValueError, match="passes through norms between its updates"):
        _ = norms.later.sum_of_squares
    with pytest.raises(ValueError, match=r"block 0 .*norm between its writes.*unit='sublayer'"):
        rs.stream_norms(stream)
