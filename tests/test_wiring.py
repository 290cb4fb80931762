"""What each kind of block writes, and the refusal of what is not understood."""

from types import SimpleNamespace

import pytest
import torch

import residual_stream as rs
from residual_stream.architectures import TOKENS, random_model


def test_a_sequential_block_writes_twice_and_closes_once(bench):
    wiring = rs.read_wiring(bench)
    assert len(wiring.block_writes) == 8
    assert [boundary.hook for boundary in wiring.boundaries] == [
        "blocks.0.hook_in", "blocks.1.hook_in", "blocks.2.hook_in", "blocks.3.hook_in",
        "ln_final.hook_in",
    ]  # fmt: skip
    assert [boundary.writes_before for boundary in wiring.boundaries] == [2, 4, 6, 8, 10]


def test_a_model_without_a_stack_of_blocks_is_refused():
    with pytest.raises(rs.WiringError, match="Linear has no stack called `blocks`"):
        rs.read_wiring(torch.nn.Linear(2, 2))


def test_an_unknown_block_is_refused_by_its_class(bench):
    class StrangeBlock(torch.nn.Module):
        submodules = frozenset({"attn", "mlp"})

    blocks = [bench.blocks[0], StrangeBlock()]
    model = SimpleNamespace(blocks=blocks, hook_dict=bench.hook_dict, cfg=bench.cfg)
    with pytest.raises(rs.WiringError, match="block 1 is a StrangeBlock"):
        rs.read_wiring(model)


def test_a_missing_hook_point_is_refused_by_its_name(bench):
    model = SimpleNamespace(
        blocks=[bench.blocks[0]], hook_dict=bench.hook_dict, cfg=bench.cfg, ln_final=object(),
        get_hook_point=lambda name: None if "mlp" in name else object(),
    )  # fmt: skip
    with pytest.raises(rs.WiringError, match=r"no hook point 'blocks.0.hook_mlp_out'"):
        rs.read_wiring(model)


def test_a_record_of_parallel_blocks_fires_the_callers_hooks_for_its_own_run_only():
    model, seen = random_model("neox"), []
    with model.hooks([("blocks.0.hook_in", lambda value, hook: seen.append(value.shape[:2]))]):
        rs.record(model, TOKENS)
    assert seen == [TOKENS.shape]


@pytest.mark.parametrize("name", ["cohere", "neox"])  # branches one by one, and together
def test_the_order_of_adding_is_asked_again_after_blocks_that_wrote_nothing(name):
    model = random_model(name)
    trained = {k: v.clone() for k, v in model.original_model.state_dict().items()}
    outputs = ("o_proj", "down_proj", "attention.dense", "dense_4h_to_h")
    with torch.no_grad():
        for key, weight in model.original_model.named_parameters():
            if any(output in key.replace("_original_component.", "") for output in outputs):
                weight.zero_()
    assert rs.record(model, TOKENS).audit().ok  # either order gives x + 0 + 0
    model.original_model.load_state_dict(trained)
    assert rs.record(model, TOKENS).audit().ok


def test_every_branch_has_a_reading(bench):
    wiring = rs.read_wiring(bench)
    assert [read.hook for read in wiring.reads[:2]] == [
        "blocks.0.ln1.hook_in",
        "blocks.0.ln2.hook_in",
    ]
    assert [read.writes_before for read in wiring.reads] == list(range(2, 10))
