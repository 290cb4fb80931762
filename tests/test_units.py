"""Heads, neurons and experts of every architecture: they add up, and to the plain model's logit."""

import pytest
import torch

import residual_stream as rs
from residual_stream.architectures import (
    CONFIGS,
    EXPERTS,
    POST_NORM,
    TOKENS,
    random_hf,
    random_model,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TARGET = 5
READABLE = [name for name in CONFIGS if name != "bert"]
OUTPUTS = ("o_proj", "c_proj", "out_proj", "dense")
FINAL = ("norm", "ln_f", "final_layernorm", "final_layer_norm")
# Mamba has no heads; in GPT-1 every write goes through the norms above it.
HEADED = [name for name in READABLE if name not in ("mamba", "mamba2", "gpt1")]


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


def gain_and_centring(norm):
    """A plain norm's gain, and whether it takes the mean out first."""
    kind = type(norm).__name__
    weight = getattr(norm, "weight", None)
    gain = 1.0 if weight is None else weight  # OLMo's has none
    gain = gain + 1 if kind.startswith(("Gemma", "Qwen3_5")) or kind.endswith("1P") else gain
    return gain, "LayerNorm" in kind


def through_norm(norm, writes, held):
    """Writes behind a plain norm whose divisor is that of what it held in the run."""
    gain, centred = gain_and_centring(norm)
    if centred:
        writes, held = (x - x.mean(-1, keepdim=True) for x in (writes, held))
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", 1e-5))
    return writes * gain / (held.square().mean(-1, keepdim=True) + eps).sqrt()


def head_shares(name, layer):
    """Every head's share in the plain float64 model, its write built whole: ``[head, batch]``."""
    hf = random_hf(name, dtype=torch.float64)
    stack = next(m for m in hf.modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 1)
    block, seen = stack[layer], {}
    output = next(m for n, m in block.named_modules() if "att" in n and n.endswith(OUTPUTS))
    posts = [
        n for n in ("post_attention_layernorm", "post_self_attn_layernorm") if hasattr(block, n)
    ]
    post = getattr(block, posts[-1]) if name in POST_NORM else None
    handles = [output.register_forward_pre_hook(lambda m, a: seen.update(z=a[0][:, -1:]))]
    if post is not None:
        handles.append(post.register_forward_pre_hook(lambda m, a: seen.update(raw=a[0][:, -1:])))
    norms = {n: m for n, m in hf.named_modules() if n.split(".")[-1] in FINAL}
    final = norms[min(norms, key=lambda n: n.count("."))]  # OPT's blocks have one of that name too
    handles.append(final.register_forward_pre_hook(lambda m, a: seen.update(top=a[0][:, -1:])))
    with torch.no_grad():
        hf(TOKENS)
        for handle in handles:
            handle.remove()
        z, n_heads = seen["z"], hf.config.num_attention_heads
        alone = torch.eye(n_heads, dtype=z.dtype).repeat_interleave(z.shape[-1] // n_heads, dim=1)
        writes = torch.stack([output(z * mask) - output(0 * z) for mask in alone])
        if post is not None:
            writes = through_norm(post, writes, seen["raw"])
        writes = writes * getattr(hf.config, "residual_multiplier", 1.0)
        rows = through_norm(final, writes, seen["top"])[:, :, 0]
        unembedding = hf.get_output_embeddings().weight
        column = unembedding[TARGET] - unembedding.mean(0)
        factor = getattr(hf.config, "logit_scale", None) or 1.0
        return rows @ column * factor / getattr(hf.config, "logits_scaling", 1.0)


@pytest.mark.parametrize("name", HEADED)
@pytest.mark.parametrize("layer", [0, -1])
def test_a_heads_share_is_that_of_its_whole_write_in_the_plain_model(name, layer):
    if name == "qwen3_5" and layer == 0:
        layer = -1  # the one block with attention
    exact = head_shares(name, layer)
    stream = rs.record(random_model(name), TOKENS)
    split = rs.logit_attribution(stream, TARGET, unit="head")
    label = f"L{layer % len(stream.model.blocks)}H"
    ours = torch.stack([v for v, n in zip(split.values, split.labels, strict=True)
                        if n.startswith(label)])  # fmt: skip
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
