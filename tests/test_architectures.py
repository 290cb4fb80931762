"""Every architecture: the ledger closes to the bit, as a run does that no bridge touched."""

import re

import pytest
import torch

import residual_stream as rs
from residual_stream.architectures import (
    CONFIGS,
    PARALLEL,
    POST_LN,
    SEQUENTIAL,
    TOKENS,
    random_hf,
    random_model,
)
from residual_stream.devices import require_runs

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module", params=CONFIGS)
def architecture(request):
    model = random_model(request.param)
    return request.param, model, rs.record(model, TOKENS)


def test_there_are_enough():
    assert len(CONFIGS) >= 16


def test_the_ledger_closes_to_the_bit(architecture):
    _, model, stream = architecture
    audit = stream.audit()
    assert audit.ok and audit.replay_error == 0.0
    assert len(audit.blocks) == 1 + len(model.blocks) and len(audit.reads) >= len(model.blocks)


def test_no_write_is_trivial(architecture):
    _, _, stream = architecture
    norms = stream.writes.norm(dim=-1).flatten(1).amin(1)
    assert (norms > 1e-3).all(), dict(zip(stream.labels, norms.tolist(), strict=True))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_stream_is_what_the_plain_model_holds_in_float64(name):
    plain = random_hf(name, dtype=torch.float64)
    stack = next(m for m in plain.modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 1)
    entering = []

    def keep(module, args, kwargs):
        entering.append(args[0] if args else kwargs["hidden_states"])

    handles = [block.register_forward_pre_hook(keep, with_kwargs=True) for block in stack]
    with torch.no_grad():
        plain(TOKENS)
    for handle in handles:
        handle.remove()
    stream = rs.record(random_model(name, dtype=torch.float64), TOKENS)
    assert len(entering) == len(stack)
    for layer, exact in enumerate(entering):
        written = sum(write < layer for write in stream.layers)
        ours = stream.after(written - 1)
        assert float((ours - exact).norm() / exact.norm()) < 1e-6, layer


def test_every_architecture_runs_on_from_a_layer(architecture):
    _, model, stream = architecture
    for layer in range(len(model.blocks)):
        before = sum(write < layer for write in stream.layers) - 1
        top = rs.rerun_from(model, stream.after(before), layer)
        assert torch.equal(top, stream.top)


@pytest.mark.parametrize("name", POST_LN)
def test_a_post_ln_stream_goes_through_every_norm_but_the_last(name):
    stream = rs.record(random_model(name), TOKENS)
    assert len(stream.wiring.norms) == 2 * len(stream.model.blocks) - 1
    assert stream.wiring.boundaries[-1].hook == "blocks.2.ln2.hook_in"
    writes, audit = list(stream.writes.double()), stream.audit()
    norms = stream.stream_norms()
    held, parts = stream.writes[0], [writes[0]]
    for index, write in enumerate(stream.writes[1:], start=1):
        held, parts = held + write, [*parts, write.double()]
        if index in norms:  # every earlier write goes through the norm, which adds its bias
            frozen = norms[index].at(held)
            parts = [*map(frozen.push, parts), frozen.norm.bias.double().expand_as(held)]
            held = norms[index](held)
    error = (sum(parts) - stream.top.double()).abs().max()
    assert float(error) <= audit.bound and float(error) == pytest.approx(audit.sum_error, abs=1e-9)


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_a_sequential_block_writes_twice(name):
    model = random_model(name)
    assert len(rs.read_wiring(model).block_writes) == 2 * len(model.blocks)


@pytest.mark.parametrize("name", PARALLEL)
def test_a_parallel_block_writes_as_often_as_it_adds(name):
    labels = rs.read_wiring(random_model(name)).labels
    one_by_one = name in ("cohere", "stablelm, parallel")  # (x + attn) + mlp
    assert labels[1:3] == (
        ["0_attn_out", "0_mlp_out"] if one_by_one else ["0_parallel_out", "1_parallel_out"]
    )


def test_a_hybrid_names_its_mixers():
    assert rs.read_wiring(random_model("qwen3_5")).labels[1::2] == [
        "0_linear_attn_out", "1_linear_attn_out", "2_linear_attn_out", "3_attn_out",
    ]  # fmt: skip
    assert rs.read_wiring(random_model("mamba")).labels == [
        "embed", "0_mixer_out", "1_mixer_out", "2_mixer_out",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_a_stream_kept_in_float32_between_bfloat16_writes_is_recorded_so(name):
    model = rs.load(random_hf(name, dtype=torch.bfloat16))
    stream = rs.record(model, TOKENS)
    assert model.cfg.dtype == torch.bfloat16 and stream.writes.dtype == torch.float32
    assert stream.audit().ok
    again = rs.rerun_from(model, stream.entering(1), 1)
    assert again.dtype == torch.float32 and torch.equal(again, stream.top)
    assert rs.logit_attribution(stream, 5).relative_remainder < 0.05


@pytest.mark.parametrize("name", ["olmo", "olmo2"])
def test_a_model_that_the_bridge_cannot_run_in_a_dtype_is_refused_when_loaded(name):
    try:
        model = rs.load(random_hf(name, dtype=torch.bfloat16))
    except ValueError as error:
        assert re.search(r"Olmo\w+ does not run in torch.bfloat16 .*float32", str(error))
    else:  # as with older versions of transformers
        assert rs.record(model, TOKENS).audit().ok
    assert rs.load(random_hf(name), dtype=torch.float32).cfg.dtype == torch.float32


def test_a_model_whose_weights_do_not_fit_each_other_is_named():
    model = random_model("llama", dtype=torch.bfloat16)
    weight = next(p for n, p in model.named_parameters() if "down_proj" in n)
    weight.data = weight.data.float()
    with pytest.raises(ValueError, match=r"LlamaForCausalLM does not run in torch.bfloat16"):
        require_runs(model, torch.bfloat16)
    require_runs(model, torch.float32)  # not tried
