"""The trainable stacks: every variant's formula and constants against its paper."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import residual_stream as rs
from residual_stream import connections
from residual_stream.blocks import Stack, StackConfig
from residual_stream.connections import VARIANTS
from residual_stream.initialisation import deepnorm_beta, fixup_factor, standard_deviation
from residual_stream.training import Recipe, train

SUMS = [name for name, variant in VARIANTS.items() if variant.sums]
NO_SUM = [name for name in VARIANTS if name not in SUMS]
D, L = 24, 6


def stack(variant, *, n_heads=4, n_layers=L, d_model=D, **shape):
    shape = {"d_vocab": 13, "n_ctx": 16} | shape
    return Stack(
        StackConfig(variant=variant, n_layers=n_layers, d_model=d_model, n_heads=n_heads, **shape)
    )


def tokens(batch=3, pos=8, seed=0):
    return torch.randint(13, (batch, pos), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("n_heads", [4, None])
@pytest.mark.parametrize("variant", SUMS)
def test_the_ledger_of_a_variant_that_sums_closes(variant, n_heads):
    model = stack(variant, n_heads=n_heads)
    stream = rs.record(model, tokens())
    assert stream.audit().ok
    assert len(stream.labels) == (2 + 2 * L if n_heads else 1 + L)
    assert torch.equal(model(tokens()), model.unembed(model.ln_final(stream.final)))


@pytest.mark.parametrize("variant", NO_SUM)
def test_a_variant_that_rescales_what_was_written_is_refused_by_name(variant):
    with pytest.raises(rs.WiringError, match=f"a {variant} stack has no ledger"):
        rs.record(stack(variant), tokens())


def test_what_sums_is_what_the_formula_says():
    assert NO_SUM == ["post-LN", "DeepNorm", "plain", "plain, LN", "highway", "highway, LN"]
    assert all(v.connection.formula.startswith("x + ") == v.sums for v in VARIANTS.values())


def test_a_block_that_writes_past_its_hooks_does_not_close():
    model = stack("pre-LN")
    model.blocks[2].register_forward_hook(lambda module, args, out: out + 0.1)
    audit = rs.record(model, tokens()).audit()
    assert [block.layer for block in audit.open_blocks] == [2]


def by_hand(variant, x, f, connection):
    """The next stream, written out from the papers' equations."""
    norm = lambda v: nn.functional.layer_norm(v, v.shape[-1:])  # noqa: E731
    gate = lambda v: torch.sigmoid(v @ connection.gate.weight.T - 2.0)  # noqa: E731
    return {
        "pre-LN": lambda: x + f(norm(x)),
        "GPT-2": lambda: x + f(norm(x)),
        "residual, pre-LN": lambda: x + f(norm(x)),
        "post-LN": lambda: norm(x + f(x)),
        "sandwich": lambda: x + norm(f(norm(x))),
        "DeepNorm": lambda: norm((2 * L) ** 0.25 * x + f(x)),
        "depth-scaled": lambda: x + f(norm(x) / 3**0.5),
        "LayerScale": lambda: x + 0.1 * f(norm(x)),
        "ReZero": lambda: x,
        "SkipInit": lambda: x + f(x) / (2 * L) ** 0.5,
        "Fixup": lambda: x + f(x),
        "residual": lambda: x + f(x),
        "plain": lambda: f(x),
        "plain, LN": lambda: f(norm(x)),
        "highway": lambda: gate(x) * f(x) + (1 - gate(x)) * x,
        "highway, LN": lambda: gate(norm(x)) * f(norm(x)) + (1 - gate(norm(x))) * x,
    }[variant]()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_connection_at_the_start_is_its_papers_equation(variant):
    torch.manual_seed(0)
    connection = stack(variant).blocks[2].mlp_connection  # the third layer
    x, branch = torch.randn(2, 5, D), nn.Linear(D, D)
    found = connection(x, branch, lambda value: value)
    torch.testing.assert_close(found, by_hand(variant, x, branch, connection))


def measured(model, role):
    """Standard deviation over all matrices of a role."""
    weights = [
        m.weight.detach().flatten()
        for name, m in model.named_modules()
        if isinstance(m, nn.Linear) and name.rpartition(".")[2].removeprefix("W_") == role
    ]
    return float(torch.cat(weights).std())


# From the papers, for d = 64, an MLP of 256, L = 8 and so N = 16 branches.
XAVIER, MLP = math.sqrt(2 / 128), math.sqrt(2 / 320)
BETA = (8 * 8) ** -0.25
PAPERS = {
    "pre-LN": {"q": XAVIER, "v": XAVIER, "o": XAVIER, "in": MLP, "out": MLP},
    "GPT-2": {"q": XAVIER, "v": XAVIER, "o": XAVIER / 4, "in": MLP, "out": MLP / 4},
    "DeepNorm": {"q": XAVIER, "k": XAVIER, "v": BETA * XAVIER, "o": BETA * XAVIER,
                 "in": BETA * MLP, "out": BETA * MLP},
    "Fixup": {"q": 1 / 8, "k": 1 / 8, "v": 1 / 32, "o": 0.0, "in": 1 / 32, "out": 0.0},
    "residual": {"q": 1 / 8, "v": 1 / 8, "o": 1 / 8, "in": 1 / 8, "out": math.sqrt(2 / 256)},
    "highway": {"gate": 1 / 8, "out": math.sqrt(2 / 256)},
}  # fmt: skip


@pytest.mark.parametrize("variant", PAPERS)
def test_the_weights_start_with_the_standard_deviations_of_the_paper(variant):
    model = stack(variant, n_layers=8, d_model=64)
    for role, expected in PAPERS[variant].items():
        assert measured(model, role) == pytest.approx(expected, rel=0.02), role


@pytest.mark.parametrize("n_layers", [2, 18, 24, 100])
def test_the_constants_follow_the_depth(n_layers):
    place = {"layer": 1, "n_layers": n_layers, "n_branches": 2 * n_layers}
    assert connections.DeepNorm(8, **place).alpha == pytest.approx((2 * n_layers) ** 0.25)
    assert deepnorm_beta(n_layers) == pytest.approx((8 * n_layers) ** -0.25)
    assert connections.DeepNorm(8, **place).alpha > 1 > deepnorm_beta(n_layers)
    assert fixup_factor(2 * n_layers) == pytest.approx((2 * n_layers) ** -0.5)
    assert fixup_factor(64, matrices=3) == pytest.approx(64**-0.25)
    assert connections.ReZero(8, **place).scale.item() == 0.0
    assert connections.SkipInit(8, **place).scale.item() == pytest.approx((2 * n_layers) ** -0.5)
    epsilon = {2: 0.1, 18: 0.1, 24: 1e-5, 100: 1e-6}[n_layers]
    assert connections.LayerScale(8, **place).scale.detach().tolist() == pytest.approx(
        [epsilon] * 8
    )


def test_fixup_starts_with_a_silent_head_and_silent_branches():
    model = stack("Fixup")
    stream = rs.record(model, tokens())
    assert not stream.writes[2:].any()
    assert not model(tokens()).any()


def test_the_stream_starts_with_unit_mean_square_and_xiongs_bounds_hold():
    # Xiong et al. 2020, lemma 2: (1 + l/2) d ≤ E‖x_l‖² ≤ (1 + 3l/2) d with an MLP as wide as d
    model = stack("pre-LN", n_layers=12, d_model=128, d_mlp=128, d_vocab=512)
    ids = torch.randint(512, (8, 16), generator=torch.Generator().manual_seed(1))
    stream = rs.record(model, ids)
    squares = (stream.accumulated().pow(2).mean(-1)).mean((1, 2))[1::2]  # by layer, over d
    assert float(squares[0]) == pytest.approx(1.0, rel=0.05)
    for layer, value in enumerate(squares.tolist()):
        assert 0.95 * (1 + layer / 2) <= value <= 1.05 * (1 + 3 * layer / 2)


def test_what_reads_a_relu_keeps_the_mean_square():
    model = stack("plain", n_heads=None, n_layers=20, d_model=256)
    x = torch.randn(1, 64, 256, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert 0.3 < float(model.run_blocks(x).pow(2).mean()) < 3.0


def test_the_initialisation_follows_its_seed_and_leaves_the_global_one_alone():
    state = torch.get_rng_state()
    first, again, other = (stack("pre-LN", seed=seed)(tokens()) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    assert torch.equal(state, torch.get_rng_state())


def test_no_position_sees_a_later_one():
    model, ids = stack("pre-LN"), tokens()
    changed = ids.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 13
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_a_stack_goes_on_from_any_layer():
    model = stack("pre-LN")
    stream = rs.record(model, tokens())
    again = rs.rerun_from(model, stream.after("3_mlp_out"), 4)
    assert torch.equal(again, stream.final)
    with rs.skipped_blocks(model, range(4)):
        skipped = rs.run_to_top(model, tokens())
    assert torch.equal(skipped, rs.rerun_from(model, stream.after("pos_embed"), 4))
    assert not torch.equal(skipped, stream.final)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_learns(variant):
    def counting():
        generator = torch.Generator().manual_seed(0)
        while True:
            first = torch.randint(13, (8, 1), generator=generator)
            yield (first + torch.arange(8)) % 13

    model = stack(variant, n_layers=2, n_heads=None)
    steps = train(model, counting(), Recipe(steps=120, batch=8, peak=1e-2, warmup=10))
    losses = [step.loss for step in steps]
    assert losses[0] > 2 > 0.3 > losses[-1]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"variant": "prelude"}, "variant 'prelude'"),
        ({"n_layers": 0}, "0 layers"),
        ({"n_heads": 5}, "24 does not divide into 5 heads"),
    ],
)
def test_a_shape_that_no_stack_can_have_is_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        StackConfig(**{"variant": "pre-LN", "n_layers": 2, "d_model": D, "d_vocab": 5} | shape)


@pytest.mark.parametrize(("scheme", "role"), [("xavier", "w"), ("he2", "q")])
def test_an_unknown_scheme_or_role_is_refused(scheme, role):
    with pytest.raises((ValueError, TypeError)):
        standard_deviation(scheme, role, fan_in=8, fan_out=8, n_layers=2, n_branches=4)
