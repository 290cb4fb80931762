"""Nearly orthogonal directions: the four counts, against closed forms and simulation."""

import math

import pytest
import torch

from residual_stream.directions import random_directions, running_max_cosine, two_bases
from residual_stream.packing import (
    existence_log_count,
    log_pair_tail,
    median_max_cosine,
    packing_table,
    random_log_count,
    union_log_count,
    welch_cosine,
    welch_log_count,
)

WIDTHS = [576, 2560, 4096, 8192]


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5, 0.99])
def test_the_tail_is_the_closed_form_in_two_and_three_dimensions(epsilon):
    flat = 1 - 2 * math.asin(epsilon) / math.pi
    assert math.exp(log_pair_tail(2, epsilon)) == pytest.approx(flat, rel=1e-6)
    assert math.exp(log_pair_tail(3, epsilon)) == pytest.approx(1 - epsilon, rel=1e-9)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_tail_stays_below_the_spherical_cap_bound(width):
    for epsilon in (0.05, 0.1, 0.2, 0.5, 0.9):
        assert log_pair_tail(width, epsilon) < math.log(2) - width * epsilon**2 / 2


def test_the_tail_is_what_random_pairs_show():
    left, right = random_directions(64, 200_000, seed=1), random_directions(64, 200_000, seed=2)
    share = float(((left * right).sum(1).abs() > 0.2).float().mean())
    assert share == pytest.approx(math.exp(log_pair_tail(64, 0.2)), rel=0.03)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("epsilon", [0.05, 0.1, 0.2, 0.4])
def test_the_four_counts_are_in_order(width, epsilon):
    union = union_log_count(width, epsilon)
    assert union <= random_log_count(width, epsilon)
    assert random_log_count(width, epsilon) <= existence_log_count(width, epsilon)
    assert existence_log_count(width, epsilon) <= welch_log_count(width, epsilon)


def test_which_constant_belongs_to_which_statement():
    d, epsilon = 4096, 0.2
    assert union_log_count(d, epsilon, failure=1.0) == pytest.approx(d * epsilon**2 / 4)
    half = union_log_count(d, epsilon)
    assert half == pytest.approx(d * epsilon**2 / 4 - math.log(2) / 2)
    assert existence_log_count(d, epsilon) > d * epsilon**2 / 2 - math.log(2)


def test_the_bound_is_vacuous_at_576_and_vast_at_4096():
    assert math.exp(union_log_count(576, 0.1)) < 4 < 576
    assert math.exp(random_log_count(576, 0.1)) < 10
    assert math.exp(union_log_count(4096, 0.2)) > 1e17


def test_as_many_random_directions_as_promised_stay_apart_half_of_the_time():
    width, epsilon = 576, 0.15
    promised = int(math.exp(random_log_count(width, epsilon)))
    drawn = [
        running_max_cosine(random_directions(width, promised, seed=seed))[-1] <= epsilon
        for seed in range(60)
    ]
    assert 30 <= sum(map(int, drawn)) <= 52  # the union bound is a little pessimistic


def test_the_median_of_the_largest_cosine_is_what_draws_show():
    draws = [float(running_max_cosine(random_directions(256, 300, seed=s))[-1]) for s in range(21)]
    assert sorted(draws)[10] == pytest.approx(median_max_cosine(256, 300), rel=0.04)


def test_no_draw_beats_the_welch_bound():
    for width, count in ((8, 40), (16, 17), (32, 1000)):
        found = float(running_max_cosine(random_directions(width, count, seed=0))[-1])
        assert found >= welch_cosine(width, count)
        limit = welch_log_count(width, found)
        assert math.log(count) <= limit + 1e-9


def test_welch_is_met_by_an_equiangular_set():
    angles = torch.arange(3) * math.pi / 3
    mercedes = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert float(running_max_cosine(mercedes)[-1]) == pytest.approx(welch_cosine(2, 3))


def test_running_maxima_do_not_depend_on_the_block_size():
    vectors = random_directions(16, 100, seed=3)
    whole = running_max_cosine(vectors, block=100)
    assert torch.allclose(running_max_cosine(vectors, block=7), whole, atol=1e-6)
    brute = (vectors @ vectors.T).abs().fill_diagonal_(0).max()
    assert float(whole[-1]) == pytest.approx(float(brute))


@pytest.mark.parametrize("width", [12, 16, 20, 48, 576, 2560])
def test_two_bases_are_as_spread_as_they_can_be(width):
    directions = two_bases(width)
    assert directions.shape == (2 * width, width)
    worst = float(running_max_cosine(directions)[-1])
    assert worst == pytest.approx(1 / math.sqrt(width), rel=1e-4)


def test_a_careful_set_beats_a_random_one_by_far():
    assert math.log(len(two_bases(576))) > random_log_count(576, 1 / 24) + 5


def test_a_table_prints_itself_with_every_row():
    table = packing_table(WIDTHS, [0.1, 0.2])
    text = table._repr_markdown_()
    assert len(text.splitlines()) == 2 + 8
    assert "8\u202f192" in text
    assert len(table.to_frame()) == 8


@pytest.mark.parametrize(
    "call",
    [
        lambda: log_pair_tail(1, 0.1),
        lambda: log_pair_tail(10, 1.0),
        lambda: random_log_count(10, 0.1, failure=0.0),
        lambda: welch_log_count(10, -0.1),
        lambda: median_max_cosine(10, 1),
        lambda: two_bases(14),
    ],
)
def test_arguments_out_of_range_are_refused_with_what_is_allowed(call):
    with pytest.raises(ValueError, match=r"allowed|at least|widths"):
        call()
