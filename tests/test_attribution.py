"""Logit attribution: closed form, closure, finite differences, errors, mutations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from handmade import GATE, HEAD_GAINS, NEURON_GAIN, hadamard, ledger_model, random_model
from residual_stream import branches
from residual_stream.attribution import logit_attribution
from residual_stream.audit import LedgerError
from residual_stream.readout import Readout, read_readout
from residual_stream.stream import record

TOKENS = torch.tensor([[1, 5, 9, 2, 4], [7, 7, 3, 11, 0]])
UNITS = ["layer", "sublayer", "head", "neuron"]


def test_every_share_of_the_handmade_model_is_its_closed_form():
    model, token, target = ledger_model(), 3, 6
    stream = record(model, torch.tensor([[token] * 4]))
    row, gain = hadamard(8)[token], torch.linspace(0.5, 2.0, 8)
    W_U = torch.arange(64.0).reshape(8, 8).sin().T
    silu = GATE / (1 + torch.exp(torch.tensor(-GATE)))
    neuron = NEURON_GAIN * silu
    top = 1 + sum(gains[0] for gains in HEAD_GAINS) + 2 * neuron  # the stream is top · row
    d = gain * (W_U[:, target] - W_U.mean(1)) / top
    whole, left, right = row @ d, row[:4] @ d[:4], row[4:] @ d[4:]

    heads = logit_attribution(stream, target, unit="head")
    want = {"embed": whole, "0_mlp_out": neuron * whole, "1_mlp_out": neuron * whole}
    for layer, gains in enumerate(HEAD_GAINS):
        want[f"L{layer}H0"], want[f"L{layer}H1"] = gains[0] * left, gains[1] * right
    got = dict(zip(heads.labels, heads.values[:, 0], strict=True))
    assert got.keys() == want.keys()
    for label, value in want.items():
        assert got[label] == pytest.approx(float(value), abs=1e-5), label

    neurons = logit_attribution(stream, target, unit="neuron")
    for layer in range(2):
        for n in range(8):
            share = neurons.values[neurons.labels.index(f"L{layer}N{n}"), 0]
            assert share == pytest.approx(float(neuron * whole) if n == token else 0.0, abs=1e-5)
    assert heads.logit == pytest.approx(float(top * whole), abs=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("center", [True, False])
def test_parts_and_remainder_are_the_models_own_logit(name, unit, center):
    model = random_model(name)
    logits = model(TOKENS)
    want = logits[..., 6] - (logits.mean(-1) if center else 0.0)
    split = logit_attribution(record(model, TOKENS), 6, unit=unit, position=None, center=center)
    assert torch.allclose(split.logit, want, atol=1e-5)
    assert torch.allclose(split.values.sum(0) + split.remainder, split.logit, atol=1e-5)
    assert split.relative_remainder < 1e-5


def test_biases_are_parts_of_their_own_in_gpt2():
    model = random_model("gpt2")
    stream = record(model, TOKENS)
    heads, neurons = (logit_attribution(stream, 6, unit=unit) for unit in ("head", "neuron"))
    assert {"pos_embed", "L0_attn_bias", "L1_attn_bias", "ln_final_bias"} <= set(heads.labels)
    assert {"L0_mlp_bias", "L1_mlp_bias"} <= set(neurons.labels)
    assert "unembed_bias" not in heads.labels  # GPT-2 has none


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
def test_finer_units_add_up_to_the_coarser(name):
    stream = record(random_model(name), TOKENS)
    layers = logit_attribution(stream, [3, 8], unit="layer")
    for unit in ("sublayer", "head", "neuron"):
        fine = logit_attribution(stream, [3, 8], unit=unit)
        for layer in (0, 1):
            of_layer = torch.tensor([at == layer for at in fine.layers])
            coarse = layers.values[layers.labels.index(f"L{layer}")]
            assert torch.allclose(fine.values[of_layer].sum(0), coarse, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_shares_are_central_differences_of_the_logit_along_each_write_with_frozen_scale(name):
    model = random_model(name, dtype=torch.float64)
    stream = record(model, TOKENS)
    readout, target, step = read_readout(model), 6, 1e-3
    frozen = readout.sigma(stream.top)

    def logit(top):
        x = top - top.mean(-1, keepdim=True) if readout.centred else top
        x = x / frozen[..., None] * readout.gain + (0 if readout.bias is None else readout.bias)
        out = x @ readout.W_U
        return (out[..., target] - out.mean(-1))[:, -1]

    split = logit_attribution(stream, target)
    for label, write in zip(stream.labels, stream.writes, strict=True):
        slope = (logit(stream.top + step * write) - logit(stream.top - step * write)) / (2 * step)
        share = split.values[split.labels.index(label)]
        assert torch.allclose(share, slope, atol=1e-9), label


def test_targets_as_id_list_tensor_per_position_and_difference_agree():
    stream = record(random_model("llama"), TOKENS)
    rows = logit_attribution(stream, [3, 8])
    assert torch.equal(rows.values, logit_attribution(stream, torch.tensor([3, 8])).values)
    each = logit_attribution(stream, torch.tensor([[1, 2], [3, 4]]), position=slice(-2, None))
    assert each.values.shape[1:] == (2, 2)
    one = logit_attribution(stream, 2, position=-1)
    assert torch.allclose(each.values[:, 0, 1], one.values[:, 0], atol=1e-6)
    difference = logit_attribution(stream, 3, versus=8)
    apart = logit_attribution(stream, 3).values - logit_attribution(stream, 8).values
    assert torch.allclose(difference.values, apart, atol=1e-5)


def test_a_stream_that_kept_some_positions_gives_the_same():
    model = random_model("llama")
    some, all_kept = record(model, TOKENS, positions=[1, -1]), record(model, TOKENS)
    for unit in UNITS:
        for position in (1, -1, 4):
            got = logit_attribution(some, 6, unit=unit, position=position)
            want = logit_attribution(all_kept, 6, unit=unit, position=position)
            assert torch.allclose(got.values, want.values, atol=1e-6)


def test_grouped_heads_and_batches_are_not_mixed_up():
    model = random_model("llama")
    together = logit_attribution(record(model, TOKENS), [3, 8], unit="head")
    alone = logit_attribution(record(model, TOKENS[1:]), 8, unit="head")
    assert torch.allclose(together.values[:, 1], alone.values[:, 0], atol=1e-5)


def test_a_soft_cap_is_stated_and_stands_after_the_parts():
    split = logit_attribution(record(random_model("gemma2"), TOKENS), 6, center=False)
    capped = split.soft_cap * torch.tanh(split.logit / split.soft_cap)
    assert torch.allclose(capped, random_model("gemma2")(TOKENS)[:, -1, 6], atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
@pytest.mark.parametrize("unit", ["head", "neuron"])
def test_kept_activations_give_what_a_second_run_gives_without_it(name, unit, monkeypatch):
    model = random_model(name)
    targets, where = torch.tensor([[3, 8], [3, 3]]), [4, 1]
    again = logit_attribution(record(model, TOKENS), targets, unit=unit, position=where)
    stream = record(model, TOKENS, units=[unit], positions=[1, 3, 4])
    runs = []
    honest = branches.run_to_top
    monkeypatch.setattr(
        branches, "run_to_top", lambda *args, **options: runs.append(1) or honest(*args, **options)
    )
    kept = logit_attribution(stream, targets, unit=unit, position=where)
    assert kept.labels == again.labels
    assert torch.allclose(kept.values, again.values, atol=1e-6)
    # A parallel block's write is both branches' sum, so it runs all the same.
    assert len(runs) == (1 if name == "neox" else 0)


def test_a_stream_keeps_no_activations_unless_asked_and_only_those_asked_for():
    model = random_model("llama")
    assert record(model, TOKENS).activations == {}
    heads = record(model, TOKENS, units=["head"], positions=-1).activations
    assert list(heads) == ["blocks.0.attn.hook_z", "blocks.1.attn.hook_z"]
    assert all(z.shape[:2] == (2, 1) for z in heads.values())
    assert len(record(model, TOKENS, units=["head", "neuron"]).activations) == 4


@pytest.mark.parametrize("units", ["head", ["heads"], ["layer"]])
def test_units_to_keep_are_a_list_of_head_and_neuron(units):
    with pytest.raises(ValueError, match=r"record: units = .*; pass a list .* 'head' and 'neuron'"):
        record(random_model("llama"), TOKENS, units=units)


def test_a_split_under_an_intervention_needs_its_hooks_only_while_recording():
    model = random_model("llama")
    double = [("blocks.0.attn.hook_z", lambda z, hook: 2 * z)]
    with model.hooks(fwd_hooks=double):
        stream = record(model, TOKENS, units=["head"])
        inside = logit_attribution(record(model, TOKENS), 6, unit="head")
    assert torch.allclose(logit_attribution(stream, 6, unit="head").values, inside.values)


def test_every_place_is_projected_on_its_own_target_though_each_is_pulled_back_once():
    stream = record(random_model("llama"), TOKENS)
    targets = torch.tensor([[3, 8, 3, 3, 5], [8, 5, 5, 3, 0]])
    other = torch.tensor([[1, 2, 1, 4, 1], [2, 1, 4, 1, 1]])
    for unit in UNITS:
        together = logit_attribution(stream, targets, unit=unit, versus=other, position=None)
        for b, p in ((0, 0), (0, 3), (1, 0), (1, 4)):
            alone = logit_attribution(
                stream, int(targets[b, p]), unit=unit, versus=int(other[b, p]), position=p
            )
            assert torch.allclose(together.values[:, b, p], alone.values[:, b], atol=1e-5)


def test_a_transform_of_the_unembedding_added_later_is_refused():
    model = random_model("llama")
    stream = record(model, TOKENS)
    logit_attribution(stream, 6)
    logit_attribution(stream, 3)  # once found right, it is not taken for right for ever
    hook = model.unembed.register_forward_hook(lambda module, args, out: 1.1 * out)
    with pytest.raises(LedgerError, match=r"own unembedding gives a logit of .*, its weights give"):
        logit_attribution(stream, 6)
    hook.remove()


def test_an_unembedding_changed_past_the_version_counters_is_refused():
    model = random_model("gpt2")
    stream = record(model, TOKENS)
    logit_attribution(stream, 6)
    weight = model.unembed.original_component.weight
    version = weight._version
    weight.data.add_(torch.linspace(0.0, 3.0, len(weight))[:, None])  # moves the mean
    assert weight._version == version
    with pytest.raises(LedgerError, match=r"own unembedding gives a logit of"):
        logit_attribution(stream, 6)


def test_an_unembedding_whose_forward_was_replaced_is_refused():
    model = random_model("llama")
    stream = record(model, TOKENS)
    logit_attribution(stream, 6)
    linear = model.unembed.original_component
    own = linear.forward
    linear.forward = lambda x: 1.1 * own(x)
    with pytest.raises(LedgerError, match=r"own unembedding gives a logit of"):
        logit_attribution(stream, 6)


@pytest.mark.parametrize(
    ("unit", "branch", "other"), [("head", "self_attn", "neuron"), ("neuron", "mlp", "head")]
)
def test_a_branch_that_is_not_its_parts_through_its_output_weights_is_refused_by_block(
    unit, branch, other
):
    model = random_model("llama")
    inner = getattr(model.blocks[0].original_component, branch).original_component
    output = inner.o_proj if branch == "self_attn" else inner.down_proj
    output.register_forward_hook(lambda module, inputs, output: output.roll(1, -1))
    stream = record(model, TOKENS)
    with pytest.raises(LedgerError, match=r"in block 0 \(LlamaDecoderLayer\) the parts") as e:
        logit_attribution(stream, 6, unit=unit)
    assert str(e.value).endswith(f"unit='layer', unit='sublayer', unit='{other}'")


def test_mutation_a_readout_without_gain_is_refused(monkeypatch):
    stream = record(random_model("llama"), TOKENS)
    honest = Readout.direction

    def without_gain(self, ids, **options):
        flat = dataclasses.replace(self, gain=torch.ones_like(self.gain))
        return honest(flat, ids, **options)

    monkeypatch.setattr(Readout, "direction", without_gain)
    with pytest.raises(LedgerError, match="the parts add up to"):
        logit_attribution(stream, 6)


def test_mutation_a_dropped_write_is_refused_in_the_audits_words():
    stream = record(random_model("llama"), TOKENS)
    writes = stream.writes.clone()
    writes[2] = 0
    with pytest.raises(LedgerError, match="a write was changed or lost"):
        logit_attribution(dataclasses.replace(stream, writes=writes), 6)


def test_mutation_weights_changed_after_recording_are_refused_with_kept_activations_too():
    model = random_model("llama")
    stream = record(model, TOKENS, units=["head"])
    with torch.no_grad():
        model.blocks[1].attn.W_O.mul_(1.5)
    with pytest.raises(LedgerError, match=r"block 1 .*have changed since the stream was recorded"):
        logit_attribution(stream, 6, unit="head")


def test_mutation_weights_changed_after_recording_are_refused():
    model = random_model("llama")
    stream = record(model, TOKENS)
    with torch.no_grad():
        model.blocks[1].attn.W_O.mul_(1.5)
    with pytest.raises(LedgerError, match="no longer runs as it did when the stream was recorded"):
        logit_attribution(stream, 6, unit="head")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"unit": "circuit"}, ValueError, r"unit 'circuit' is not known; pass one of 'layer'"),
        ({"targets": 23}, ValueError, r"target id 23 is outside the vocabulary; ids run from 0"),
        ({"targets": -1}, ValueError, r"target id -1 is outside the vocabulary"),
        ({"targets": [1, 2, 3]}, ValueError, r"3 targets for 2 batch rows; pass one target for"),
        ({"targets": " dog"}, ValueError, r"target ' dog' is text, but the model has no tokenizer"),
        ({"targets": torch.zeros(2, 2).long()}, ValueError, r"shape \(2, 2\); pass \[batch\]"),
        ({"targets": torch.zeros(2)}, TypeError, r"target ids are integers; got a torch.float32"),
        ({"position": 5}, IndexError, r"position 5 is outside the text; it has 5 tokens"),
        ({"position": 2}, IndexError, r"the stream has not kept position 2; it holds 4 of 5"),
    ],
)
def test_wrong_input_says_what_was_given_and_what_is_allowed(options, error, message):
    stream = record(random_model("llama"), TOKENS, positions=[0, 1, 3, 4])
    options = {"targets": 6, **options}
    with pytest.raises(error, match=f"logit_attribution: .*{message}"):
        logit_attribution(stream, options.pop("targets"), **options)


def test_results_print_in_one_line_and_as_a_table():
    split = logit_attribution(record(random_model("llama"), TOKENS[:1]), 6, unit="neuron")
    assert repr(split).startswith("Attribution(neuron: 51 parts × 1 place, largest remainder")
    assert "**logit**" in split._repr_markdown_()
    assert len(split.to_frame()) == 51
    assert split.top(3)["logits"].abs().is_monotonic_decreasing


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_the_real_model_closes_over_a_hundred_tokens_and_more(smollm2, unit):
    from residual_stream import texts

    stream = record(smollm2, texts.batch(smollm2)[:2])
    split = logit_attribution(stream, stream.tokens[:, 1:], unit=unit, position=slice(0, -1))
    assert split.logit.numel() >= 100
    assert float((split.remainder.abs() / split.logit.abs()).max()) <= 1e-4


@pytest.mark.parametrize("unit", UNITS)
def test_the_bench_model_closes_over_a_hundred_tokens(bench, unit):
    tokens = torch.randint(bench.cfg.d_vocab, (2, 51), generator=torch.manual_seed(0))
    stream = record(bench, tokens)
    split = logit_attribution(stream, tokens[:, 1:], unit=unit, position=slice(0, -1))
    assert split.logit.numel() >= 100
    assert split.relative_remainder <= 1e-4


@pytest.mark.real
def test_a_text_of_several_tokens_is_refused_with_its_tokens(smollm2):
    stream = record(smollm2, "The quick brown fox", positions=-1)
    expected = (
        "logit_attribution: target \" wonderful day\" is 2 tokens (' wonderful', ' day'); "
        "pass one token, an id, or one per batch row"
    )
    with pytest.raises(ValueError) as caught:
        logit_attribution(stream, " wonderful day")
    assert str(caught.value) == expected


def test_a_numpy_target_is_a_target(bench):
    stream = record(bench, [[1, 5, 9], [2, 4, 7]])
    plain = logit_attribution(stream, [6, 3])
    assert torch.equal(logit_attribution(stream, list(np.array([6, 3]))).values, plain.values)
    assert torch.equal(logit_attribution(stream, np.int64(6)).values[:, 0], plain.values[:, 0])


def test_a_numpy_position_is_a_position(bench):
    stream = record(bench, "In the beginning God")
    ours, numpys = (logit_attribution(stream, 5, position=p) for p in (-1, np.int64(-1)))
    assert numpys.values.shape == ours.values.shape and torch.equal(numpys.values, ours.values)
