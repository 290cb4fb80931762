"""Both laws against curves made from them."""

from __future__ import annotations

import pytest
import torch

from residual_stream.growth import fit_growth

DEPTH = torch.arange(31).double()
SCALES = ("y", "log y")


def test_a_straight_line_is_found_exactly():
    fit = fit_growth(4.0 + 6.0 * DEPTH)
    assert fit.better == "linear"
    assert fit.slope == pytest.approx(1.5, rel=1e-3)
    assert all(fit.r2_linear[s] == pytest.approx(1.0, abs=1e-6) for s in SCALES)
    assert all(fit.r2_exponential[s] < 0.97 for s in SCALES)
    torch.testing.assert_close(fit.linear(31).double(), 4 + 6 * DEPTH, rtol=1e-3, atol=1e-3)


def test_a_factor_per_layer_is_found_exactly():
    fit = fit_growth(3.0 * 1.045 ** (2 * DEPTH))
    assert fit.better == "exponential"
    assert fit.factor == pytest.approx(1.045, rel=1e-6)
    assert all(fit.r2_exponential[s] == pytest.approx(1.0, abs=1e-6) for s in SCALES)
    torch.testing.assert_close(
        fit.exponential(31).double(), 3 * 1.045 ** (2 * DEPTH), rtol=1e-4, atol=1e-4
    )


def test_a_shrinking_stream_has_a_factor_below_one():
    fit = fit_growth(5.0 * 0.9 ** (2 * DEPTH))
    assert fit.factor == pytest.approx(0.9, rel=1e-6)


def test_where_the_scales_disagree_it_is_undecided():
    # a leap, then a factor: on y the factor fits, on the logarithm the leap asks for the line
    fit = fit_growth(torch.cat([torch.tensor([1.0]).double(), 1e4 * 1.05 ** (2 * DEPTH)]))
    assert fit.r2_exponential["y"] > fit.r2_linear["y"] + 0.05
    assert fit.r2_linear["log y"] > fit.r2_exponential["log y"]
    assert fit.better == "undecided"


def test_noise_does_not_change_the_verdict():
    generator = torch.Generator().manual_seed(0)
    noise = (0.05 * torch.randn(31, generator=generator)).exp()
    assert fit_growth((1 + DEPTH) * noise).better == "linear"
    assert fit_growth(1.1 ** (2 * DEPTH) * noise).better == "exponential"


@pytest.mark.parametrize(
    "wrong", [[1.0, 2.0, 3.0], [1.0, 2.0, 0.0, 3.0], [1.0, 2.0, 3.0, float("inf")]]
)
def test_what_cannot_be_fitted_is_refused(wrong):
    with pytest.raises(ValueError, match="at least 4 positive finite values"):
        fit_growth(torch.tensor(wrong))


def test_a_falling_line_is_a_line():
    fit = fit_growth(100.0 - 3.0 * DEPTH)
    assert fit.better == "linear" and fit.slope == pytest.approx(-0.03, rel=1e-3)
    assert fit.r2_linear["log y"] == pytest.approx(1.0, abs=1e-6)


def test_a_stream_of_many_hundred_updates_can_be_fitted():
    depth = torch.arange(600, dtype=torch.float64)
    for squares, law in ((3 + 0.2 * depth, "linear"), ((0.01 * depth).exp(), "exponential")):
        fit = fit_growth(squares)
        assert fit.better == law
        assert max(fit.r2_linear["y"], fit.r2_exponential["y"]) == pytest.approx(1.0, abs=1e-6)


def test_a_constant_is_both_laws_at_once():
    fit = fit_growth(torch.full((12,), 0.3))
    assert fit.better == "undecided"
    assert fit.slope == pytest.approx(0.0, abs=1e-6) and fit.factor == pytest.approx(1.0)
    assert set(fit.r2_linear.values()) == set(fit.r2_exponential.values()) == {1.0}
