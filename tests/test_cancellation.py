"""Cancellations: found where planted, and the share of every write that takes something back."""

from dataclasses import replace

import pytest
import torch

import residual_stream as rs
from handmade import random_model
from residual_stream import architectures
from residual_stream.cancellation import cancellations, cancelled_share

TOKENS = torch.tensor([[1, 5, 9, 2, 4, 4], [7, 7, 3, 11, 0, 22]])


@pytest.fixture
def stream():
    return rs.record(random_model("llama"), TOKENS)


def rewritten(stream, writes):
    """The stream with other writes and the top that they add up to."""
    changed = replace(stream, writes=writes)
    return replace(changed, top=changed.final.clone())


def planted(stream):
    writes = stream.writes.clone()
    writes[0, 1, 3, 11] = 500.0
    writes[1:3, 1, 3, 11] = 0.0
    writes[3, 1, 3, 11] = -510.0
    return rewritten(stream, writes)


def test_a_planted_cancellation_is_found_first_by_coordinate(stream):
    best = cancellations(planted(stream))[0]
    assert (best.label, best.batch, best.position, best.coordinate) == ("1_attn_out", 1, 3, 11)
    assert (best.before, best.write) == (500.0, -510.0)
    assert best.after == pytest.approx(-10) and best.cancelled == 500
    assert best.token == "11"  # the model has no tokenizer


def test_a_planted_cancellation_is_found_along_the_write_itself(stream):
    best = cancellations(planted(stream), by="direction")[0]
    assert (best.label, best.position, best.coordinate) == ("1_attn_out", 3, None)
    assert best.before < -490 < 0 < best.write
    assert best.after == pytest.approx(best.before + best.write, abs=1e-3)


def test_position_zero_is_left_out_unless_asked_for(stream):
    writes = stream.writes.clone()
    writes[0, 0, 0, 5], writes[2, 0, 0, 5] = 900.0, -900.0
    loud = rewritten(stream, writes)
    assert all(one.position > 0 for one in cancellations(loud).found)
    assert cancellations(loud, skip_first=False)[0].position == 0


def test_cancellations_come_in_order_and_without_repeats(stream):
    found = cancellations(stream, top=30).found
    sizes = [one.cancelled for one in found]
    assert sizes == sorted(sizes, reverse=True)
    assert len({(one.label, one.coordinate) for one in found}) == len(found)
    assert all(one.before * one.write < 0 for one in found)


def test_repeats_are_kept_when_asked_for_and_are_the_exhaustive_list(stream):
    found = cancellations(stream, top=5, repeats=True).found
    sizes, before = [], torch.zeros_like(stream.writes[0])
    for write in stream.writes:
        taken = torch.minimum(before.abs(), write.abs()) * (before * write < 0)
        sizes.append(taken[:, 1:].flatten())
        before = before + write
    expected = torch.cat(sizes).topk(5).values
    assert torch.allclose(torch.tensor([one.cancelled for one in found]), expected)


def test_a_table_has_a_row_for_each(stream):
    found = cancellations(stream, top=4)
    assert len(found._repr_markdown_().splitlines()) == 6
    assert len(found.to_frame()) == 4


def test_a_write_that_only_removes_has_share_one_and_one_that_only_adds_zero(stream):
    writes = torch.zeros_like(stream.writes)
    writes[0] = torch.randn(writes[0].shape, generator=torch.Generator().manual_seed(0))
    writes[1], writes[2] = writes[0], -writes[0]
    shares = cancelled_share(rewritten(stream, writes[:3]))
    assert torch.allclose(shares.share, torch.tensor([0.0, 0.0, 1.0]))
    assert torch.allclose(shares.chance, torch.tensor([0.0, 0.5, 0.5]))


def test_another_ranking_is_refused(stream):
    with pytest.raises(Exception, match=r"direction|Literal"):
        cancellations(stream, by="layer")


@pytest.mark.parametrize("name", architectures.POST_LN)
def test_in_a_post_ln_model_a_write_takes_back_what_the_norms_left(name):
    stream = rs.record(architectures.random_model(name), architectures.TOKENS)
    for best in cancellations(stream, top=5):
        index = stream.index(best.label)
        held = stream.after(index - 1)[best.batch, best.position, best.coordinate]
        assert best.before == pytest.approx(float(held), abs=1e-5)
    before = stream.after(len(stream.labels) - 2)[:, 1:]
    write = stream.writes[-1][:, 1:]
    back = torch.minimum(before.abs(), write.abs()) * (before * write < 0)
    share = cancelled_share(stream).share
    assert float(share[-1]) == pytest.approx(float(back.sum() / write.abs().sum()), rel=1e-5)
