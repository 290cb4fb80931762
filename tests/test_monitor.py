"""The monitor on anybody's modules: it finds their writes, survives their loops, and leaves."""

from __future__ import annotations

import copy
import io
import json

import pytest
import torch
import torch._dynamo.testing
import torch.utils.checkpoint
import transformers
from torch import nn

import residual_stream as rs
from handmade import bridge
from residual_stream.anatomy import AnatomyError
from residual_stream.training import token_losses

VOCAB, LENGTH = 23, 12
_TINY = {"vocab_size": VOCAB, "max_position_embeddings": 48}
_LLAMA = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}
CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(
        n_layer=3, n_head=4, n_embd=16, vocab_size=VOCAB, n_positions=48
    ),
    "llama": lambda: transformers.LlamaConfig(
        **_TINY, **_LLAMA, num_key_value_heads=2, intermediate_size=24
    ),
    "neox": lambda: transformers.GPTNeoXConfig(**_TINY, **_LLAMA, intermediate_size=32),
    "gemma2": lambda: transformers.Gemma2Config(
        **_TINY, **_LLAMA, num_key_value_heads=2, head_dim=8, intermediate_size=24
    ),
    "granite": lambda: transformers.GraniteConfig(
        **_TINY, **_LLAMA, num_key_value_heads=2, intermediate_size=24, residual_multiplier=0.25
    ),
    "opt": lambda: transformers.OPTConfig(
        **_TINY, **_LLAMA, ffn_dim=32, word_embed_proj_dim=16, pad_token_id=1, dropout=0.0
    ),
    "mixtral": lambda: transformers.MixtralConfig(
        **_TINY, **_LLAMA, num_key_value_heads=2, intermediate_size=24, num_local_experts=6
    ),
}


def hugging_face(name, *, seed=0):
    torch.manual_seed(seed)
    config = CONFIGS[name]()
    config._attn_implementation = "eager"
    return transformers.AutoModelForCausalLM.from_config(config)


def ids(rows=4, *, seed=0):
    return torch.randint(VOCAB, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))


def logits(model, tokens):
    out = model(tokens)
    return out if isinstance(out, torch.Tensor) else out.logits


def train_step(model, optimiser, tokens):
    optimiser.zero_grad()
    loss = token_losses(logits(model, tokens).float(), tokens).mean()
    loss.backward()
    optimiser.step()
    return loss


def trained(model, *, steps=3, every=1, **options):
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with rs.StreamMonitor(model, every=every, **options) as monitor:
        for step in range(steps):
            train_step(model, optimiser, ids(seed=step))
            monitor.step()
    return monitor


def is_clean(module):
    """Whether nothing hangs on a module or its parameters."""
    for child in module.modules():
        hooks = (child._forward_hooks, child._forward_pre_hooks, child._backward_hooks)
        if any(hooks) or any("monitor" in name for name in vars(child)):
            return False
    return not any(p._post_accumulate_grad_hooks for p in module.parameters())


class Tiny(nn.Module):
    """A pre-norm block of an MLP alone, or whatever ``join`` makes of it."""

    def __init__(self, width=8, join=None):
        super().__init__()
        self.norm, self.ffn = nn.LayerNorm(width), nn.Linear(width, width)
        self.join = join or (lambda x, y: x + y)

    def forward(self, x):
        return self.join(x, self.ffn(self.norm(x)))


def stack(*joins, width=8):
    blocks = nn.ModuleList(Tiny(width, join) for join in joins)
    return nn.ModuleDict({"embed": nn.Embedding(VOCAB, width), "blocks": blocks})


def run(model):
    x = model["embed"](ids())
    for block in model["blocks"]:
        x = block(x)
    return x


# -- where a stack writes --


@pytest.mark.parametrize("name", CONFIGS)
def test_a_hugging_face_model_is_watched_as_it_is(name):
    monitor = trained(hugging_face(name))
    assert [b.placement for b in monitor.blocks] == ["pre"] * 3
    assert [[b.kind for b in block.branches] for block in monitor.blocks] == [["attn", "mlp"]] * 3
    frame = monitor.to_frame()
    assert frame["step"].unique().tolist() == [1, 2, 3]
    measured = frame[frame["part"] != "stream"].drop(columns="weights_gradient")
    assert bool(measured.notna().all(axis=None))
    assert monitor.findings() == []


def test_a_parallel_block_reads_one_stream_twice_and_a_sequential_one_does_not():
    parallel, sequential = trained(hugging_face("neox")), trained(hugging_face("llama"))
    assert not parallel.blocks[0].branches[1].reads_before
    assert sequential.blocks[0].branches[1].reads_before
    rows = parallel.to_frame().query("layer == 0 and step == 1").set_index("part")
    assert rows["before"]["mlp"] == rows["before"]["attn"]
    assert rows["before"]["attn"] == pytest.approx(rows["norm"]["stream"])


def test_a_sandwich_writes_behind_its_second_norm_and_a_scaled_block_with_its_factor():
    sandwich = trained(hugging_face("gemma2"), steps=1)
    assert [b.path for b in sandwich.blocks[0].branches] == [
        "post_attention_layernorm", "post_feedforward_layernorm",
    ]  # fmt: skip
    model = hugging_face("granite")
    scaled = trained(model, steps=1)
    assert all(branch.scaled for branch in scaled.blocks[0].branches)
    caught = []
    model.model.layers[1].mlp.register_forward_hook(lambda m, a, out: caught.append(out.detach()))
    fresh = hugging_face("granite")
    model.load_state_dict(fresh.state_dict())
    logits(model, ids())
    expected = (0.25 * caught[0][:, 1:]).square().sum(-1).mean().sqrt()
    row = scaled.to_frame().query("layer == 1 and part == 'mlp'")
    assert row["norm"].item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("variant", ["post-LN", "DeepNorm"])
def test_a_post_norm_stack_is_measured_against_what_its_norms_add(variant):
    from residual_stream.blocks import Stack, StackConfig

    model = Stack(StackConfig(variant=variant, n_layers=2, d_model=16, d_vocab=VOCAB))
    monitor = trained(model, steps=1)
    assert [block.placement for block in monitor.blocks] == ["post", "post"]
    alpha = 1.0 if variant == "post-LN" else (2 * 2) ** 0.25
    rows = monitor.to_frame().query("layer == 1").set_index("part")
    assert rows["before"]["attn"] == pytest.approx(alpha * rows["norm"]["stream"], rel=1e-4)


def test_every_variant_whose_stream_is_a_sum_is_watched_and_the_others_are_refused_by_name():
    from residual_stream.blocks import VARIANTS, Stack, StackConfig

    for name, variant in VARIANTS.items():
        model = Stack(StackConfig(variant=name, n_layers=2, d_model=16, d_vocab=VOCAB))
        if variant.sums or name in ("post-LN", "DeepNorm"):
            assert trained(model, steps=1).steps == 1, name
        else:
            with pytest.raises(
                AnatomyError, match=r"block 0 \(blocks\.0, a Block\).*not its input"
            ):
                trained(model, steps=1)
            assert is_clean(model)


def test_torchs_own_encoder_layer_needs_no_names():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with rs.StreamMonitor(encoder) as monitor:
        encoder(torch.randn(3, LENGTH, 16)).square().sum().backward()
        monitor.step()
    assert [block.placement for block in monitor.blocks] == ["post", "post"]
    assert [b.path for b in monitor.blocks[0].branches] == ["dropout1", "dropout2"]


def test_writes_hidden_inside_children_can_be_given_by_name():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=32, hidden_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertModel(config)
    with pytest.raises(AnatomyError, match=r"pass branches="), rs.StreamMonitor(model) as monitor:
        model(ids()).last_hidden_state.sum().backward()
        monitor.step()
    names = {"attn": "attention.output.dropout", "mlp": "output.dropout"}
    with rs.StreamMonitor(model, branches=names) as monitor:
        model(ids()).last_hidden_state.square().sum().backward()
        monitor.step()
    assert [block.placement for block in monitor.blocks] == ["post", "post"]
    assert monitor.blocks[0].branches[0].closing == "attention.output.LayerNorm"


def test_a_bridge_is_watched_and_says_the_same_as_what_it_wraps():
    plain, wrapped = hugging_face("gpt2"), bridge(hugging_face("gpt2"))
    plain.eval()
    wrapped.requires_grad_(True)
    with rs.StreamMonitor(plain) as ours, rs.StreamMonitor(wrapped) as theirs:
        for model, monitor in ((plain, ours), (wrapped, theirs)):
            token_losses(logits(model, ids()), ids()).mean().backward()
            monitor.step()
    a, b = (m.to_frame().drop(columns="part").to_numpy() for m in (ours, theirs))
    torch.testing.assert_close(
        torch.tensor(a), torch.tensor(b), rtol=1e-4, atol=1e-6, equal_nan=True
    )


def test_the_longest_list_is_the_stack_and_experts_inside_blocks_are_not():
    monitor = rs.StreamMonitor(hugging_face("mixtral"))
    assert monitor.n_layers == 3
    monitor.remove()


def test_blocks_can_be_named():
    model = hugging_face("llama")
    for names in ("model.layers", ["model.layers.0", "model.layers.2"]):
        monitor = rs.StreamMonitor(model, blocks=names)
        assert monitor.n_layers == (3 if isinstance(names, str) else 2)
        monitor.remove()


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: nn.Linear(3, 3), {}, "no list of blocks of one class"),
        (
            lambda: nn.ModuleDict({k: nn.ModuleList([Tiny(), Tiny()]) for k in ("a", "b")}),
            {},
            r"2 lists of 2 blocks, \['a', 'b'\]; pass blocks=",
        ),
        (lambda: hugging_face("llama"), {"blocks": "layers"}, "no list of blocks called 'layers'"),
        (lambda: hugging_face("llama"), {"blocks": ["x.0"]}, "no block called 'x.0'"),
        (lambda: hugging_face("llama"), {"every": 0}, "every = 0; pass 1 or more"),
        (lambda: hugging_face("llama"), {"branches": {}}, "branches = {}"),
    ],
)
def test_what_cannot_be_watched_is_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        rs.StreamMonitor(make(), **options)


def test_a_stream_that_is_gated_and_a_branch_that_does_not_exist_are_refused_by_name():
    gated = stack(lambda x, y: x * y.sigmoid())
    with pytest.raises(AnatomyError, match=r"block 0 \(blocks\.0, a Tiny\): its output is not"):
        monitor = rs.StreamMonitor(gated)
        run(gated)
    sound = stack(None)
    with pytest.raises(AnatomyError, match=r"no module 'mlp' ran for branch 'mlp'; .*'ffn'"):
        monitor = rs.StreamMonitor(sound, branches={"mlp": "mlp"})
        run(sound)
    monitor.remove()


def test_a_step_without_a_forward_pass_is_an_error_at_first_and_a_warning_later():
    model = hugging_face("llama")
    monitor = rs.StreamMonitor(model, every=1)
    with torch.no_grad():
        logits(model, ids())
    with pytest.raises(AnatomyError, match="step 1 was to be sampled, but no forward pass"):
        monitor.step()
    assert is_clean(model)
    monitor = rs.StreamMonitor(model, every=1)
    logits(model, ids()).sum().backward()
    monitor.step()
    with pytest.warns(UserWarning, match="step 2 was to be sampled"):
        monitor.step()
    monitor.remove()
    with pytest.raises(ValueError, match="this monitor was removed"):
        monitor.step()


# -- what it measures --


def test_before_a_backward_pass_a_gradient_is_unknown_and_not_zero():
    model = hugging_face("llama")
    with rs.StreamMonitor(model, every=1) as monitor:
        logits(model, ids())
        monitor.step()
    assert monitor.to_frame()["gradient"].isna().all()


def test_the_values_are_those_of_the_tensors():
    model = stack(None, None)
    caught = {}
    with rs.StreamMonitor(model) as monitor:
        x = model["embed"](ids())
        y = model["blocks"][0].ffn(model["blocks"][0].norm(x))
        run(model)[:, 1:].square().sum().backward()
        monitor.step()
    rows = monitor.to_frame().query("layer == 0").set_index("part")
    later, write = x[:, 1:].detach(), y[:, 1:].detach().reshape(-1, 8)
    caught["norm"] = later.square().sum(-1).mean().sqrt()
    caught["first"] = x[:, 0].detach().square().sum(-1).mean().sqrt()
    for name, value in caught.items():
        assert rows[name]["stream"] == pytest.approx(value.item(), rel=1e-5)
    assert rows["norm"]["mlp"] == pytest.approx(
        write.square().sum(-1).mean().sqrt().item(), rel=1e-5
    )
    varies = (write - write.mean(0)).square().sum(-1).mean().sqrt()
    assert rows["varies"]["mlp"] == pytest.approx(varies.item(), rel=1e-5)
    weights = [p.grad.square().sum() for p in model["blocks"][0].parameters()]
    assert rows["weights_gradient"]["stream"] == pytest.approx(
        torch.stack(weights).sum().sqrt().item(), rel=1e-5
    )


def test_the_gradient_is_the_losss_own():
    model = stack(None, None)
    with rs.StreamMonitor(model) as monitor:
        (3.0 * run(model)[:, :, 0]).sum().backward()
        monitor.step()
    top = monitor.to_frame().query("layer == 2")
    assert top["gradient"].item() == pytest.approx(3.0)  # d(3 x_0)/dx has length 3 at every token


def test_lost_is_the_share_of_entries_that_an_addition_leaves_as_they_were():
    model = stack(lambda x, y: x.bfloat16() + (y * 0 + 2.0**-10).bfloat16())
    model = stack(lambda x, y: x + y)
    small = model["blocks"][0].ffn
    with torch.no_grad():
        small.weight.zero_()
        small.bias.fill_(2.0**-10)  # a quarter of bfloat16's step at 1 … 2
    model.bfloat16()
    half = torch.ones(2, LENGTH, 8, dtype=torch.bfloat16)
    half[:, :, :2] = 2.0**-9  # where it is not lost
    half.requires_grad_(True)
    with rs.StreamMonitor(model) as monitor:
        model["blocks"][0](half).sum().backward()
        monitor.step()
    assert monitor.to_frame().query("part == 'mlp'")["lost"].item() == pytest.approx(6 / 8)


def test_a_few_tokens_stand_for_a_long_batch():
    torch.manual_seed(0)
    model = stack(None, None)
    frames = []
    for tokens in (10_000, 40, 5):
        with rs.StreamMonitor(model, tokens=tokens) as monitor:
            run(model).square().sum().backward()
            monitor.step()
        frames.append(monitor.to_frame()["norm"])
    assert frames[1].to_numpy() == pytest.approx(frames[0].to_numpy(), rel=0.3)
    assert bool((frames[2] > 0).all())


# -- loops --


def test_removal_leaves_the_module_as_it_was_to_the_bit():
    model, twin = hugging_face("gpt2"), hugging_face("gpt2")
    model.eval(), twin.eval()
    attributes = {name: set(vars(child)) for name, child in model.named_modules()}
    trained_one = rs.StreamMonitor(model, every=1)
    before = logits(model, ids())
    assert not is_clean(model)
    before.sum().backward()
    trained_one.step()
    trained_one.remove()
    assert is_clean(model)
    assert {name: set(vars(child)) for name, child in model.named_modules()} == attributes
    assert torch.equal(before, logits(twin, ids()))
    assert torch.equal(logits(model, ids()), logits(twin, ids()))


def test_between_samples_nothing_is_on_the_module_and_training_is_the_same_to_the_bit():
    watched, alone = hugging_face("llama"), hugging_face("llama")
    optimisers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (watched, alone)]
    clean = []
    with rs.StreamMonitor(watched, every=4) as monitor:
        for step in range(9):
            clean.append(is_clean(watched))
            for model, optimiser in zip((watched, alone), optimisers, strict=True):
                train_step(model, optimiser, ids(seed=step))
            monitor.step()
    assert clean == [False, True, True, False, True, True, True, False, True]
    assert monitor.to_frame()["step"].unique().tolist() == [1, 4, 8]
    for a, b in zip(watched.parameters(), alone.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_monitor_that_nobody_holds_leaves():
    model = hugging_face("llama")
    monitor = rs.StreamMonitor(model)
    assert not is_clean(model)
    del monitor
    assert is_clean(model)


def test_two_monitors_do_not_disturb_each_other():
    model = hugging_face("llama")
    first, second = rs.StreamMonitor(model, every=1), rs.StreamMonitor(model, every=2)
    for _ in range(2):
        logits(model, ids()).sum().backward()
        first.step(), second.step()
    a, b = first.to_frame(), second.to_frame()
    assert a["norm"].tolist() == b["norm"].tolist()
    first.remove(), second.remove()
    assert is_clean(model)
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_an_error_inside_the_block_takes_the_hooks_off():
    model = hugging_face("llama")
    with pytest.raises(KeyError), rs.StreamMonitor(model):
        raise KeyError
    assert is_clean(model)


def test_several_passes_in_a_step_are_pooled():
    frames = []
    for pieces in (1, 2):
        model = hugging_face("llama")
        with rs.StreamMonitor(model) as monitor:
            for tokens in ids(8).chunk(pieces):
                (token_losses(logits(model, tokens), tokens).mean() / pieces).backward()
            monitor.step()
        frames.append(monitor.to_frame().drop(columns=["part", "varies"]).to_numpy())
    torch.testing.assert_close(
        torch.tensor(frames[0]), torch.tensor(frames[1]), rtol=1e-4, atol=1e-7, equal_nan=True
    )


def test_validation_does_not_count_and_recomputed_passes_do_not_count_twice():
    frames = []
    for extra in (False, True):
        model = hugging_face("llama").train()
        if extra:
            recompute = getattr(model, "activation_checkpointing_enable", None)
            (recompute or model.gradient_checkpointing_enable)({"use_reentrant": False})
        with rs.StreamMonitor(model) as monitor:
            if extra:
                with torch.no_grad():
                    logits(model, ids(7, seed=3))
            token_losses(logits(model, ids()), ids()).mean().backward()
            monitor.step()
        frames.append(monitor.to_frame().drop(columns="part").to_numpy())
    torch.testing.assert_close(
        torch.tensor(frames[0]), torch.tensor(frames[1]), rtol=1e-4, atol=1e-7, equal_nan=True
    )


def test_a_checkpoint_resumes_where_it_stopped():
    def go(steps, *, resume_at=None):
        model = hugging_face("llama")
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        monitor = rs.StreamMonitor(model, every=2)
        for step in range(steps):
            if step == resume_at:
                file = io.BytesIO()
                torch.save([model.state_dict(), optimiser.state_dict(), monitor.state_dict()], file)
                monitor.remove()
                file.seek(0)
                states = torch.load(file, weights_only=True)
                model = hugging_face("llama", seed=9)
                optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
                monitor = rs.StreamMonitor(model, every=2)
                for part, state in zip((model, optimiser, monitor), states, strict=True):
                    part.load_state_dict(state)
            train_step(model, optimiser, ids(seed=step))
            monitor.step()
        monitor.remove()
        return monitor

    whole, resumed = go(9), go(9, resume_at=5)
    assert resumed.steps == 9 and repr(resumed) == repr(whole)
    assert resumed.to_frame().equals(whole.to_frame())
    assert resumed.history.samples[-1].gain_moved.tolist() == [True] * 7


def test_a_state_of_another_stack_or_version_is_refused():
    state = rs.StreamMonitor(hugging_face("llama")).state_dict()
    other = rs.StreamMonitor(hugging_face("gpt2"))
    with pytest.raises(ValueError, match=r"the state is of blocks \['model.layers.0'\]"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="version 7"):
        other.load_state_dict(state | {"version": 7})


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_compiled_module_is_watched_and_its_graph_stays_whole(when):
    torch._dynamo.reset()
    model = hugging_face("llama")
    plain = trained(hugging_face("llama"), steps=5, every=4)
    counter = torch._dynamo.testing.CompileCounter()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    if when == "before":  # compiled and run before anybody watches
        logits(compiled, ids())
    with rs.StreamMonitor(compiled, every=4) as monitor:
        for step in range(5):
            train_step(compiled, optimiser, ids(seed=step))
            monitor.step()
    assert counter.frame_count == 1  # one graph: no break, no second compilation
    assert [b.name for b in monitor.blocks] == [
        "model.layers.0",
        "model.layers.1",
        "model.layers.2",
    ]
    torch.testing.assert_close(
        torch.tensor(monitor.to_frame().drop(columns="part").to_numpy()),
        torch.tensor(plain.to_frame().drop(columns="part").to_numpy()),
        rtol=1e-3, atol=1e-6, equal_nan=True,
    )  # fmt: skip
    assert is_clean(model)
    torch._dynamo.reset()


def test_mixed_precision_is_measured_in_the_streams_own_type():
    model = hugging_face("llama")
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with rs.StreamMonitor(model, every=1) as monitor:
        for step in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = token_losses(logits(model, ids(seed=step)).float(), ids(seed=step)).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            monitor.step()
    assert monitor.history.dtype == "float32"  # autocast keeps the sum in single precision
    assert monitor.findings() == []
    half = trained(hugging_face("llama").bfloat16(), steps=1)
    assert half.history.dtype == "bfloat16"
    assert float(half.to_frame()["lost"].max()) > 0


def test_a_copy_of_a_watched_module_is_not_watched():
    model = hugging_face("llama")
    with rs.StreamMonitor(model) as monitor:
        other = copy.deepcopy(model)
        logits(other, ids(7, seed=5)).sum().backward()
        logits(model, ids()).sum().backward()
        monitor.step()
    alone = hugging_face("llama")
    with rs.StreamMonitor(alone) as reference:
        logits(alone, ids()).sum().backward()
        reference.step()
    assert monitor.to_frame().equals(reference.to_frame())


def test_an_old_run_is_thinned_and_its_ends_are_kept():
    model = stack(None)
    with rs.StreamMonitor(model, every=1, keep=16) as monitor:
        for _ in range(40):
            run(model).sum().backward()
            monitor.step()
    steps = [sample.step for sample in monitor.history.samples]
    assert len(steps) <= 16 and steps[0] == 1 and steps[-8:] == list(range(33, 41))


# -- what it hands out --


def test_exports_hold_every_value_and_every_finding(tmp_path):
    from residual_stream import clinic

    monitor = clinic.train_patient("D", every=10).monitor
    monitor.to_jsonl(tmp_path / "run.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    frame, findings = monitor.to_frame(), monitor.findings()
    assert len(lines) == len(frame) + len(findings)
    assert lines[-1]["finding"] == str(findings[-1])
    assert lines[0]["norm"] == frame["norm"][0] and lines[0]["ratio"] is None

    class Writer:
        def __init__(self):
            self.scalars, self.texts = {}, []

        def add_scalar(self, tag, value, step):
            self.scalars[tag, step] = value

        def add_text(self, tag, text, step):
            self.texts.append((tag, text, step))

    writer = Writer()
    monitor.to_tensorboard(writer)
    expected = frame.query("layer == 2 and part == 'mlp' and step == 10")["ratio"].item()
    assert writer.scalars["stream/mlp/ratio/2", 10] == expected
    assert writer.texts == [(f"stream/findings/{f.kind}", str(f), f.step) for f in findings]


def test_a_folder_needs_tensorboard(tmp_path):
    monitor = trained(hugging_face("llama"), steps=1)
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="pip install tensorboard"):
            monitor.to_tensorboard(tmp_path)
    else:
        monitor.to_tensorboard(tmp_path)
        assert list(tmp_path.iterdir())


def test_a_monitor_says_what_it_is():
    monitor = rs.StreamMonitor(hugging_face("llama"))
    assert repr(monitor) == (
        "StreamMonitor(LlamaForCausalLM: 3 blocks, 0 of 0 steps sampled, nothing found)"
    )
    assert list(monitor.to_frame().columns)[:3] == ["step", "layer", "part"]
    assert monitor.blocks == []
    assert repr(monitor) in monitor._repr_markdown_()
    monitor.remove()


# -- what goes wrong --


class Checkpointed(Tiny):
    """A block whose branch is run again for its gradient."""

    def __init__(self, *, reentrant):
        super().__init__()
        self.reentrant = reentrant

    def branch(self, x):
        return 1.0 * self.ffn(x)  # the module's own output is then not what autograd sees

    def forward(self, x):
        run_again = torch.utils.checkpoint.checkpoint
        return x + run_again(self.branch, self.norm(x), use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_branch_whose_gradient_a_checkpoint_hides_is_not_called_unread(reentrant):
    model = stack(None)
    model["blocks"] = nn.ModuleList(Checkpointed(reentrant=reentrant) for _ in range(2))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    with rs.StreamMonitor(model, every=1) as monitor:
        for _ in range(4):
            optimiser.zero_grad()
            run(model).square().mean().backward()
            optimiser.step()
            monitor.step()
    assert monitor.findings() == []
    writes = monitor.to_frame().query("part == 'mlp'")
    assert bool(writes["gradient"].isna().all()) == reentrant
    assert bool(writes["norm"].notna().all())


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_hugging_face_model_that_checkpoints_has_no_fault(reentrant):
    model = hugging_face("llama").train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    try:
        monitor = trained(model, steps=4)
    except AnatomyError as error:  # older transformers wrap the whole call of a block
        assert reentrant and "use_reentrant=False" in str(error)
        return
    assert monitor.findings() == []
    writes = monitor.to_frame().query("part != 'stream'")
    assert bool(writes["gradient"].isna().all()) == reentrant


def test_blocks_called_inside_a_reentrant_checkpoint_are_an_error_that_says_what_to_pass():
    model = stack(None, None)

    def passed(*, reentrant):
        with rs.StreamMonitor(model) as monitor:
            x = model["embed"](ids())
            for block in model["blocks"]:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)
            x.square().mean().backward()
            monitor.step()
        return monitor

    with pytest.raises(AnatomyError, match="use_reentrant=False"):
        passed(reentrant=True)
    assert is_clean(model)
    assert passed(reentrant=False).findings() == []


def test_after_an_error_in_the_first_pass_the_monitor_is_off():
    model = stack(lambda x, y: 0.5 * x * y, None)
    monitor = rs.StreamMonitor(model)
    with pytest.raises(AnatomyError, match="block 0"):
        run(model)
    assert is_clean(model)
    run(model)  # the training goes on without it
    with pytest.raises(ValueError, match="was removed"):
        monitor.step()
    with pytest.raises(ValueError, match="was removed"):
        monitor.load_state_dict(monitor.state_dict())


def test_a_first_step_that_is_not_finite_is_called_that():
    model = stack(None, None)
    model["blocks"][0].ffn.bias.data[0] = float("nan")
    with pytest.raises(AnatomyError, match=r"block 0 .*its output is not finite"):
        trained_tiny(model)


def test_a_value_that_is_not_finite_is_null_in_a_file(tmp_path):
    model = hugging_face("gpt2")
    with rs.StreamMonitor(model, every=1) as monitor:
        for step in range(2):
            if step:
                model.transformer.h[1].mlp.c_proj.bias.data[0] = 1e30
            logits(model, ids()).sum().backward()
            monitor.step()
    assert bool(monitor.to_frame()["norm"].abs().eq(float("inf")).any())
    monitor.to_jsonl(tmp_path / "run.jsonl")

    def refuse(constant):
        raise AssertionError(constant)

    lines = (tmp_path / "run.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    assert any(row.get("part") == "mlp" and row["norm"] is None for row in rows)


@pytest.mark.parametrize("gain", [1.5, 1.01, 1.0001])
def test_a_sum_may_round_and_may_not_be_scaled(gain):
    model = stack(lambda x, y: (x + y) * gain, None)
    with pytest.raises(AnatomyError, match="its output is not its input plus"):
        trained_tiny(model)
    assert trained_tiny(stack(lambda x, y: (x.double() + y.double()).float(), None)).steps == 1


def trained_tiny(model):
    with rs.StreamMonitor(model, every=1) as monitor:
        run(model).square().sum().backward()
        monitor.step()
    return monitor
