"""The tasks' best losses, and the stored runs: a sample is run again."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import train_variants
from residual_stream import runs
from residual_stream.tasks import lookup, repeats
from residual_stream.training import token_losses


def ideal_lookup(task, texts):
    """Losses of the reader who knows the table: counted from a long draw."""
    V, noise = task.d_vocab, 0.1
    table = torch.zeros(V, V, V)
    for row in next(task.batches(4000, seed=5)):
        table[row[1:-1], row[:-2], row[2:]] += 1
    rule = table.argmax(-1)
    logits = torch.full((*texts.shape, V), math.log(noise / V))
    predicted = rule[texts[:, 1:], texts[:, :-1]]
    logits[:, 1:].scatter_(2, predicted[..., None], math.log(1 - noise + noise / V))
    logits[:, 0] = 0.0
    return token_losses(logits, texts).mean()


def test_the_best_loss_of_the_lookup_is_that_of_the_ideal_reader():
    task = lookup()
    texts = next(task.batches(4000, seed=6))
    assert float(ideal_lookup(task, texts)) == pytest.approx(task.best, rel=0.01)


def test_the_best_loss_of_repeats_is_chance_on_the_first_half_and_nothing_on_the_second():
    task = repeats(d_vocab=5, length=6)
    texts = next(task.batches(50, seed=0))
    logits = torch.zeros(50, 6, 5)
    logits[:, 2:5] = 1e4 * torch.nn.functional.one_hot(texts[:, :3], 5)
    assert float(token_losses(logits, texts).mean()) == pytest.approx(task.best)


def test_batches_follow_their_seed():
    one, again, other = (next(lookup().batches(4, seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_an_odd_length_cannot_be_repeated():
    with pytest.raises(ValueError, match="length 7 is odd"):
        repeats(length=7)


def test_unknown_runs_are_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"no runs called 'cure'; there are \['cures'"):
        runs.stored("cure")


@pytest.mark.parametrize("name", train_variants.GRIDS)
def test_the_stored_runs_are_those_of_the_command(name):
    wanted = train_variants.GRIDS[name]()
    held = runs.read(name)
    assert held["command"] == f"python tools/train_variants.py {name}"
    assert [runs.setting_of(row) for row in held["runs"]] == wanted
    for row in held["runs"]:
        assert (row["last"] is None) == (row["diverged"] is not None)
        if row["diverged"] is None:
            assert len(row["losses"]) == row["steps"] // runs.STRIDE
            assert row["last"] == row["losses"][-1]


SAMPLE = [
    ("cures", "post-LN", 2, 0.01),
    ("cures", "DeepNorm", 8, 0.003),
    ("cures", "ReZero", 2, 0.03),
]


@pytest.mark.parametrize(("name", "variant", "depth", "rate"), SAMPLE)
def test_a_stored_run_comes_out_again(name, variant, depth, rate):
    frame = runs.stored(name)
    chosen = (frame.variant == variant) & (frame.n_layers == depth) & (frame.rate == rate)
    (row,) = frame[chosen].to_dict("records")
    again = runs.run(runs.setting_of(row))
    assert again["growth_start"] == pytest.approx(row["growth_start"], rel=1e-3)
    for new, old in itertools.islice(zip(again["losses"], row["losses"], strict=True), 5):
        assert new == pytest.approx(old, abs=0.02)
    assert again["last"] == pytest.approx(row["last"], abs=0.15)


def test_a_run_that_blows_up_says_at_which_step():
    frame = runs.stored("cures")
    bare = frame[(frame.variant == "residual") & (frame.n_layers == 24)].iloc[0].to_dict()
    again = runs.run(runs.setting_of(bare))
    assert again["diverged"] == bare["diverged"] == 1
    assert again["last"] is None
