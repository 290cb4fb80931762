"""What is stored as measured comes from the command that it names: samples of it, again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import residual_stream as rs
from residual_stream.stored import FOLDER, stored
from residual_stream.teacher import CLASSES, WIDTH, teacher_labels, train_on_teacher

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))
import measure_ensembles


def test_every_stored_measurement_names_the_command_that_makes_it():
    for path in FOLDER.glob("*.json"):
        _, script, *_ = stored(path.stem)["command"].split()
        assert (ROOT / script).is_file()


def test_an_unknown_measurement_is_refused():
    with pytest.raises(ValueError, match=r"no measurement 'x'; there are .*ensembles_deletion"):
        stored("x")


def test_the_stored_training_covers_what_its_command_trains():
    found = stored("ensembles_training")
    assert tuple(found["loss"]) == measure_ensembles.VARIANTS and len(found["seeds"]) >= 3
    assert found["steps"] == measure_ensembles.STEPS
    for rows in found["loss"].values():
        assert len(rows) == len(found["depths"]) and all(
            len(r) == len(found["seeds"]) for r in rows
        )


def test_he_2015_holds_for_every_seed():
    found = stored("ensembles_training")
    for variant, rows in found["loss"].items():
        shallow, deep = torch.tensor(rows[0]), torch.tensor(rows[-1])
        if variant.startswith("plain"):
            assert bool((deep > shallow + 0.5).all())
        if variant.startswith("residual"):
            assert bool((deep < shallow + 0.1).all())


@pytest.mark.slow
@pytest.mark.parametrize("variant", measure_ensembles.VARIANTS)
def test_a_sample_of_the_stored_training_comes_out_again(variant):
    found = stored("ensembles_training")
    run = train_on_teacher(variant, found["depths"][0], seed=0, steps=found["steps"])
    assert run.final_loss == pytest.approx(found["loss"][variant][0][0], abs=0.02)


@pytest.mark.real
@pytest.mark.slow
def test_a_sample_of_the_stored_deletions_comes_out_again(smollm2):
    found = stored("ensembles_deletion")
    tokens = rs.texts.batch(smollm2, length=found["length"])
    orders = [[i for i in range(30) if i != gone] for gone in (1, 11, 20)]
    orders.append(measure_ensembles.swap_orders(30)[5])
    runs = rs.reorder_layers(smollm2, tokens, orders)
    expected = [found["layer"]["kl"][i] for i in (1, 11, 20)] + [found["swap"]["kl"][5]]
    assert torch.allclose(runs.kl.cpu(), torch.tensor(expected), atol=2e-3)


def test_random_sets_are_seeded_and_spare_whom_they_should():
    first, again = (
        measure_ensembles.random_orders(10, 3, 4, among=list(range(2, 10))) for _ in range(2)
    )
    assert first == again and len({tuple(order) for order in first}) > 1
    assert all(len(order) == 7 and order[:2] == [0, 1] for order in first)


def test_the_teacher_uses_all_its_classes():
    labels = teacher_labels(torch.randn(4000, WIDTH, generator=torch.Generator().manual_seed(1)))
    assert labels.bincount(minlength=CLASSES).min() > 40


def test_a_run_on_the_teacher_learns_and_is_seeded():
    first, again = (train_on_teacher("residual, pre-LN", 2, steps=30) for _ in range(2))
    assert torch.equal(first.losses, again.losses) and first.losses[-1] < first.losses[0]
    assert len(first.first_gradients) == 3 and first.final_loss < 2.4
    assert repr(first).startswith("TeacherRun(residual, pre-LN, 2 layers of 32: 30 steps, loss ")
