"""Toy models: closed forms of the geometry, the batch against a loop, what reproduces."""

import importlib.util
import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from residual_stream.arrangements import aligned, feature_dimensionality, geometry, phase
from residual_stream.superposition import ToyRecipe, draw_features, train_toys

SEEDS = 8
ARRANGEMENTS = {
    0.0: "orthogonal",
    0.3: "orthogonal",
    0.5: "antipodal pairs",
    0.7: "antipodal pairs",
    0.9: "pentagon",
    0.95: "pentagon",
}


def polygon(n, *, turn=0.0, length=1.0):
    angles = torch.arange(n) * 2 * math.pi / n + turn
    return length * torch.stack([angles.cos(), angles.sin()])


@pytest.fixture(scope="module")
def toys():
    return train_toys(
        features=5,
        hidden=2,
        sparsity=[s for s in ARRANGEMENTS for _ in range(SEEDS)],
        importance=0.9,
    )


@pytest.fixture(scope="module")
def single_loop():
    path = Path(__file__).parents[1] / "benchmarks" / "superposition.py"
    spec = importlib.util.spec_from_file_location("superposition_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_dimensionality_is_the_closed_form_for_simple_arrangements():
    assert torch.allclose(feature_dimensionality(torch.eye(3)), torch.ones(3))
    pair = torch.tensor([[1.0, -1.0]])
    assert torch.allclose(feature_dimensionality(pair), torch.full((2,), 0.5))
    for n in (3, 5, 7):
        expected = torch.full((n,), 2 / n)
        assert torch.allclose(feature_dimensionality(polygon(n, turn=0.3, length=1.2)), expected)
    assert float(feature_dimensionality(torch.zeros(2, 3)).abs().max()) == 0.0


def test_dimensionalities_never_sum_to_more_than_the_dimensions():
    weights = torch.randn(50, 3, 10, generator=torch.Generator().manual_seed(0))
    assert float(feature_dimensionality(weights).sum(-1).max()) <= 3 + 1e-5


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        (polygon(5, turn=0.4), "pentagon"),
        (polygon(4, turn=1.0), "antipodal pairs"),
        (torch.cat([torch.eye(2), torch.zeros(2, 3)], 1), "orthogonal"),
        (polygon(3), "other"),
        (torch.tensor([[1.0, 0.9], [0.0, 0.1]]), "other"),
        (torch.zeros(2, 5), "other"),
        (polygon(5)[:, :4], "other"),
        (torch.tensor([[1.0, -1.0, 0.7, -0.7], [0.0, 0.0, 0.7, -0.7]]), "other"),
    ],
)
def test_a_geometry_is_named_by_its_thresholds(weights, name):
    assert geometry(weights) == name


def test_features_below_the_threshold_do_not_count():
    weights = torch.cat([torch.eye(2), torch.full((2, 1), 0.2)], 1)
    assert geometry(weights) == "orthogonal"
    assert geometry(weights, threshold=0.1) == "other"


def test_aligning_turns_and_reflects_and_changes_nothing_else():
    weights = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    turned = aligned(weights)
    assert torch.allclose(turned.T @ turned, weights.T @ weights, atol=1e-5)
    assert float(turned[0, 0]) == pytest.approx(0, abs=1e-6) and float(turned[1, 0]) > 0
    assert float(turned[0, 1]) > 0
    mirrored = torch.diag(torch.tensor([1.0, -1.0])) @ weights
    assert torch.allclose(aligned(mirrored), turned, atol=1e-5)


def test_phases_are_named_by_which_features_are_kept():
    weights = torch.tensor([[[1.0, 0.0]], [[0.1, -1.0]], [[1.0, -0.9]], [[0.0, 0.1]], [[0.8, 0.8]]])
    assert phase(weights) == [
        "first only", "second only", "superposition", "neither", "both the same way",
    ]  # fmt: skip


def test_features_are_zero_as_often_as_the_sparsity_says_and_uniform_otherwise():
    draw = torch.Generator().manual_seed(0)
    x = draw_features(draw, sparsity=0.8, steps=20, features=5, batch=1000)
    on = x[x > 0]
    assert len(on) / x.numel() == pytest.approx(0.2, abs=0.01)
    assert float(on.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(on.max()) <= 1


def test_the_batch_gives_the_models_that_a_loop_over_single_ones_gives(single_loop):
    recipe = ToyRecipe(steps=400)
    sparsity = [0.0, 0.5, 0.9, 0.95]
    batched = train_toys(
        features=5, hidden=2, sparsity=sparsity, importance=0.9, seeds=[3, 1, 4, 15], recipe=recipe
    )
    importance = 0.9 ** torch.arange(5)
    for index, (s, seed) in enumerate(zip(sparsity, batched.seeds, strict=True)):
        one = single_loop.train_one(5, 2, s, importance, seed, recipe)
        assert torch.allclose(batched.W[index], one.W, atol=1e-4)
        assert torch.allclose(batched.b[index], one.b, atol=1e-4)


def test_an_instance_does_not_depend_on_its_neighbours():
    recipe = ToyRecipe(steps=50)
    shape = {"features": 4, "hidden": 2, "recipe": recipe}
    both = train_toys(**shape, sparsity=[0.2, 0.9], seeds=[7, 8])
    alone = train_toys(**shape, sparsity=[0.9], seeds=[8])
    assert torch.allclose(both.W[1], alone.W[0], atol=1e-5)
    assert float((both.W[0] - alone.W[0]).abs().max()) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("sparsity", ARRANGEMENTS)
def test_most_seeds_find_the_arrangement_of_their_sparsity(toys, sparsity):
    first = list(ARRANGEMENTS).index(sparsity) * SEEDS
    found = Counter(toys.geometries()[first : first + SEEDS])
    assert found[ARRANGEMENTS[sparsity]] > SEEDS / 2, found


@pytest.mark.slow
def test_sparser_features_have_less_of_a_dimension_each(toys):
    kept = toys.represented().view(-1, SEEDS, 5).float().mean((1, 2)) * 5
    assert float(kept[:2].max()) == 2 and 3.4 < float(kept[2:4].mean()) < 4.2
    assert float(kept[-1]) > 4.4
    assert float(toys.dimensionality().sum(1).max()) <= 2 + 1e-4


@pytest.mark.slow
def test_the_phase_diagram_has_its_three_phases_where_the_paper_has_them():
    corners = {(1.0, 0.1): "first only", (1.0, 10.0): "second only", (0.05, 1.0): "superposition"}
    toys = train_toys(
        features=2,
        hidden=1,
        sparsity=[1 - density for density, _ in corners for _ in range(6)],
        importance=torch.tensor([[1.0, second] for _, second in corners for _ in range(6)]),
        recipe=ToyRecipe(steps=800, batch=64, rate=0.03),
    )
    assert phase(toys.best_of(6).W) == list(corners.values())


@pytest.mark.slow
def test_a_plateau_at_one_half_appears_at_forty_features():
    toys = train_toys(
        features=40, hidden=10, sparsity=[0.6, 0.85], recipe=ToyRecipe(steps=1200, rate=0.01)
    )
    halves = ((toys.dimensionality() - 0.5).abs() < 0.04) & toys.represented()
    share = halves.sum(1) / toys.represented().sum(1)
    assert float(share[0]) > 0.8 and float(share[1]) < 0.1


def test_the_best_of_neighbours_is_the_one_with_the_lowest_loss():
    toys = train_toys(features=3, hidden=1, sparsity=[0.5] * 4, recipe=ToyRecipe(steps=5))
    best = toys.best_of(2)
    assert best.loss.tolist() == [min(pair) for pair in toys.loss.view(2, 2).tolist()]
    assert len(best.seeds) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sparsity": [1.0]}, "sparsity"),
        ({"sparsity": []}, "sparsity"),
        ({"seeds": [1, 2]}, "2 seeds for 1"),
        ({"importance": torch.ones(2, 5)}, "importance"),
        ({"hidden": 0}, "at least 1"),
    ],
)
def test_impossible_settings_are_refused(change, said):
    settings = {"features": 5, "hidden": 2, "sparsity": [0.5], "recipe": ToyRecipe(steps=1)}
    with pytest.raises(ValueError, match=said):
        train_toys(**(settings | change))


@pytest.mark.gpu
def test_an_accelerator_gives_the_same_models():
    device = "cuda" if torch.cuda.is_available() else "mps"
    shape = {"features": 5, "hidden": 2, "sparsity": [0.0, 0.9], "recipe": ToyRecipe(steps=100)}
    here, there = train_toys(**shape), train_toys(**shape, device=device)
    assert torch.allclose(here.W, there.W.cpu(), atol=1e-3)
