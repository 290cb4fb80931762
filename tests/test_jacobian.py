"""The Jacobian of a block is the identity plus the branch's, and is exact."""

from __future__ import annotations

import pytest
import torch

from handmade import random_model
from residual_stream import architectures
from residual_stream.jacobian import BlockJacobian, block_jacobian
from residual_stream.precision import Float64Throughout
from residual_stream.rerun import run_blocks
from residual_stream.stream import record

TOKENS = torch.tensor([[1, 5, 9, 2, 4]])


def entering(model, layer):
    stream = record(model, TOKENS)
    before = sum(write.layer < layer for write in stream.wiring.writes)
    return stream.after(before - 1)[0]


@pytest.mark.parametrize("position", [0, 2, -1])
@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "gemma2"])
def test_the_jacobian_is_the_slope_of_the_block(name, position):
    model = random_model(name, dtype=torch.float64)
    x = entering(model, 1)
    with Float64Throughout():
        got = block_jacobian(model, x, 1, position=position)
        step = 1e-6
        for coordinate in (0, 7):
            nudge = torch.zeros_like(x)
            nudge[position, coordinate] = step
            with torch.no_grad():
                up = run_blocks(model, (x + nudge)[None], 1, 2)[0, position]
                down = run_blocks(model, (x - nudge)[None], 1, 2)[0, position]
            slope = (up - down) / (2 * step)
            assert torch.allclose(got.matrix[:, coordinate], slope, atol=1e-6)


def test_a_block_that_writes_nothing_is_the_identity():
    model = random_model("llama")
    with torch.no_grad():
        model.original_model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.original_model.model.layers[0].mlp.down_proj.weight.zero_()
    got = block_jacobian(model, entering(model, 0), 0)
    assert torch.equal(got.matrix, torch.eye(16))
    assert got.alignment == pytest.approx(1.0) and got.branch_size == 0.0
    assert torch.allclose(got.singular_values, torch.ones(16))


def test_the_branch_shrinks_as_the_stream_grows():
    model = random_model("llama")
    with torch.no_grad():  # attention alone: the MLP would read another mixture of x and its write
        model.original_model.model.layers[1].mlp.down_proj.weight.zero_()
    x = entering(model, 1)
    small = block_jacobian(model, x, 1).branch_size
    large = block_jacobian(model, 1000 * x, 1).branch_size
    assert large == pytest.approx(small / 1000, rel=0.01)


def test_the_alignment_of_an_unrelated_branch_is_known():
    torch.manual_seed(0)
    matrix = torch.eye(400) + torch.randn(400, 400) / 20  # a branch of size 1
    got = BlockJacobian(0, 0, matrix)
    assert got.branch_size == pytest.approx(1.0, abs=0.02)
    assert got.alignment == pytest.approx(2**-0.5, abs=0.02)
    assert repr(got).startswith("BlockJacobian(block 0 at position 0: cosine with the identity 0.7")


def test_wrong_questions_are_refused():
    model = random_model("gpt2")
    x = entering(model, 0)
    with pytest.raises(IndexError, match="block_jacobian: position 5 is outside the text"):
        block_jacobian(model, x, 0, position=5)
    with pytest.raises(ValueError, match="block 2 does not exist; the model has 2"):
        block_jacobian(model, x, 2)


@pytest.mark.parametrize("shape", [(1, 5, 16), (5, 3), (0, 16), (49, 16)])
def test_a_stream_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"pass that of one text, \[seq, 16\] with at most 48"):
        block_jacobian(random_model("gpt2"), torch.zeros(shape), 1)


def test_a_bidirectional_block_reads_what_comes_after():
    model = architectures.random_model("bert", dtype=torch.float64)
    x = record(model, architectures.TOKENS).entering(1)[0]
    got = block_jacobian(model, x, 1, position=1)
    nudge = torch.zeros_like(x)
    nudge[1, 3] = 1e-6
    with torch.no_grad():
        up, down = (run_blocks(model, (x + s * nudge)[None], 1, 2)[0, 1] for s in (1, -1))
    assert torch.allclose(got.matrix[:, 3], (up - down) / 2e-6, atol=1e-6)
    cut = block_jacobian(model, x[:2], 1, position=1)
    assert not torch.allclose(cut.matrix, got.matrix, atol=1e-3)


@pytest.mark.parametrize("name", ["bloom", "qwen3_5", "gpt1"])
def test_blocks_that_torch_func_refuses_have_one_too(name):
    model = architectures.random_model(name)
    x = record(model, architectures.TOKENS).entering(1)[0]
    assert float(block_jacobian(model, x, 1).singular_values.min()) >= 0


def test_a_bfloat16_jacobian_says_what_it_is():
    model = random_model("llama", dtype=torch.bfloat16)
    assert "singular values" in repr(block_jacobian(model, entering(model, 0), 0))


def test_the_alignment_of_a_bfloat16_jacobian_is_not_rounded_to_its_dtype():
    matrix = torch.eye(300).to(torch.bfloat16)
    matrix[0, 1] = 1.0
    assert BlockJacobian(0, 0, matrix).alignment == pytest.approx((300 / 301) ** 0.5, rel=1e-5)


def test_a_jacobian_can_be_asked_for_in_inference_mode():
    model = random_model("llama")
    x = entering(model, 1)
    with torch.inference_mode():
        inside = block_jacobian(model, entering(model, 1), 1)
    assert torch.equal(inside.matrix, block_jacobian(model, x, 1).matrix)
