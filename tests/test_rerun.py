"""A re-run from a layer up is the full run, to the bit, and really skips what it says."""

from __future__ import annotations

import pytest
import torch

import residual_stream as rs
from handmade import random_model
from residual_stream import architectures
from residual_stream.rerun import rerun_from, run_blocks, run_to_top, skipped_blocks
from residual_stream.stream import record

TOKENS = torch.tensor([[1, 5, 9, 2, 4], [7, 7, 3, 11, 0]])


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "gemma2", "cohere"])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_going_on_from_a_layer_equals_the_full_run_to_the_bit(name, layer):
    model = random_model(name)
    entering = {}
    hook = f"blocks.{layer}.hook_in" if layer < 2 else "ln_final.hook_in"
    with model.hooks(fwd_hooks=[(hook, lambda v, hook: entering.update(x=v.clone()))]):
        model(TOKENS)
    assert torch.equal(rerun_from(model, entering["x"], layer), run_to_top(model, TOKENS))


def test_going_on_in_a_model_of_transformerlens_own_blocks_is_exact():
    model = rs.load("induction")
    stream = record(model, TOKENS)
    for layer, label in enumerate(["pos_embed", "0_attn_out", "1_attn_out"]):
        assert torch.equal(rerun_from(model, stream.after(label), layer), stream.top)


def test_skipped_blocks_do_not_run_and_come_back():
    model = random_model("llama")
    calls = []
    handles = [
        block.original_component.register_forward_hook(lambda *_, i=i: calls.append(i))
        for i, block in enumerate(model.blocks)
    ]
    stream = record(model, TOKENS)
    rerun_from(model, stream.after("0_mlp_out"), 1)  # once, it also looks at what blocks return
    calls.clear()
    rerun_from(model, stream.after("0_mlp_out"), 1)
    assert calls == [1]
    for handle in handles:
        handle.remove()
    assert torch.equal(run_to_top(model, TOKENS), stream.top)


def test_blocks_come_back_after_an_error():
    model = random_model("llama")
    clean = model(TOKENS)
    with pytest.raises(RuntimeError, match="on purpose"), skipped_blocks(model, [0, 1]):
        raise RuntimeError("on purpose")
    assert torch.equal(model(TOKENS), clean)


def test_an_edit_below_travels_up_as_in_a_full_run():
    model = random_model("gpt2")
    stream = record(model, TOKENS)

    def nudge(value, hook):
        return value + 0.5

    with model.hooks(fwd_hooks=[("blocks.1.hook_in", nudge)]):
        full = run_to_top(model, TOKENS)
    edited = rerun_from(model, stream.after("0_mlp_out") + 0.5, 1)
    assert torch.equal(edited, full)


def test_a_layer_out_of_range_is_refused():
    model = random_model("gpt2")
    with pytest.raises(ValueError, match=r"rerun_from: layer 3 is out of range; the model has 2"):
        rerun_from(model, torch.zeros(1, 4, 16), 3)


@pytest.mark.real
@pytest.mark.slow
def test_the_real_model_goes_on_to_the_bit_from_the_middle(smollm2):
    stream = record(smollm2, "The ferry was late again, so Mara sat on the sea wall.")
    assert torch.equal(rerun_from(smollm2, stream.after("14_mlp_out"), 15), stream.top)


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "gemma2", "cohere"])
def test_a_stretch_of_blocks_equals_the_full_run_to_the_bit(name):
    model = random_model(name)
    entering = {}
    hooks = [(f"blocks.{i}.hook_in", lambda v, hook, i=i: entering.update({i: v})) for i in (0, 1)]
    with model.hooks(fwd_hooks=hooks):
        top = run_to_top(model, TOKENS)
    with torch.no_grad():
        assert torch.equal(run_blocks(model, entering[0], 0, 1), entering[1])
        assert torch.equal(run_blocks(model, entering[1], 1, 2), top)
        assert torch.equal(run_blocks(model, entering[0], 0, 2), top)
        assert torch.equal(run_blocks(model, entering[0], 1, 1), entering[0])


def test_a_stretch_of_blocks_can_be_differentiated():
    model = random_model("llama")
    stream = record(model, TOKENS)
    for stop in (1, 2):
        leaf = stream.after("embed").requires_grad_()
        run_blocks(model, leaf, 0, stop).sum().backward()
        assert float(leaf.grad.abs().sum()) > 0


def test_a_stretch_out_of_range_is_refused():
    with pytest.raises(ValueError, match="run_blocks: blocks 1 to 3 are out of range"):
        run_blocks(random_model("gpt2"), torch.zeros(1, 4, 16), 1, 3)


def test_skipped_blocks_may_be_named_twice_and_skipped_again_inside():
    model = random_model("llama")
    clean = run_to_top(model, TOKENS)
    with skipped_blocks(model, [0, 0, 1]):
        row = run_to_top(model, TOKENS)
        with skipped_blocks(model, [1]):
            assert torch.equal(run_to_top(model, TOKENS), row)
        assert torch.equal(run_to_top(model, TOKENS), row)  # 1 is still skipped
    assert torch.equal(run_to_top(model, TOKENS), clean)


def test_a_stack_that_passes_lists_on_is_served():
    model = architectures.random_model("gpt1")  # its blocks return a list
    seen = []
    handle = model.blocks[0].original_component.register_forward_hook(
        lambda *call: seen.append(type(call[2]))
    )
    stream = record(model, TOKENS)
    handle.remove()
    assert seen[0] is list
    assert torch.equal(rerun_from(model, stream.entering(2), 2), stream.top)
