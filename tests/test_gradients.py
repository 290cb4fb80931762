"""Paths of the gradient add up to autograd's, and each is what its definition says."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import residual_stream as rs
from handmade import random_model
from residual_stream.gradients import stream_gradients
from residual_stream.path_gradients import gradient_by_path_length, gradient_of_every_path
from residual_stream.precision import Float64Throughout

TOKENS = torch.tensor([[1, 5, 9, 2, 4], [7, 7, 3, 11, 0]])


def loss(model, tokens):
    logits = model(tokens)
    return torch.nn.functional.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="sum")


@pytest.mark.parametrize("unit", ["sublayer", "layer"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "gemma2", "cohere"])
def test_the_parts_add_up_to_autograds_gradient(name, unit):
    parts = gradient_by_path_length(random_model(name, dtype=torch.float64), TOKENS, unit=unit)
    assert parts.error < 1e-8
    assert torch.allclose(parts.shares.sum(0), torch.ones(2, 4, dtype=torch.float64), atol=1e-8)
    assert bool((parts.norms[-1] > 0).all())
    assert torch.allclose(parts.descent[-1], parts.cancellation)
    assert bool((parts.descent[0] == 1).all()) and len(parts.descent) == len(parts.values)


def test_every_single_path_is_listed_and_sorts_into_the_lengths():
    model = rs.load("bench", dtype=torch.float64)
    tokens = rs.texts.batch(model)[:2, :12]
    every, parts = gradient_of_every_path(model, tokens), gradient_by_path_length(model, tokens)
    lengths = torch.tensor([bin(path).count("1") for path in range(256)])
    assert len(every) == 2**8 and parts.error < 1e-8
    for length in range(9):
        assert torch.allclose(every[lengths == length].sum(0), parts.values[length], atol=1e-10)


def test_the_gradient_of_a_path_is_the_product_of_its_jacobians():
    model = random_model("gpt2", dtype=torch.float64)
    tokens = TOKENS[:1, :3]
    every = gradient_of_every_path(model, tokens, unit="layer")
    stream = rs.record(model, tokens)

    def branch(layer):
        entering = stream.after("pos_embed" if layer == 0 else "0_mlp_out")
        whole = torch.autograd.functional.jacobian(
            lambda x: rs.run_blocks(model, x, layer, layer + 1), entering
        )
        size = entering.numel()
        return whole.reshape(size, size) - torch.eye(size, dtype=torch.float64)

    top = stream_gradients(model, tokens).values[-1]
    top = torch.cat([top, torch.zeros_like(top[:, :1])], dim=1).flatten()
    both = top @ branch(1) @ branch(0)
    assert torch.allclose(every[3].flatten(), both.reshape(3, 16)[:2].flatten(), atol=1e-10)


def test_a_stack_without_branches_has_the_identity_path_alone():
    model = random_model("llama")
    with torch.no_grad():
        for layer in model.original_model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    parts, gradients = gradient_by_path_length(model, TOKENS), stream_gradients(model, TOKENS)
    assert torch.allclose(parts.cancellation, torch.ones(2, 4), atol=1e-5)
    assert torch.allclose(gradients.identity_share, torch.ones(2, 4), atol=1e-5)
    assert float(parts.mean_length.max()) == 0.0


def test_the_gradient_at_a_write_is_the_loss_slope_there():
    model = random_model("llama", dtype=torch.float64)
    gradients = stream_gradients(model, TOKENS)
    step = torch.zeros(2, 5, 16, dtype=torch.float64)
    step[1, 2, 3] = 1e-6
    hooks = {
        "embed": "blocks.0.hook_in",
        "0_attn_out": "blocks.0.hook_attn_out",
        "0_mlp_out": "blocks.0.hook_mlp_out",
        "1_attn_out": "blocks.1.hook_attn_out",
        "1_mlp_out": "blocks.1.hook_mlp_out",
    }
    assert gradients.labels == list(hooks)
    with torch.no_grad(), Float64Throughout():
        for index, point in enumerate(hooks.values()):
            ends = []
            for sign in (1, -1):
                with model.hooks(fwd_hooks=[(point, lambda v, hook, s=sign: v + s * step)]):
                    ends.append(loss(model, TOKENS))
            slope = (ends[0] - ends[1]) / 2e-6
            assert float(gradients.values[index, 1, 2, 3]) == pytest.approx(float(slope), abs=1e-5)


def test_the_gradient_is_not_that_of_an_edit_at_hook_resid_mid():
    model = random_model("llama")
    leaf = torch.zeros(2, 5, 16, requires_grad=True)
    found = []
    for point in ("hook_resid_mid", "hook_attn_out"):
        with model.hooks(fwd_hooks=[(f"blocks.1.{point}", lambda v, hook: v + leaf)]):
            found.append(torch.autograd.grad(loss(model, TOKENS), leaf)[0][:, :-1])
    ours = stream_gradients(model, TOKENS).values[3]
    assert torch.allclose(found[1], ours, atol=1e-5)
    assert float((found[0] - ours).norm() / ours.norm()) > 0.3  # the shortcut's part is missing


def test_the_norms_of_a_float64_model_stay_in_float64():
    seen = []
    norm = LlamaRMSNorm(16).double()
    x = torch.randn(1, 3, 16, dtype=torch.float64)
    for context in (torch.no_grad(), Float64Throughout()):
        with context, torch.no_grad():
            seen.append(norm(x).detach())
    exact = x / (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
    assert float((seen[0] - exact).abs().max()) > 1e-10  # rounded to float32 inside
    assert float((seen[1] - exact).abs().max()) < 1e-14


def test_a_product_whose_factors_were_both_to_be_float32_stays_in_float64():
    """As transformers 5.9, which Colab has, turns positions into angles."""
    frequencies = torch.rand(4, 1, dtype=torch.float64)
    positions = torch.arange(3)[None]
    exact = frequencies @ positions.double()
    with Float64Throughout():
        for angles in (
            frequencies.float() @ positions.float(),
            torch.matmul(frequencies.float(), positions.float()),
        ):
            assert torch.equal(angles, exact)
        assert (frequencies[:0].to(torch.bfloat16) @ positions.bfloat16()).dtype == torch.bfloat16


def test_wrong_questions_are_refused():
    model = random_model("gpt2")
    with pytest.raises(ValueError, match=r"unit = 'head' is not known; pass 'sublayer' or 'layer'"):
        gradient_by_path_length(model, TOKENS, unit="head")
    with pytest.raises(ValueError, match="stream_gradients: a text of one token"):
        stream_gradients(model, TOKENS[:, :1])


def test_the_results_say_what_they_are():
    model = random_model("gpt2")
    assert repr(stream_gradients(model, TOKENS)).startswith("StreamGradients(5 writes × 8 places")
    assert repr(gradient_by_path_length(model, TOKENS)).startswith("PathGradients(4 sublayers, 8 ")


@pytest.mark.real
@pytest.mark.slow
def test_the_paths_of_the_real_model_add_up():
    model = rs.load("smollm2-135m", device="cpu", dtype=torch.float64)
    parts = gradient_by_path_length(model, rs.texts.batch(model, length=12)[:1])
    assert parts.error < 1e-3
    with pytest.raises(ValueError, match=r"60 branches make 2\^60 paths"):
        gradient_of_every_path(model, [1, 2, 3])


def test_a_block_that_is_wired_otherwise_is_not_split_in_silence():
    model = random_model("llama")
    model.blocks[1].original_component.register_forward_hook(
        lambda module, inputs, output: output + 0.1 * inputs[0] if inputs else 1.1 * output
    )
    with pytest.raises(rs.LedgerError, match="miss autograd's gradient by"):
        rs.gradient_by_path_length(model, torch.tensor([[1, 5, 9, 2, 4]]))
