"""What rounding loses, against numbers that can be counted by hand."""

from __future__ import annotations

import pytest
import torch

import residual_stream as rs
from residual_stream.rounding import rounding_by_depth, rounding_loss


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 8), (torch.float16, 11)])
def test_an_update_below_half_a_step_is_lost_and_a_whole_step_arrives(dtype, bits):
    x, step = torch.ones(1, 4), 2.0 ** (1 - bits)
    lost = [float(rounding_loss(x, r * step * x, dtype=dtype)) for r in (0.25, 0.5, 1.0, 1.5, 8.0)]
    assert lost == pytest.approx([1.0, 1.0, 0.0, 1 / 3, 0.0])


def test_the_loss_does_not_depend_on_the_scale():
    x, update = torch.randn(2, 10, 32, generator=torch.Generator().manual_seed(0))
    one = rounding_loss(x, update / 64, dtype=torch.bfloat16)
    other = rounding_loss(1024 * x, 16 * update, dtype=torch.bfloat16)
    assert torch.equal(one, other)
    assert 0 < float(one.max()) < 1


def test_what_leaves_the_range_or_is_no_update_has_no_loss():
    x = torch.full((2, 3), 60000.0)
    update = torch.stack([x[0], torch.zeros(3)])
    assert rounding_loss(x, update, dtype=torch.float16).isnan().all()


def test_every_write_is_added_to_what_the_model_held(bench):
    stream = rs.record(bench, "In the beginning")
    lost = rounding_by_depth(stream, dtype=torch.bfloat16)
    assert lost.shape == (8, *stream.writes.shape[1:3])
    found, write = stream.after("2_attn_out"), stream.write("2_mlp_out")
    expected = rounding_loss(found, write, dtype=torch.bfloat16)
    assert torch.equal(lost[5], expected)


def test_a_stream_that_is_coarse_already_is_refused(bench):
    stream = rs.record(rs.load("bench", dtype=torch.bfloat16, device="cpu"), "In the beginning")
    with pytest.raises(ValueError, match="no finer than"):
        rounding_by_depth(stream, dtype=torch.bfloat16)
