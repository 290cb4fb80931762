"""Chapter 1: every claim's experiment runs alone, and goes red when what it shows is broken."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

import residual_stream as rs
from chapter_cells import ClaimTests, hooking, patching, replacing, scaling, without_write

pytestmark = [pytest.mark.real, pytest.mark.slow]


def recorded_anew(*hooks):
    """A mutation in which the chapter's record is of a model that these hooks change."""

    @contextmanager
    def mutation(namespace):
        model = namespace["model"]
        with model.hooks(fwd_hooks=list(hooks)):
            stream = rs.record(model, namespace["tokens"])
        after = stream.accumulated()
        namespace |= {"stream": stream, "after": after, "norms": after.norm(dim=-1)}
        namespace |= {"row": after[0], "top": after[-1]}
        yield

    return mutation


def nothing_is_written():
    points = [f"blocks.{i}.hook_{kind}_out" for i in range(30) for kind in ("attn", "mlp")]
    return recorded_anew(*[(point, lambda value, hook: 0 * value) for point in points])


def a_position_added_to_the_rows():
    def add(value, hook):
        return value + torch.linspace(0, 0.1, value.shape[1])[:, None]

    return recorded_anew(("embed.hook_out", add))


@contextmanager
def a_bench_model_without_positions(namespace):
    bench = namespace["bench"]
    table = bench.original_model.transformer.wpe.weight
    with scaling(lambda _: table, 0.0)(namespace):
        namespace["bench_stream"] = rs.record(bench, namespace["bench_tokens"])
        yield


def float32_whatever_is_asked(load):
    return lambda name, dtype=None: load(name)


def interventions_without_consequence(namespace):
    def deaf(record):
        return lambda *args, **kwargs: namespace["stream"]

    return patching(rs, "record", deaf)(namespace)


def a_record_that_loses(index):
    def losing(record):
        return lambda *args, **kwargs: without_write(index)(record(*args, **kwargs))

    return losing


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
    "a write is lost": ("B1", {"mutation": replacing("stream", without_write(9))}),
    "interventions change nothing": ("B2", {"mutation": interventions_without_consequence}),
    "a norm is followed by a factor": (
        "B3",
        {"mutation": hooking("model", ("blocks.5.ln1.hook_out", lambda value, hook: 2 * value))},
    ),
    "the stream was as short as its normed copy": (
        "B3",
        {"rewrite": ("(held[i])", "(held[i] / sigma[i])")},
    ),
    "the heads share another matrix": (
        "B4",
        {
            "mutation": scaling(
                lambda ns: ns["model"].original_model.model.layers[12].self_attn.o_proj.weight,
                1.01,
            )
        },
    ),
    "a rotary model adds positions": ("B5", {"mutation": a_position_added_to_the_rows()}),
    "the bench model has no positions": ("B5", {"mutation": a_bench_model_without_positions}),
    "the wiring misses a write": (
        "B6",
        {"mutation": patching(rs, "read_wiring", a_wiring_that_misses_a_write)},
    ),
    "every head has its own keys": ("B7", {"mutation": keys_and_values_of_their_own}),
    "sublayers write nothing": ("B8", {"mutation": nothing_is_written()}),
    "the second model is float32 too": (
        "B9",
        {"mutation": patching(rs, "load", float32_whatever_is_asked)},
    ),
    "the bfloat16 record loses its last write": (
        "B9",
        {"mutation": patching(rs, "record", a_record_that_loses(-1))},
    ),
    "the first MLP whispers": (
        "B10",
        {
            "mutation": recorded_anew(
                ("blocks.0.hook_mlp_out", lambda value, hook: 0.1 * value),
            )
        },
    ),
    "a wire runs past the stream": ("B11", {"mutation": a_wire_from_block_0_to_block_20()}),
    "Qwen3.5 gates its shortcut": ("B12", {"mutation": a_gate_on_the_shortcut}),
    "the swapped model loses a write": (
        "B13",
        {"mutation": patching(rs, "record", a_record_that_loses(4))},
    ),
    "residual stacks have no shortcut": (
        "B14",
        {"rewrite": ("x + branch if residual else branch", "branch")},
    ),
}


class TestClaims(ClaimTests):
    name = "01_bus"
    claims = tuple(f"B{n}" for n in range(1, 15))
    mutations = MUTATIONS
