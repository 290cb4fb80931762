"""Switched-off writes: the guess is arithmetic, the model's word is a run."""

from __future__ import annotations

import pytest
import torch

import residual_stream as rs
from handmade import random_model
from residual_stream.audit import LedgerError
from residual_stream.switches import _run

TEXT = "In the beginning God created"


@pytest.fixture(scope="module")
def stream(bench):
    return rs.record(bench, TEXT)


@pytest.fixture(scope="module")
def found(stream):
    return rs.switch_off(stream, [5, 9], writes=4)


def test_with_nothing_off_guess_and_word_are_the_models_own_logits(stream, found, bench):
    with torch.no_grad():
        logits = bench(stream.tokens)[0, -1]
    own = (logits - logits.mean())[found.tokens]
    assert found.tokens[0] == int(logits.argmax()) == int(found.top_ids[0])
    assert found.tokens[1:] == [5, 9]
    assert torch.allclose(found.real[0], own, atol=1e-3)
    assert torch.allclose(found.linear[0], own, atol=1e-3)
    assert float(found.top_probability[0]) == pytest.approx(float(logits.softmax(-1).max()), 1e-4)


def test_the_guess_subtracts_the_shares_of_what_is_off(found):
    for combination in range(2**4):
        off = [write for i, write in enumerate(found.switches) if (combination >> i) & 1]
        expected = found.linear[0] - found.shares[:, off].sum(1)
        assert torch.allclose(found.linear[combination], expected, atol=1e-5)


def test_the_word_is_that_of_a_full_run_with_the_writes_left_out_at_the_last_position(
    stream, found, bench
):
    def leave_out(value, hook):
        value = value.clone()
        value[0, -1] = 0
        return value

    for combination in (1, 6, 15):
        off = [write for i, write in enumerate(found.switches) if (combination >> i) & 1]
        hooks = [(name, leave_out) for w in off for name in stream.wiring.writes[w].hooks]
        with torch.no_grad(), bench.hooks(fwd_hooks=hooks):
            logits = bench(stream.tokens)[0, -1]
        assert torch.allclose(
            found.real[combination], (logits - logits.mean())[found.tokens], atol=1e-3
        )
        assert int(found.top_ids[combination]) == int(logits.argmax())


def test_the_switches_are_the_largest_shares_in_the_order_written(found):
    largest = found.shares[0].abs().argsort(descending=True)[:4].tolist()
    assert found.switches == sorted(largest)


def test_without_the_last_write_nothing_runs_again_so_the_top_is_short_of_it_alone(stream):
    last = len(stream.labels) - 1
    expected = stream.top[0, -1] - stream.writes[last, 0, -1]
    assert torch.allclose(_run(stream, [last]), expected, atol=1e-5)


def test_an_embeddings_row_can_be_left_out_and_then_every_block_reads_another_stream(stream):
    assert stream.labels[0] == "embed"
    without = _run(stream, [0])
    short = stream.top[0, -1] - stream.writes[0, 0, -1]
    assert float((without - short).norm() / short.norm()) > 0.1


def test_it_shows_itself_as_a_table(found):
    frame = found.to_frame()
    assert list(frame.columns) == ["write", "share", "lost when run again"]
    assert found._repr_markdown_().count("\n") == len(frame) + 1
    assert repr(found).startswith("Switches(4 of 10 writes, 16 combinations run")


@pytest.mark.parametrize(("writes", "said"), [(0, "writes = 0"), (11, "pass 1 to 10")])
def test_too_many_or_no_switches_are_refused(stream, writes, said):
    with pytest.raises(ValueError, match=said):
        rs.switch_off(stream, [5], writes=writes)


def test_several_rows_and_dropped_positions_are_refused(bench):
    with pytest.raises(ValueError, match="2 rows"):
        rs.switch_off(rs.record(bench, [TEXT, TEXT]), [5])
    with pytest.raises(ValueError, match="has kept 1 of"):
        rs.switch_off(rs.record(bench, TEXT, positions=slice(-1, None)), [5])


def test_a_stream_that_does_not_close_is_refused(bench):
    with bench.hooks([("blocks.2.hook_out", lambda value, hook: 0.9 * value)]):
        broken = rs.record(bench, TEXT)
    with pytest.raises(LedgerError):
        rs.switch_off(broken, [5])


def test_a_soft_cap_is_in_the_probabilities_and_not_in_the_shares():
    model = random_model("gemma2")
    model.original_model.config.final_logit_softcapping = 2.0
    stream = rs.record(model, [1, 5, 9, 2])
    off = rs.switch_off(stream, [5], writes=1)
    with torch.no_grad():
        own = model(stream.tokens)[0, -1]
    assert float(own.abs().max()) <= 2.0
    assert float(off.top_probability[0]) == pytest.approx(float(own.softmax(-1).max()), rel=1e-4)
    lens = rs.widgets.climb(stream, words=1).data["read"][-1][-1]
    assert lens[0][1] == pytest.approx(float(own.softmax(-1).max()), abs=0.005)
    assert float(off.real[0].abs().max()) == pytest.approx(
        float(off.linear[0].abs().max()), rel=1e-4
    )


def test_a_model_that_has_changed_since_the_recording_is_refused():
    model = random_model("llama")
    stream = rs.record(model, [[1, 5, 9, 2, 4]])
    with torch.no_grad():
        model.blocks[1].mlp.out.original_component.weight.mul_(1.5)
    with pytest.raises(LedgerError, match="switch_off: the model no longer runs as it did"):
        rs.switch_off(stream, [5], writes=2)
