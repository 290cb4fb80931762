"""Deleting a layer equals a full run with its writes at zero; orders are what they say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import residual_stream as rs
from handmade import ledger_model, random_model
from residual_stream import architectures
from residual_stream.deletion import delete_layers, reorder_layers

TOKENS = torch.tensor([[1, 5, 9, 2, 4, 8], [7, 7, 3, 11, 0, 6]])
BRANCHES = {"layer": ("attn", "mlp"), "attn": ("attn",), "mlp": ("mlp",)}


def by_full_runs(model, tokens, what, where=slice(None), read=slice(1, None)):
    """The same three numbers with every layer's writes zeroed in a run of the whole model."""

    def nothing(value, hook):
        value = value.clone()
        value[:, where] = 0
        return value

    found = []
    with torch.no_grad():
        clean = model(tokens).double()
        logp = clean.log_softmax(-1)
        for layer in range(len(model.blocks)):
            hooks = [(f"blocks.{layer}.hook_{b}_out", nothing) for b in BRANCHES[what]]
            with model.hooks(fwd_hooks=hooks):
                logq = model(tokens).double().log_softmax(-1)
            kept = (logq.argmax(-1) == logp.argmax(-1)).double()[:, read]
            kl = (logp.exp() * (logp - logq)).sum(-1)[:, read]
            change = F.nll_loss(logq[:, :-1].mT, tokens[:, 1:], reduction="none")
            change = change - F.nll_loss(logp[:, :-1].mT, tokens[:, 1:], reduction="none")
            found.append(torch.stack([kept.mean(), kl.mean(), change[:, read].mean()]))
    return torch.stack(found, dim=1)


def numbers(runs):
    return torch.stack([runs.top1_kept, runs.kl, runs.loss_change]).double()


@pytest.mark.parametrize("what", BRANCHES)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "cohere"])
def test_a_deletion_equals_the_full_run_without_the_writes(name, what):
    model = random_model(name)
    got = numbers(delete_layers(model, TOKENS, what=what))
    assert torch.allclose(got, by_full_runs(model, TOKENS, what), atol=1e-5)
    assert float(got[1].min()) > 1e-3  # every layer of a random model matters


@pytest.mark.parametrize("what", BRANCHES)
@pytest.mark.parametrize("where", [0, slice(1, None), [2, -1]])
def test_a_deletion_at_some_positions_leaves_the_others_their_writes(what, where):
    model = random_model("llama")
    got = numbers(delete_layers(model, TOKENS, what=what, positions=where))
    assert torch.allclose(got, by_full_runs(model, TOKENS, what, where), atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 4, 100])
def test_the_rows_at_once_change_no_number(rows):
    model = random_model("gpt2")
    got = numbers(delete_layers(model, TOKENS, rows_at_once=rows))
    assert torch.allclose(got, numbers(delete_layers(model, TOKENS)), atol=1e-6)


def test_reading_is_a_matter_of_the_positions_asked_for():
    model = random_model("llama")
    everywhere = delete_layers(model, TOKENS, read=None)
    assert everywhere.kl_at.shape == (2, 2, 6) and everywhere.loss_change_at.shape == (2, 2, 5)
    after_first = delete_layers(model, TOKENS)
    assert torch.allclose(everywhere.kl_at[:, :, 1:], after_first.kl_at, atol=1e-6)
    assert after_first.positions.tolist() == [1, 2, 3, 4, 5]


def test_deleting_a_layer_that_writes_nothing_loses_nothing():
    model = ledger_model()
    with torch.no_grad():
        model.original_model.model.layers[1].self_attn.o_proj.weight.zero_()
        model.original_model.model.layers[1].mlp.down_proj.weight.zero_()
    runs = delete_layers(model, torch.tensor([[1, 2, 3, 4]]))
    assert float(runs.top1_kept[1]) == 1.0
    assert float(runs.kl[1]) == pytest.approx(0.0, abs=1e-6)


def test_an_order_is_run_as_it_stands():
    model = random_model("gpt2")
    runs = reorder_layers(model, TOKENS, [[0, 1], [1], [0], [1, 0], []])
    without = delete_layers(model, TOKENS)
    assert float(runs.kl[0]) == pytest.approx(0.0, abs=1e-6)
    assert torch.allclose(runs.kl[1:3], without.kl, atol=1e-5)
    assert float((runs.kl[3] - runs.kl[0]).abs()) > 1e-3
    assert runs.runs[3] == (1, 0)


def test_a_swap_equals_a_model_whose_blocks_are_swapped():
    model, tokens = random_model("gpt2"), TOKENS
    runs = reorder_layers(model, tokens, [[1, 0]])
    with torch.no_grad():
        logp = model(tokens).double().log_softmax(-1)
        swapped = random_model("gpt2")
        layers = swapped.original_model.transformer.h
        state = [{k: v.clone() for k, v in layer.state_dict().items()} for layer in layers]
        layers[0].load_state_dict(state[1])
        layers[1].load_state_dict(state[0])
        logq = swapped(tokens).double().log_softmax(-1)
    kl = (logp.exp() * (logp - logq)).sum(-1)[:, 1:]
    assert torch.allclose(runs.kl_at[0].double(), kl, atol=1e-5)


def test_the_result_says_what_it_is():
    runs = delete_layers(random_model("gpt2"), TOKENS, what="mlp")
    assert repr(runs).startswith("Departure(without mlp: 2 runs × 10 places; median top-1 kept ")
    assert list(runs.to_frame().columns) == ["run", "top-1 kept", "KL", "loss change"]
    assert runs._repr_markdown_().count("\n") == 3


def test_wrong_questions_are_refused():
    model = random_model("gpt2")
    with pytest.raises(ValueError, match=r"what = 'head' is not known; pass 'layer', 'attn'"):
        delete_layers(model, TOKENS, what="head")
    with pytest.raises(ValueError, match="there is no next token to predict"):
        delete_layers(model, TOKENS[:, :2])
    with pytest.raises(IndexError, match="delete_layers: position 9 is outside the text"):
        delete_layers(model, TOKENS, positions=9)
    with pytest.raises(ValueError, match=r"block 0 .* has no mlp branch"):
        delete_layers(rs.load("induction"), TOKENS, what="mlp")
    with pytest.raises(ValueError, match="reorder_layers: block 2 does not exist; the model has 2"):
        reorder_layers(model, TOKENS, [[0, 2]])
    with pytest.raises(ValueError, match="got no orders"):
        reorder_layers(model, TOKENS, [])


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("what", BRANCHES)
def test_the_real_model_loses_what_full_runs_say_it_loses(smollm2, what):
    tokens = rs.texts.batch(smollm2, length=12)[:2]
    got = numbers(delete_layers(smollm2, tokens, what=what))
    assert torch.allclose(got, by_full_runs(smollm2, tokens, what), atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", [name for name in architectures.CONFIGS if name != "bert"])
def test_deleting_a_branch_of_any_architecture_is_a_full_run_in_which_it_writes_nothing(name):
    model, tokens = architectures.random_model(name), architectures.TOKENS
    stream = rs.record(model, tokens)
    readout = rs.read_readout(model)
    kinds = {w.kind for w in stream.wiring.block_writes}
    for what in ("attn", "mlp"):
        if what == "mlp" and not kinds & {"mlp", "parallel"}:
            continue
        deleted = rs.delete_layers(model, tokens, what=what)
        wanted = [w for w in stream.wiring.writes if w.layer == 1]
        write = wanted[-1] if what == "mlp" else wanted[0]
        point = write.hooks[-1 if what == "mlp" else 0]
        with model.hooks([(point, lambda value, hook: torch.zeros_like(value))]):
            top = rs.run_to_top(model, tokens)
        said = rs.own_logits(model, readout, top)[:, 1:]
        intact = rs.own_logits(model, readout, stream.top)[:, 1:]
        kept = (said.argmax(-1) == intact.argmax(-1)).float().mean()
        assert float(deleted.top1_kept[1]) == pytest.approx(float(kept))
        assert not torch.equal(said, intact)


def test_a_stream_that_is_finer_than_its_embedding_can_lose_a_block():
    model = architectures.random_model("mamba", dtype=torch.bfloat16)
    block, mixer = (delete_layers(model, TOKENS, what=what) for what in ("layer", "attn"))
    assert torch.equal(block.kl, mixer.kl) and bool((block.kl > 0).all())
