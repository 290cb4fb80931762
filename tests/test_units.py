"""Heads, neurons and experts of every architecture: they add up, and to the plain model's logit."""

import pytest
import torch

import residual_stream as rs
from residual_stream.architectures import (
    CONFIGS,
    EXPERTS,
    POST_NORM,
    SCALED,
    TOKENS,
    random_hf,
    random_model,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TARGET = 5
READABLE = [name for name in CONFIGS if name != "bert"]
OUTPUTS = ("o_proj", "c_proj", "out_proj", "dense")


@pytest.fixture(scope="module", params=READABLE)
def architecture(request):
    return request.param, rs.record(random_model(request.param), TOKENS)


@pytest.fixture(scope="module")
def plain_logits():
    """Logits of the plain model in float64, centred, by architecture."""

    def logits(name):
        hf = random_hf(name, dtype=torch.float64)
        with torch.no_grad():
            logits = hf(TOKENS).logits[:, -1]
        cap = getattr(hf.config, "final_logit_softcapping", None)
        logits = cap * torch.atanh(logits / cap) if cap else logits
        return logits - logits.mean(-1, keepdim=True)

    return logits


@pytest.mark.parametrize("unit", ["layer", "sublayer", "head"])
def test_the_parts_add_up_to_the_plain_models_logit(architecture, unit, plain_logits):
    name, stream = architecture
    split = rs.logit_attribution(stream, TARGET, unit=unit)
    assert split.relative_remainder < 1e-5
    exact = plain_logits(name)
    error = (split.values.double().sum(0) - exact[:, TARGET]).abs().max()
    assert float(error / exact.std()) < 1e-4


@pytest.mark.parametrize("name", sorted(set(READABLE) - set(EXPERTS)))
def test_neurons_add_up(name):
    split = rs.logit_attribution(rs.record(random_model(name), TOKENS), TARGET, unit="neuron")
    assert split.relative_remainder < 1e-5


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_add_up_and_those_not_chosen_write_nothing(name):
    stream = rs.record(random_model(name), TOKENS)
    split = rs.logit_attribution(stream, TARGET, unit="expert", position=None)
    assert split.relative_remainder < 1e-5
    experts = [
        i for i, kind in enumerate(split.kinds) if kind == "expert" and "E" in split.labels[i]
    ]
    first = split.layers[experts[0]]
    chosen = torch.stack([split.values[i] != 0 for i in experts if split.layers[i] == first])
    assert (chosen.sum(0) == stream.model.original_model.config.num_experts_per_tok).all()


@pytest.mark.parametrize("name", EXPERTS)
def test_the_neurons_of_a_mixture_are_refused_and_experts_are_offered(name):
    stream = rs.record(random_model(name), TOKENS)
    with pytest.raises(rs.LedgerError, match=r"block \d's mlp branch .* unit='expert'"):
        rs.logit_attribution(stream, TARGET, unit="neuron")


def test_a_model_without_experts_is_told_what_it_has():
    with pytest.raises(rs.LedgerError, match="no block of this model has experts; allowed are"):
        rs.logit_attribution(rs.record(random_model("llama"), TOKENS), TARGET, unit="expert")


def test_a_shared_expert_behind_a_gate_is_a_part():
    stream = rs.record(random_model("qwen2_moe"), TOKENS)
    split = rs.logit_attribution(stream, TARGET, unit="expert")
    assert "L0_shared" in split.labels and split.relative_remainder < 1e-5


def test_an_encoder_is_recorded_but_its_logits_are_refused():
    stream = rs.record(random_model("bert"), TOKENS)
    assert stream.audit().ok
    with pytest.raises(rs.ReadoutError, match="BertForMaskedLM has a head of its own between"):
        rs.logit_attribution(stream, TARGET)


def head_writes(name, layer):
    """Every head's write in the plain model in float64, built whole: ``[head, batch, d_model]``."""
    hf = random_hf(name, dtype=torch.float64)
    stack = next(m for m in hf.modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 1)
    block, seen = stack[layer], {}
    output = next(
        m for n, m in block.named_modules()
        if "att" in n and n.endswith(OUTPUTS) and isinstance(m, torch.nn.Linear)
    )  # fmt: skip
    posts = [
        n for n in ("post_attention_layernorm", "post_self_attn_layernorm") if hasattr(block, n)
    ]
    post = getattr(block, posts[-1]) if name in POST_NORM else None
    handles = [output.register_forward_pre_hook(lambda m, a: seen.update(z=a[0][:, -1]))]
    if post is not None:
        handles.append(post.register_forward_pre_hook(lambda m, a: seen.update(raw=a[0][:, -1])))
    final = next(m for n, m in hf.named_modules() if n.split(".")[-1] in ("norm", "ln_f"))
    handles.append(final.register_forward_pre_hook(lambda m, a: seen.update(top=a[0][:, -1])))
    with torch.no_grad():
        hf(TOKENS)
        n_heads = hf.config.num_attention_heads
        z = seen["z"].unflatten(-1, (n_heads, -1))  # [batch, head, d_head]
        weight = output.weight.unflatten(-1, (n_heads, -1))  # [d_model, head, d_head]
        writes = torch.einsum("bhz,dhz->hbd", z, weight)
        if post is not None:  # a norm on the branch: its divisor is that of the whole branch
            gain = 1 + post.weight if name.startswith("gemma") else post.weight
            eps = getattr(post, "variance_epsilon", getattr(post, "eps", None))
            writes = writes * gain / (seen["raw"].square().mean(-1, keepdim=True) + eps).sqrt()
        writes = writes * getattr(hf.config, "residual_multiplier", 1.0)
        gain = 1 + final.weight if name.startswith("gemma") else final.weight
        eps = getattr(final, "variance_epsilon", getattr(final, "eps", None))
        sigma = (seen["top"].square().mean(-1, keepdim=True) + eps).sqrt()
        column = hf.lm_head.weight[TARGET] - hf.lm_head.weight.mean(0)
        scale = 1 / getattr(hf.config, "logits_scaling", 1.0)
        return (writes * gain / sigma) @ column * scale


@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral", "phi3", *POST_NORM, *SCALED])
@pytest.mark.parametrize("layer", [0, 2])
def test_a_heads_share_is_that_of_its_whole_write_in_the_plain_model(name, layer):
    exact = head_writes(name, layer)
    split = rs.logit_attribution(rs.record(random_model(name), TOKENS), TARGET, unit="head")
    ours = torch.stack([split.values[i] for i, label in enumerate(split.labels)
                        if label.startswith(f"L{layer}H")])  # fmt: skip
    assert torch.allclose(ours.double(), exact, atol=1e-5 * float(exact.abs().max().clamp(min=1)))


def test_composition_takes_the_blocks_with_attention_and_refuses_latent_projections():
    scores = rs.composition_scores(random_model("qwen3_5"), "K")  # three linear ones, one attention
    assert scores.shape == (4, 4, 4, 4) and not scores.any()
    with pytest.raises(ValueError, match="block 0 has no attention, nor has any of 3 blocks"):
        rs.composition_scores(random_model("mamba"), "K")
    with pytest.raises(ValueError, match=r"block 0 \(DeepseekV3Attention\) has no W_V: a norm"):
        rs.composition_scores(random_model("deepseek_v3"), "K")


def test_a_block_without_heads_has_none_to_ablate():
    stream = rs.record(random_model("qwen3_5"), TOKENS)
    with pytest.raises(ValueError, match=r"block 0 \(Qwen3_5DecoderLayer\) has no attention heads"):
        rs.ablate_heads(stream, [(0, 1)])
    assert not torch.equal(rs.ablate_heads(stream, [(3, 1)]), stream.top)


@pytest.mark.parametrize(
    ("name", "between"),
    [("gemma2", "norm on the attention"), ("granite", "factor"), ("gpt1", "norm on the stream")],
)
def test_self_repair_refuses_what_stands_between_a_head_and_the_stream(name, between):
    stream = rs.record(random_model(name), TOKENS)
    with pytest.raises(rs.LedgerError, match=rf"in block 1 .* there is a {between}"):
        rs.self_repair(stream, [(1, 0)], TARGET)
