"""What each kind of block writes, and the refusal of what is not understood."""

from types import SimpleNamespace

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

import residual_stream as rs


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
        blocks=[bench.blocks[0]], hook_dict=bench.hook_dict, cfg=bench.cfg,
        get_hook_point=lambda name: None if "mlp" in name else object(),
    )  # fmt: skip
    with pytest.raises(rs.WiringError, match=r"no hook point 'blocks.0.hook_mlp_out'"):
        rs.read_wiring(model)


def test_a_sandwich_of_experts_closes_or_is_refused_but_is_never_silently_wrong():
    torch.manual_seed(0)
    config = MixtralConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=4, vocab_size=64, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = rs.load(MixtralForCausalLM(config))
    try:
        stream = rs.record(model, [3, 1, 4])
    except rs.WiringError as error:
        assert "MixtralDecoderLayer" in str(error)
    else:
        assert stream.audit().ok
