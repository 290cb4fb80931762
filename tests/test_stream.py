"""The ledger: what is recorded is what the model wrote, all of it, in the order written."""

from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

import residual_stream as rs
from handmade import random_model


def tiny(**options):
    torch.manual_seed(0)
    sizes = {"n_layer": 3, "n_embd": 16, "n_head": 2, "vocab_size": 64, "n_positions": 32}
    config = GPT2Config(**{**sizes, "bos_token_id": 0, "eos_token_id": 0, **options})
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return rs.load(model)


@pytest.fixture(scope="module")
def model():
    return tiny()


IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


def plain_hook_stream(hf, tokens, blocks, embedding_modules):
    """Every addition of a Hugging Face model, seen with nothing but PyTorch's forward hooks."""
    seen, handles = [], []

    def keep(module, inputs, output):
        seen.append(output[0] if isinstance(output, tuple) else output)

    modules = [*embedding_modules]
    for block in blocks:
        modules += [block.attn if hasattr(block, "attn") else block.self_attn, block.mlp]
    handles = [module.register_forward_hook(keep) for module in modules]
    tops = []
    handles.append(blocks[-1].register_forward_hook(lambda m, i, o: tops.append(o)))
    with torch.no_grad():
        hf(tokens)
    for handle in handles:
        handle.remove()
    top = tops[0][0] if isinstance(tops[0], tuple) else tops[0]
    return seen, top


def test_labels_name_the_writes_in_the_order_written(model):
    stream = rs.record(model, IDS)
    assert stream.labels == [
        "embed", "pos_embed", "0_attn_out", "0_mlp_out", "1_attn_out", "1_mlp_out",
        "2_attn_out", "2_mlp_out",
    ]  # fmt: skip
    assert stream.layers == [-1, -1, 0, 0, 1, 1, 2, 2]
    assert stream.kinds[2:4] == ["attn", "mlp"]
    assert stream.writes.shape == (8, 2, 6, 16)


def test_the_first_write_is_the_embedding_row(model):
    stream = rs.record(model, IDS)
    assert torch.equal(stream.writes[0], model.W_E[IDS])


def test_the_bench_ledger_agrees_to_the_bit_with_plain_hooks(bench):
    tokens = rs.texts.batch(bench)
    stream = rs.record(bench, tokens)
    inner = bench.original_model.transformer
    seen, top = plain_hook_stream(bench.original_model, tokens, inner.h, [inner.wte, inner.wpe])
    assert len(seen) == len(stream.labels)
    for index, write in enumerate(seen):
        assert torch.equal(stream.writes[index], write.expand_as(stream.writes[index]))
    assert torch.equal(stream.final, top)


@pytest.mark.real
def test_the_real_ledger_agrees_to_the_bit_with_plain_hooks(smollm2):
    tokens = rs.texts.batch(smollm2)[:2, :24]
    stream = rs.record(smollm2, tokens)
    inner = smollm2.original_model.model
    seen, top = plain_hook_stream(
        smollm2.original_model, tokens, inner.layers, [inner.embed_tokens]
    )
    assert len(seen) == len(stream.labels) == 61
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(stream.writes, seen, strict=True))
    assert torch.equal(stream.final, top)


def test_after_is_what_the_model_held_at_every_block(model):
    stream = rs.record(model, IDS)
    names = [f"blocks.{i}.hook_resid_post" for i in range(3)]
    with torch.no_grad():
        _, cache = model.run_with_cache(IDS, names_filter=names)
    for layer, name in enumerate(names):
        assert torch.equal(stream.after(f"{layer}_mlp_out"), cache[name])
    assert torch.equal(stream.after(7), stream.final)
    assert torch.equal(stream.accumulated()[3], stream.after(3))


def test_parallel_blocks_make_one_write_each():
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        num_hidden_layers=3, hidden_size=16, num_attention_heads=2, intermediate_size=32,
        vocab_size=64, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    stream = rs.record(rs.load(GPTNeoXForCausalLM(config)), IDS)
    assert stream.labels == ["embed", "0_parallel_out", "1_parallel_out", "2_parallel_out"]
    assert stream.audit().ok and stream.audit().replay_error == 0


def test_positions_keep_what_was_asked_and_change_nothing(model):
    everything = rs.record(model, IDS)
    for positions, kept in ((-1, [5]), (slice(2, 4), [2, 3]), ([0, -1], [0, 5])):
        stream = rs.record(model, IDS, positions=positions)
        assert stream.positions.tolist() == kept
        assert torch.equal(stream.writes, everything.writes[:, :, kept])
        assert torch.equal(stream.tokens, IDS)
        assert stream.audit().ok


def test_a_write_can_be_asked_for_by_label(model):
    stream = rs.record(model, IDS)
    assert torch.equal(stream.write("1_mlp_out"), stream.writes[5])
    with pytest.raises(KeyError, match=r"no write '9_mlp_out'; there are 8, from 'embed'"):
        stream.write("9_mlp_out")


@pytest.mark.parametrize("k", [-1, 8])
def test_after_a_write_that_does_not_exist_says_which_do(model, k):
    with pytest.raises(
        IndexError, match=rf"k = {k} is out of range; there are 8 writes, so 0 ≤ k ≤ 7"
    ):
        rs.record(model, IDS).after(k)


def test_the_dtype_of_a_bfloat16_model_is_bfloat16():
    model = tiny().to(torch.bfloat16)
    stream = rs.record(model, IDS)
    audit = stream.audit()
    assert stream.writes.dtype == torch.bfloat16
    assert audit.replay_error == 0 and audit.ok
    assert 0 < audit.sum_error <= audit.bound


def test_nothing_is_kept_but_the_writes_and_the_top(model):
    stream = rs.record(model, IDS)
    held = {name: value for name, value in vars(stream).items() if isinstance(value, torch.Tensor)}
    assert set(held) == {"tokens", "positions", "writes", "top"}
    assert stream.writes.untyped_storage().nbytes() == stream.writes.nbytes
    assert stream.top.untyped_storage().nbytes() == stream.top.nbytes
    assert not stream.writes.requires_grad


def test_recording_leaves_the_model_as_it_was(model):
    before = rs.record(model, IDS)
    hooks = sum(len(point.fwd_hooks) for point in model.hook_dict.values())
    assert hooks == 0
    assert torch.is_grad_enabled() and model(IDS).requires_grad
    assert torch.equal(rs.record(model, IDS).writes, before.writes)


def test_hooks_are_removed_when_the_forward_pass_fails(model):
    def fail(value, hook):
        raise RuntimeError("broken on purpose")

    with pytest.raises(RuntimeError, match="on purpose"), model.hooks([("blocks.1.hook_in", fail)]):
        rs.record(model, IDS)
    assert sum(len(point.fwd_hooks) for point in model.hook_dict.values()) == 0
    assert rs.record(model, IDS).audit().ok


def test_a_stream_can_be_recorded_under_an_intervention(model):
    def drop(value, hook):
        return torch.zeros_like(value)

    with model.hooks([("blocks.1.hook_mlp_out", drop)]):
        stream = rs.record(model, IDS)
    assert stream.audit().ok
    assert stream.write("1_mlp_out").abs().max() == 0
    honest = rs.record(model, IDS)
    assert torch.equal(stream.write("1_attn_out"), honest.write("1_attn_out"))
    assert not torch.equal(stream.write("2_attn_out"), honest.write("2_attn_out"))


def test_a_lost_write_opens_the_ledger(model):
    stream = rs.record(model, IDS)
    writes = stream.writes.clone()
    writes[4] = 0
    broken = replace(stream, writes=writes)
    assert not broken.audit().ok and broken.audit().replay_error > 0
    with pytest.raises(rs.LedgerError, match="a write was changed or lost"):
        broken.require_closed()
    stream.require_closed()


def test_entering_is_what_the_model_held_below_every_block(model):
    stream = rs.record(model, IDS)
    for layer in range(3):
        held = rs.run_blocks(model, stream.entering(layer), layer, layer)
        assert torch.equal(held, stream.after(1 + 2 * layer))
    with pytest.raises(IndexError, match="block 3 does not exist; the model has 3"):
        stream.entering(3)


def test_it_says_what_it_is_in_one_line(model):
    assert "8 writes × 2 × 6 positions × 16, float32, cpu" in repr(rs.record(model, IDS))


def test_str_tokens_are_the_tokens_as_text(bench):
    stream = rs.record(bench, "In the beginning")
    assert "".join(stream.str_tokens[0]).endswith("In the beginning")


def test_a_block_that_skips_its_writes_is_refused_by_name():
    model = tiny()
    model.blocks[2].original_component.forward = lambda hidden_states, *args, **kwargs: (
        hidden_states
    )
    with pytest.raises(rs.LedgerError, match=r"block 2 \(GPT2Block\) ended after 6 .*'2_attn_out'"):
        rs.record(model, IDS)


def test_a_model_in_train_mode_is_told_so():
    model = random_model("gpt2")
    model.train()
    with pytest.raises(rs.LedgerError, match=r"in train mode, and its dropout \(.*model.eval\(\)"):
        rs.record(model, [1, 2, 3])
    model.eval()
    assert rs.record(model, [1, 2, 3]).audit().ok
