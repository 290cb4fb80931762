"""The training loop against closed forms, and its promise of equal runs."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from residual_stream.training import (
    Recipe,
    learning_rate,
    log_steps,
    reproducible,
    token_losses,
    train,
    windows,
)


def tiny(seed: int = 0, *, vocab: int = 7) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(vocab, 8), nn.LayerNorm(8), nn.Linear(8, vocab))


def counting(batch: int, vocab: int = 7):
    """Rows that count upwards from a random number: the next token follows from this one."""
    while True:
        yield (torch.randint(vocab, (batch, 1)) + torch.arange(6)) % vocab


def test_the_learning_rate_rises_linearly_to_the_peak_and_falls_to_the_floor():
    recipe = Recipe(steps=110, batch=1, peak=2.0, warmup=10, floor=0.25)
    rates = [learning_rate(t, recipe) for t in range(1, 111)]
    assert rates[:10] == pytest.approx([0.2 * t for t in range(1, 11)])
    assert rates[59] == pytest.approx(2.0 * (0.25 + 0.75 / 2))  # halfway down the cosine
    assert rates[-1] == pytest.approx(0.5)
    assert all(a > b for a, b in itertools.pairwise(rates[9:]))


@pytest.mark.parametrize("step", [0, 11])
def test_a_step_outside_the_run_has_no_learning_rate(step):
    with pytest.raises(ValueError, match=f"learning_rate: step {step}; pass 1 to 10"):
        learning_rate(step, Recipe(steps=10, batch=1, peak=1.0, warmup=0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warmup": 10}, "warmup 10 of 10 steps"),
        ({"warmup": -1}, "warmup -1"),
        ({"batch": 0}, "batch 0"),
    ],
)
def test_a_recipe_that_cannot_run_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**{"steps": 10, "batch": 1, "peak": 1.0, "warmup": 2} | settings)


def test_log_steps_start_at_zero_end_at_the_last_and_keep_their_ratio():
    assert log_steps(1280) == [0, 5, 20, 80, 320, 1280]
    assert log_steps(1000, ratio=10.0, count=4) == [0, 1, 10, 100, 1000]
    assert log_steps(3, ratio=2.0, count=9) == [0, 1, 2, 3]


@pytest.mark.parametrize("wrong", [{"last": 0}, {"last": 9, "ratio": 1.0}, {"last": 9, "count": 0}])
def test_log_steps_refuses_what_is_no_scale(wrong):
    with pytest.raises(ValueError, match="log_steps: last="):
        log_steps(**wrong)


def test_a_window_is_the_start_token_and_then_the_text():
    rows = windows(torch.arange(100, 110), torch.tensor([0, 7]), n_ctx=4, bos=1)
    assert rows.tolist() == [[1, 100, 101, 102], [1, 107, 108, 109]]


@pytest.mark.parametrize("start", [-1, 8])
def test_a_window_past_the_text_is_refused(start):
    with pytest.raises(ValueError, match="windows of 4 in 10 tokens may start at 0 to 7"):
        windows(torch.arange(10), torch.tensor([3, start]), n_ctx=4, bos=1)


def test_token_losses_are_the_next_tokens_negative_log_probability():
    logits, tokens = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    losses = token_losses(logits, tokens)
    for row in range(2):
        for p in range(4):
            expected = -logits[row, p].log_softmax(-1)[tokens[row, p + 1]]
            assert losses[row, p].item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_first_step_is_adamw_with_decay_on_matrices_only():
    model = tiny()
    before = {name: p.clone() for name, p in model.named_parameters()}
    recipe = Recipe(steps=1, batch=4, peak=1e-2, warmup=0, floor=1.0, weight_decay=0.5)
    (step,) = train(model, counting(4), recipe)
    assert (step.number, step.learning_rate) == (1, 1e-2)
    for name, p in model.named_parameters():
        # in AdamW's first step both averages are the gradient's own, so the update is its sign
        decay = 1 - 1e-2 * 0.5 if p.ndim == 2 else 1.0
        expected = before[name] * decay - 1e-2 * p.grad / (p.grad.abs() + 1e-8)
        torch.testing.assert_close(p.data, expected)


def test_the_gradient_is_clipped_and_its_norm_before_that_is_reported():
    model = tiny()
    recipe = Recipe(steps=1, batch=4, peak=1e-3, warmup=0, clip=1e-3)
    (step,) = train(model, counting(4), recipe)
    left = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    assert left == pytest.approx(1e-3, rel=1e-2)
    assert step.grad_norm > 0.1


def test_a_rule_that_can_be_learned_is_learned():
    torch.manual_seed(1)
    model = tiny()
    recipe = Recipe(steps=200, batch=16, peak=3e-2, warmup=10)
    losses = [step.loss for step in train(model, counting(16), recipe)]
    assert losses[0] > 0.8 * math.log(7)
    assert losses[-1] < 0.1


def test_evaluating_between_two_steps_does_not_leave_the_model_in_eval_mode():
    model = nn.Sequential(nn.Embedding(7, 8), nn.Dropout(0.5), nn.Linear(8, 7))
    modes = []
    for _ in train(model, counting(2), Recipe(steps=3, batch=2, peak=1e-3, warmup=0)):
        modes.append(model.training)
        model.eval()
    assert modes == [True, True, True]


def test_training_works_where_gradients_are_off():
    with torch.no_grad():
        (step,) = train(tiny(), counting(2), Recipe(steps=1, batch=2, peak=1e-3, warmup=0))
    assert step.grad_norm > 0


def test_batches_that_end_early_are_an_error():
    few = [batch for batch, _ in zip(counting(2), range(3), strict=False)]
    with pytest.raises(ValueError, match="ended after 3 steps; pass 5"):
        list(train(tiny(), few, Recipe(steps=5, batch=2, peak=1e-3, warmup=0)))


def test_a_loss_that_is_not_finite_stops_the_run_before_the_weights_are_touched():
    model = tiny()
    before = {name: p.clone() for name, p in model.named_parameters()}
    poisoned = lambda tokens: model(tokens).mean() * float("nan")  # noqa: E731
    with pytest.raises(FloatingPointError, match="step 1 has loss nan"):
        list(train(model, counting(2), Recipe(steps=2, batch=2, peak=1.0, warmup=0), loss=poisoned))
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def run(seed: int) -> list[torch.Tensor]:
    with reproducible(seed=seed, threads=1):
        model = tiny(seed)
        list(train(model, counting(4), Recipe(steps=20, batch=4, peak=1e-2, warmup=2, seed=seed)))
    return [p.detach() for p in model.parameters()]


def test_two_runs_from_one_seed_agree_to_the_bit_and_another_seed_differs():
    first, second, other = run(0), run(0), run(1)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first[:1], other[:1], strict=True))


def test_reproducible_gives_back_what_it_found():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    with pytest.raises(KeyError), reproducible(seed=3, threads=threads + 1):
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.get_num_threads() == threads + 1
        torch.rand(5)
        raise KeyError
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
