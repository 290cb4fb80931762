"""Gradient correlation against functions whose gradients are known."""

from __future__ import annotations

import pytest
import torch

from residual_stream.blocks import Stack, StackConfig
from residual_stream.shattering import gradient_correlation, gradients_on_a_line

LINE = (torch.zeros(32), torch.linspace(-1, 1, 32))


def test_a_linear_map_has_one_gradient():
    gradients = gradients_on_a_line(torch.nn.Linear(32, 5), *LINE, points=9)
    assert gradients.shape == (9, 32)
    torch.testing.assert_close(gradient_correlation(gradients, lags=4), torch.ones(4))


def test_the_gradient_of_a_square_is_its_argument():
    start, end = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    gradients = gradients_on_a_line(lambda x: x.pow(2), start, end, points=3)
    ratio = gradients / torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    weights = ratio[1]  # the readout's two entries
    torch.testing.assert_close(
        gradients, weights * torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    )


def test_white_noise_has_no_correlation_after_lag_zero():
    noise = torch.randn(400, 64, generator=torch.Generator().manual_seed(0))
    correlation = gradient_correlation(noise, lags=5)
    assert float(correlation[0]) == pytest.approx(1.0)
    assert float(correlation[1:].abs().max()) < 0.03


@pytest.mark.parametrize("lags", [0, 9, 20])
def test_lags_that_the_line_does_not_have_are_refused(lags):
    with pytest.raises(ValueError, match=f"{lags} lags of 9 points; pass 1 to 8"):
        gradient_correlation(torch.ones(9, 4), lags=lags)


def test_a_deep_plain_stack_shatters_and_a_residual_one_does_not():
    def next_door(variant):
        shape = StackConfig(
            variant=variant, n_layers=24, d_model=48, d_vocab=5, n_heads=None, d_mlp=48
        )
        generator = torch.Generator().manual_seed(1)
        start, end = torch.randn(2, 48, generator=generator)
        run = Stack(shape).run_blocks
        gradients = gradients_on_a_line(lambda x: run(x[None])[0], start, end, points=64)
        return float(gradient_correlation(gradients, lags=2)[1])

    assert next_door("residual, pre-LN") > next_door("plain, LN") + 0.2
