"""Attention heads: hand-made patterns, eigenvalues in closed form, ablation against full runs."""

from __future__ import annotations

import pytest
import torch

from handmade import N_TOKEN, induction_model, ledger_model, random_model
from residual_stream import architectures
from residual_stream.ablation import ablate_heads, self_repair
from residual_stream.attribution import logit_attribution
from residual_stream.audit import LedgerError
from residual_stream.heads import (
    copying_scores,
    head_scores,
    ov_eigenvalues,
    repeated_random_tokens,
)
from residual_stream.rerun import run_to_top
from residual_stream.stream import record

TOKENS = torch.tensor([[1, 5, 9, 2, 4], [7, 7, 3, 11, 0]])


def test_repeated_tokens_repeat_and_differ_within_a_copy():
    tokens = repeated_random_tokens(induction_model(), length=10, batch=3, seed=1)
    assert tokens.shape == (3, 20)
    assert torch.equal(tokens[:, :10], tokens[:, 10:])
    assert all(len(set(row.tolist())) == 10 for row in tokens[:, :10])
    assert not torch.equal(tokens[0], tokens[1])


def test_too_long_a_copy_says_what_fits():
    with pytest.raises(ValueError, match=r"length 13 makes 26 tokens; the model reads 24"):
        repeated_random_tokens(induction_model(), length=13)


def test_handmade_heads_score_what_they_were_made_for():
    scores = head_scores(induction_model(), length=N_TOKEN - 1, batch=3)
    assert scores.previous[0, 0] == pytest.approx(1.0, abs=1e-3)
    # The duplicate head finds its token twice: where it stands and one copy before.
    assert scores.duplicate[0, 1] == pytest.approx(0.5, abs=1e-3)
    # One query of eleven sees its token as "previous" twice: position 0 has nothing before it,
    # so there the first head copies the token itself.
    assert scores.induction[1, 0] == pytest.approx(10.5 / 11, abs=1e-3)
    assert scores.top("induction", 1) == [(1, 0)]
    assert scores.previous[1, 1] < 0.2  # empty: uniform attention


def test_taking_out_the_previous_token_head_ends_induction_and_the_other_head_does_not():
    model = induction_model()
    tokens = repeated_random_tokens(model, length=N_TOKEN - 1, batch=3)
    stream = record(model, tokens)
    found = {}

    def look(pattern, hook):
        query = torch.arange(N_TOKEN, tokens.shape[1])
        found["induction"] = float(pattern[:, 0, query, query - N_TOKEN + 2].mean())

    for head in ((0, 0), (0, 1)):
        ablate_heads(stream, [head], fwd_hooks=[("blocks.1.attn.hook_pattern", look)])
        found[head] = found["induction"]
    assert found[0, 1] > 0.98 and found[0, 0] < 0.2


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
@pytest.mark.parametrize("heads", [[(0, 1)], [(1, 3)], [(0, 0), (0, 2), (1, 1)]])
@pytest.mark.parametrize("how", ["zero", "mean"])
def test_ablation_equals_a_full_run_with_a_hook(name, heads, how):
    model = random_model(name)
    clean = {}

    def keep(z, hook):
        clean[hook.name] = z.clone()

    def take_out(z, hook):
        z = z.clone()
        for layer, head in heads:
            if hook.name.startswith(f"blocks.{layer}."):
                mean = clean[hook.name][:, 1:, head].mean((0, 1))
                z[:, 1:, head] = mean if how == "mean" else 0.0
        return z

    points = [f"blocks.{layer}.attn.hook_z" for layer in (0, 1)]
    run_to_top(model, TOKENS, fwd_hooks=[(point, keep) for point in points])
    full = run_to_top(model, TOKENS, fwd_hooks=[(point, take_out) for point in points])
    got = ablate_heads(record(model, TOKENS), heads, how=how)
    # Zeroing is the same to the bit; a mean may be summed in another order.
    assert torch.allclose(got, full, atol=0.0 if how == "zero" else 1e-5, rtol=0.0)


def test_self_repair_adds_up_and_its_direct_part_is_the_attribution():
    model = random_model("gpt2", dtype=torch.float64)
    stream = record(model, TOKENS)
    heads = [(layer, head) for layer in (0, 1) for head in range(4)]
    split = self_repair(stream, heads, TOKENS[:, 1:], position=slice(1, None))
    assert float(split.remainder.abs().max()) < 1e-6
    shares = logit_attribution(stream, TOKENS[:, 1:], unit="head", position=slice(1, None))
    rows = [shares.labels.index(f"L{layer}H{head}") for layer, head in heads]
    assert torch.allclose(split.direct, shares.values[rows].float(), atol=1e-6)
    for row, head in enumerate(heads):
        logits = model.unembed(model.ln_final(ablate_heads(stream, [head])))[:, 1:]
        centred = logits - logits.mean(-1, keepdim=True)
        left = centred.gather(-1, TOKENS[:, 1:, None])[..., 0]
        assert torch.allclose(shares.logit - left, split.effect[row].double(), atol=1e-5)


def test_in_the_last_layer_only_the_norm_can_repair_without_an_mlp():
    split = self_repair(record(induction_model(), TOKENS), [(1, 0)], 3)
    assert torch.allclose(split.later, torch.zeros_like(split.later), atol=1e-5)
    assert float(split.norm.abs().max()) > 1e-3


def test_self_repair_of_one_position_equals_that_row_of_all():
    stream = record(random_model("llama"), TOKENS)
    every = self_repair(stream, [(0, 2)], 6)
    last = self_repair(stream, [(0, 2)], 6, position=slice(4, 5))
    assert torch.allclose(every.effect[..., -1:], last.effect, atol=1e-5)
    assert torch.allclose(every.direct[..., -1:], last.direct, atol=1e-5)


@pytest.mark.parametrize(
    ("heads", "options", "message"),
    [
        ([], {}, r"got no heads; pass at least one \(layer, head\)"),
        ([(0, 4)], {}, r"head \(0, 4\) does not exist; the model has 2 layers of 4 heads"),
        ([(-1, 0)], {}, r"head \(-1, 0\) does not exist"),
        ([(0, 0)], {"how": "resample"}, r"how = 'resample' is not known; pass 'zero' or 'mean'"),
    ],
)
def test_wrong_heads_are_refused(heads, options, message):
    with pytest.raises(ValueError, match=f"ablate_heads: {message}"):
        ablate_heads(record(random_model("llama"), TOKENS), heads, **options)


def test_a_stream_with_missing_positions_cannot_be_rerun():
    stream = record(random_model("llama"), TOKENS, positions=-1)
    with pytest.raises(ValueError, match=r"the stream has kept 1 of 5 positions"):
        ablate_heads(stream, [(0, 0)])


def test_ov_eigenvalues_of_the_handmade_copier_are_its_gains():
    # Head (l, h) is its gain times the identity on four coordinates.
    eigenvalues = ov_eigenvalues(ledger_model(), circuit="ov")
    assert torch.allclose(eigenvalues[0].real, torch.ones(2, 4).double())
    assert torch.allclose(eigenvalues[1].real, -0.5 * torch.ones(2, 4).double())
    assert copying_scores(eigenvalues).tolist() == [[1.0, 1.0], [-1.0, -1.0]]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_full_circuit_eigenvalues_are_those_of_the_token_to_logit_matrix(name):
    model = random_model(name)
    block, norm = model.blocks[1], model.ln_final.original_component
    gain = block.ln1.original_component.weight.double()
    value = block.attn.W_V[3 if name == "gpt2" else 1].double()
    W_U = norm.weight.double()[:, None] * model.W_U.double()
    if name == "gpt2":
        W_U = W_U - W_U.mean(0, keepdim=True)
    wide = (model.W_E.double() * gain) @ value @ block.attn.W_O[3].double() @ W_U
    want = torch.linalg.eigvals(wide).abs().sort(descending=True).values[:4]
    got = ov_eigenvalues(model)[1, 3].abs().sort(descending=True).values
    assert torch.allclose(got, want, rtol=1e-4)


def test_an_unknown_circuit_says_what_there_is():
    with pytest.raises(ValueError, match=r"circuit 'qk' is not known; pass 'full' or 'ov'"):
        ov_eigenvalues(random_model("llama"), circuit="qk")


@pytest.mark.real
@pytest.mark.slow
def test_the_real_models_induction_rests_on_the_head_its_weights_point_to(smollm2):
    """A4: the head found by composition score carries induction, look-alikes do not."""
    tokens = repeated_random_tokens(smollm2, length=20, batch=2)
    stream = record(smollm2, tokens)
    query = torch.arange(tokens.shape[1] - 20, tokens.shape[1])
    found = {}

    def look(pattern, hook):
        found["score"] = float(pattern[:, 6, query, query - 19].mean())

    hooks = [("blocks.18.attn.hook_pattern", look)]
    run_to_top(smollm2, tokens, fwd_hooks=hooks)
    clean = found["score"]
    ablate_heads(stream, [(16, 0)], fwd_hooks=hooks)
    without = found["score"]
    ablate_heads(stream, [(11, 1)], fwd_hooks=hooks)
    control = found["score"]
    assert clean > 0.6 and without < 0.5 * clean and control > 0.8 * clean


def test_self_repair_of_heads_whose_output_has_an_adapter_is_refused():
    model = random_model("llama")
    output = model.blocks[1].attn.o.original_component
    output.register_forward_hook(lambda module, args, out: out + 0.1 * args[0])  # as LoRA adds
    stream = record(model, TOKENS)
    self_repair(stream, [(0, 2)], 6)
    with pytest.raises(LedgerError, match=r"self_repair: in block 1 \(LlamaDecoderLayer\) the att"):
        self_repair(stream, [(0, 2), (1, 0)], 6)


@pytest.mark.parametrize("what", ["weight", "hook"])
def test_self_repair_in_a_model_that_has_changed_since_the_recording_is_refused(what):
    model = random_model("llama")
    stream = record(model, TOKENS)
    if what == "weight":
        with torch.no_grad():
            model.blocks[1].mlp.out.original_component.weight.mul_(1.5)
    else:
        model.add_hook("blocks.1.hook_mlp_out", lambda value, hook: 1.5 * value)
    with pytest.raises(LedgerError, match="self_repair: the model no longer runs as it did"):
        self_repair(stream, [(1, 0), (0, 2)], 6)


def test_self_repair_of_a_difference_is_the_difference_of_direct_shares():
    stream = record(random_model("llama"), TOKENS)
    both = self_repair(stream, [(0, 2)], 6, versus=9)
    apart = self_repair(stream, [(0, 2)], 6).direct - self_repair(stream, [(0, 2)], 9).direct
    assert torch.allclose(both.direct, apart, atol=1e-5)
    assert float(both.remainder.abs().max()) < 1e-5


def test_a_block_without_attention_patterns_is_refused_by_name():
    with pytest.raises(ValueError, match=r"block 0 \(MambaBlock\) has no attention pattern"):
        head_scores(architectures.random_model("mamba"), length=4)
