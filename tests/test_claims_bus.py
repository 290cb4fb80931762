"""Chapter 1: every claim's experiment runs alone, and goes red when what it shows is broken."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

import residual_stream as rs
from chapter_cells import Chapter, hooking, replacing, scaling

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def chapter():
    return Chapter("01_bus")


def without_write(index):
    def change(stream):
        writes = stream.writes.clone()
        writes[index] = 0
        return replace(stream, writes=writes)

    return change


def only_the_row(after):
    after = after.clone()
    after[1:] = after[0]
    return after


@contextmanager
def the_row_alone(namespace):
    namespace["after"] = only_the_row(namespace["after"])
    namespace["top"] = namespace["row"]
    yield


@contextmanager
def a_quiet_first_block(namespace):
    stream = namespace["stream"]
    writes = stream.writes.clone()
    writes[1:3] /= 100
    namespace["stream"] = replace(stream, writes=writes)
    yield


@contextmanager
def a_record_that(namespace, behaves):
    original = rs.record
    rs.record = lambda *args, **kwargs: behaves(namespace, original(*args, **kwargs))
    try:
        yield
    finally:
        rs.record = original


def interventions_without_consequence(namespace):
    return a_record_that(namespace, lambda ns, stream: ns["stream"])


def a_record_that_loses_a_write(namespace):
    return a_record_that(namespace, lambda ns, stream: without_write(4)(stream))


@contextmanager
def a_wiring_that_misses_a_write(namespace):
    original = rs.read_wiring
    rs.read_wiring = lambda model: replace(original(model), writes=original(model).writes[:-1])
    try:
        yield
    finally:
        rs.read_wiring = original


@contextmanager
def keys_and_values_of_their_own(namespace):
    config = namespace["model"].original_model.config
    kept, config.num_key_value_heads = config.num_key_value_heads, config.num_attention_heads
    try:
        yield
    finally:
        config.num_key_value_heads = kept


def a_wire_from_block_0_to_block_20():
    seen = {}
    return hooking(
        "model",
        ("blocks.0.attn.v.hook_out", lambda value, hook: seen.update(value=value)),
        ("blocks.20.attn.v.hook_out", lambda value, hook: value + seen["value"]),
    )


@contextmanager
def a_gate_on_the_shortcut(namespace):
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer

    original = Qwen3_5DecoderLayer.forward

    def gated(self, hidden_states, *args, **kwargs):
        return original(self, hidden_states, *args, **kwargs) - 0.01 * hidden_states

    Qwen3_5DecoderLayer.forward = gated
    try:
        yield
    finally:
        Qwen3_5DecoderLayer.forward = original


MUTATIONS = {
    "B1": {"mutation": replacing("stream", without_write(9))},
    "B2": {"mutation": interventions_without_consequence},
    "B3": {
        "mutation": hooking("model", ("blocks.5.ln1.hook_out", lambda value, hook: 2 * value)),
    },
    "B4": {
        "mutation": scaling(
            lambda ns: ns["model"].original_model.model.layers[12].self_attn.o_proj.weight, 1.01
        )
    },
    "B5": {"mutation": replacing("stream", lambda s: replace(s, writes=s.writes + 0.01))},
    "B6": {"mutation": a_wiring_that_misses_a_write},
    "B7": {"mutation": keys_and_values_of_their_own},
    "B8": {"mutation": the_row_alone},
    "B9": {"mutation": replacing("stream", lambda s: replace(s, writes=s.writes / 1000))},
    "B10": {"mutation": a_quiet_first_block},
    "B11": {"mutation": a_wire_from_block_0_to_block_20()},
    "B12": {"mutation": a_gate_on_the_shortcut},
    "B13": {"mutation": a_record_that_loses_a_write},
    "B14": {"rewrite": ("state + branch if residual else branch", "branch")},
}


def test_every_claim_of_the_chapter_is_on_the_page(chapter):
    assert set(chapter.claims()) == set(MUTATIONS) == {f"B{n}" for n in range(1, 15)}


@pytest.mark.parametrize("claim", MUTATIONS)
def test_the_experiment_of_a_claim_stands_alone(chapter, claim):
    chapter.run(claim)


@pytest.mark.parametrize("claim", MUTATIONS)
def test_the_experiment_of_a_claim_fails_when_it_is_broken(chapter, claim):
    with pytest.raises(AssertionError):
        chapter.run(claim, **MUTATIONS[claim])


def test_the_mutations_left_the_model_as_it_was(chapter):
    stream = chapter.namespace["stream"]
    with torch.no_grad():
        again = rs.record(chapter.namespace["model"], stream.tokens)
    assert torch.equal(again.writes, stream.writes)
