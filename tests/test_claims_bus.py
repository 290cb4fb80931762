"""Chapter 1: every claim's experiment runs alone, and goes red when what it shows is broken."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

import residual_stream as rs
from chapter_cells import Chapter, hooking, patching, replacing, scaling, without_write

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def chapter():
    return Chapter("01_bus")


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


def interventions_without_consequence(namespace):
    def deaf(record):
        return lambda *args, **kwargs: namespace["stream"]

    return patching(rs, "record", deaf)(namespace)


def a_record_that_loses_a_write(record):
    return lambda *args, **kwargs: without_write(4)(record(*args, **kwargs))


def a_wiring_that_misses_a_write(read_wiring):
    def misread(model):
        wiring = read_wiring(model)
        return replace(wiring, writes=wiring.writes[:-1])

    return misread


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


def a_gate_on_the_shortcut(namespace):
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer

    def gated(forward):
        return lambda self, x, *args, **kwargs: forward(self, x, *args, **kwargs) - 0.01 * x

    return patching(Qwen3_5DecoderLayer, "forward", gated)(namespace)


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
    "B6": {"mutation": patching(rs, "read_wiring", a_wiring_that_misses_a_write)},
    "B7": {"mutation": keys_and_values_of_their_own},
    "B8": {"mutation": the_row_alone},
    "B9": {"mutation": replacing("stream", lambda s: replace(s, writes=s.writes / 1000))},
    "B10": {"mutation": a_quiet_first_block},
    "B11": {"mutation": a_wire_from_block_0_to_block_20()},
    "B12": {"mutation": a_gate_on_the_shortcut},
    "B13": {"mutation": patching(rs, "record", a_record_that_loses_a_write)},
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
    assert chapter.records_as_before()
