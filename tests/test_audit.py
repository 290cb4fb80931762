"""The audit finds what the ledger does not hold, and names the block."""

import re

import pytest
import torch

import residual_stream as rs
from residual_stream.audit import audit_ledger

IDS = torch.tensor([[3, 1, 4, 1, 5, 9]])


def writes_of(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype).reshape(len(values), 1, 1, 1)


def test_the_bound_is_unit_roundoff_times_the_partial_sums():
    audit = audit_ledger(writes_of(1.0, 2.0, 4.0), torch.full((1, 1, 1), 7.0), [])
    assert audit.bound == pytest.approx(2.0**-24 * (3 + 7))
    assert audit.sum_error == 0 and audit.ok


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
    assert list(audit.to_frame().columns) == ["stage", "layer", "error", "largest write"]
