"""The audit finds what the ledger does not hold, and names the block."""

import re

import pytest
import torch

import residual_stream as rs
from residual_stream.architectures import TOKENS, random_model
from residual_stream.audit import audit_ledger
from residual_stream.frozen import FrozenNorm

IDS = torch.tensor([[3, 1, 4, 1, 5, 9]])


def writes_of(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype).reshape(len(values), 1, 1, 1)


def test_the_bound_is_unit_roundoff_times_the_partial_sums():
    audit = audit_ledger(writes_of(1.0, 2.0, 4.0), torch.full((1, 1, 1), 7.0), [])
    assert audit.bound == pytest.approx(2.0**-24 * (3 + 7))
    assert audit.sum_error == 0 and audit.ok


def test_the_bound_before_a_norm_goes_through_it():
    model = random_model("gpt1")
    x = rs.record(model, TOKENS).writes[0]
    norm = FrozenNorm.of(model, "blocks.0.ln1").at(x)
    error = torch.zeros_like(x)
    error[..., 3] = 1e-3
    moved = norm.push(error).abs()
    none, some = (norm.bound(before, x, 2**-24) for before in (0 * error, error))
    assert bool((some - none >= moved * (1 - 1e-6)).all()) and bool((none < moved.max()).all())


def test_the_bound_holds_where_rounding_is_worst():
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        scale = torch.logspace(-2, 2, 200, dtype=torch.float64)[:, None, None, None]
        writes = (torch.randn(200, 1, 4, 50, dtype=torch.float64) * scale).to(dtype)
        top = writes[0].clone()
        for write in writes[1:]:
            top = top + write
        audit = audit_ledger(writes, top, [])
        assert audit.replay_error == 0 and audit.within_bound
        assert 0.001 * audit.bound < audit.sum_error <= audit.bound


def test_another_order_is_seen_by_the_replay():
    writes = writes_of(1.0, 1e8, -1e8)
    backward = (writes[2] + writes[1]) + writes[0]
    assert audit_ledger(writes, backward, []).replay_error == 1.0


def test_a_top_outside_the_bound_is_not_ok():
    audit = audit_ledger(writes_of(1.0, 2.0), torch.full((1, 1, 1), 3.01), [])
    assert not audit.within_bound and not audit.ok


def extra_write(module, inputs, output):
    return output + 1e-3 * output


def scaled(module, inputs, output):
    return 1.001 * output


def gated_shortcut(module, inputs, output):
    return output - 0.1 * inputs[0]


def double_residual(module, inputs, output):
    return output + inputs[0]


def replaced(module, inputs, output):
    return output - inputs[0]


def one_coordinate(module, inputs, output):
    output = output.clone()
    output[..., 5] += 1e-3
    return output


TAMPERED = [extra_write, scaled, gated_shortcut, double_residual, replaced, one_coordinate]


@pytest.mark.parametrize("tamper", TAMPERED)
@pytest.mark.parametrize("layer", [0, 2, 3])
def test_a_tampered_block_is_named(bench, tamper, layer):
    handle = bench.blocks[layer].original_component.register_forward_hook(tamper)
    try:
        audit = rs.record(bench, "In the beginning God created").audit()
    finally:
        handle.remove()
    assert not audit.ok and audit.replay_error > 0
    assert [block.layer for block in audit.open_blocks] == [layer]
    assert f"block {layer} (GPT2Block)" in str(audit)


def test_a_tampered_embedding_is_named(bench):
    inner = bench.original_model.transformer
    handle = inner.drop.register_forward_hook(lambda module, inputs, output: 1.01 * output)
    try:
        audit = rs.record(bench, "In the beginning").audit()
    finally:
        handle.remove()
    assert "does not close at the embedding" in audit.verdict


def block_forward(block, combine):
    """A Llama block's forward pass with the order and the sums of its parts up to `combine`."""

    def attend(x, **kwargs):
        return block.self_attn(hidden_states=x, **kwargs)[0]

    def forward(hidden_states, **kwargs):
        return combine(
            hidden_states,
            block.input_layernorm,
            lambda x: attend(x, **kwargs),
            block.post_attention_layernorm,
            block.mlp,
        )

    return forward


def as_it_should_be(x, ln1, attn, ln2, mlp):
    x = x + attn(ln1(x))
    return x + mlp(ln2(x))


def parallel_in_disguise(x, ln1, attn, ln2, mlp):
    return x + attn(ln1(x)) + mlp(ln2(x))


def swapped_order(x, ln1, attn, ln2, mlp):
    x = x + mlp(ln2(x))
    return x + attn(ln1(x))


def dropped_first_norm(x, ln1, attn, ln2, mlp):
    x = x + attn(x)
    return x + mlp(ln2(x))


def dropped_second_norm(x, ln1, attn, ln2, mlp):
    x = x + attn(ln1(x))
    return x + mlp(x)


def norm_after_the_sum(x, ln1, attn, ln2, mlp):
    x = ln1(x + attn(x))
    return ln2(x + mlp(x))


def scaled_branch(x, ln1, attn, ln2, mlp):
    x = x + 0.999 * attn(ln1(x))
    return x + mlp(ln2(x))


def gated_branch(x, ln1, attn, ln2, mlp):
    x = x + attn(ln1(x))
    return x + torch.sigmoid(5 + x) * mlp(ln2(x))


def shortcut_from_elsewhere(x, ln1, attn, ln2, mlp):
    return ln1(x) + attn(ln1(x)) + mlp(ln2(x))


def half_a_branch(x, ln1, attn, ln2, mlp):
    return x + attn(ln1(x))


def branch_twice(x, ln1, attn, ln2, mlp):
    x = x + attn(ln1(x))
    x = x + mlp(ln2(x))
    return x + mlp(ln2(x))


def hidden_wire(x, ln1, attn, ln2, mlp):
    x = x + attn(ln1(x))
    return x + mlp(ln2(x + 1e-3 * x.roll(1, 1)))


WIRED_OTHERWISE = [
    parallel_in_disguise, swapped_order, dropped_first_norm, dropped_second_norm,
    norm_after_the_sum, scaled_branch, gated_branch, shortcut_from_elsewhere, half_a_branch,
    branch_twice, hidden_wire,
]  # fmt: skip


@pytest.mark.parametrize("combine", [as_it_should_be, *WIRED_OTHERWISE])
@pytest.mark.parametrize("layer", [0, 2])
def test_a_block_that_is_wired_otherwise_is_refused_by_name(combine, layer):
    model = random_model("llama")
    block = model.blocks[layer].original_component
    block.forward = block_forward(block, combine)
    if combine is as_it_should_be:
        rs.record(model, TOKENS).require_closed()
        return
    with pytest.raises(rs.LedgerError, match=rf"block {layer}\b"):
        rs.record(model, TOKENS).require_closed()


def test_an_open_ledger_says_so_in_its_repr():
    model = random_model("llama")
    assert "OPEN" not in repr(rs.record(model, TOKENS))
    block = model.blocks[1].original_component
    block.forward = block_forward(block, parallel_in_disguise)
    stream = rs.record(model, TOKENS)
    assert "OPEN at the MLP of block 1 (LlamaDecoderLayer)" in repr(stream)
    assert "reads a stream that differs by up to" in stream.audit().verdict


def test_a_stream_that_is_not_a_number_is_named():
    model = random_model("llama")
    with torch.no_grad():
        model.blocks[1].mlp.out.weight[3, 3] = float("nan")
    verdict = rs.record(model, TOKENS).audit().verdict
    assert "block 1 (LlamaDecoderLayer), where the stream or a write holds NaN" in verdict


@pytest.mark.real
@pytest.mark.parametrize("layer", [0, 13, 29])
def test_a_hidden_write_of_a_thousandth_is_found_in_the_real_model(smollm2, layer):
    handle = smollm2.blocks[layer].original_component.register_forward_hook(extra_write)
    try:
        audit = rs.record(smollm2, "The quick brown fox").audit()
    finally:
        handle.remove()
    assert [block.layer for block in audit.open_blocks] == [layer]
    assert f"block {layer} (LlamaDecoderLayer)" in str(audit)


@pytest.mark.real
def test_the_real_ledger_closes_to_the_bit(smollm2):
    audit = rs.record(smollm2, "The quick brown fox jumps over the lazy dog").audit()
    assert audit.ok and audit.replay_error == 0.0
    assert 0 < audit.sum_error <= audit.bound
    assert len(audit.blocks) == 31 and audit.dtype == torch.float32


def test_the_bench_ledger_closes_to_the_bit(bench):
    audit = rs.record(bench, "In the beginning").audit()
    assert audit.ok and audit.replay_error == 0.0 and len(audit.blocks) == 5


def test_it_prints_as_a_table_and_as_a_frame(bench):
    audit = rs.record(bench, "In the beginning").audit()
    assert re.search(r"stages closed on their own +5 of 5", str(audit))
    assert audit._repr_markdown_().startswith("| check | measured | required |")
    assert re.search(r"readings of the stream +8 of 8 as recorded", str(audit))
    assert len(audit.to_frame()) == 13
    assert list(audit.to_frame().columns) == ["stage", "layer", "error", "largest write"]
