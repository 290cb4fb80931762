"""Single coordinates: kurtosis in closed form, and what a model loses without one direction."""

import pytest
import torch

import residual_stream as rs
from handmade import random_model
from residual_stream.coordinates import ablate_directions, coordinate_directions, kurtosis

TOKENS = torch.tensor([[1, 5, 9, 2, 4, 4], [7, 7, 3, 11, 0, 22]])


def test_kurtosis_is_the_closed_form_for_signs_spikes_and_gaussians():
    signs = torch.tensor([1.0, -1.0]).repeat(50)
    spike = torch.eye(1000)[0]
    gauss = torch.randn(20, 20_000, generator=torch.Generator().manual_seed(0))
    assert float(kurtosis(signs)) == pytest.approx(1)
    assert float(kurtosis(spike)) == pytest.approx(1000, rel=0.01)
    assert float(kurtosis(gauss).mean()) == pytest.approx(3, abs=0.05)
    assert float(kurtosis(5 * spike)) == pytest.approx(float(kurtosis(spike)))


def test_a_fixed_vector_in_random_bases_has_three_on_average():
    turns = torch.stack([rs.rotation.random_rotation(40, seed=s)[:, 0] for s in range(500)])
    assert float(kurtosis(turns).mean()) == pytest.approx(3 * 40 / 42, abs=0.1)


def test_the_direction_is_gone_from_the_whole_stream():
    model = random_model("llama")
    unit = torch.randn(1, 16, generator=torch.Generator().manual_seed(0))
    unit /= unit.norm()
    found = ablate_directions(model, TOKENS, unit)
    # The same by hand: take it out of every matrix that writes.
    free = torch.eye(16) - unit.T @ unit
    with torch.no_grad():
        edited = random_model("llama")
        edited.embed.original_component.weight.copy_(model.W_E @ free)
        for block in edited.blocks:
            for linear in (block.attn.o, block.mlp.out):
                linear.weight.copy_(free @ linear.weight)
        logits = edited(TOKENS)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].mT, TOKENS[:, 1:])
    assert float(found.loss_change[0]) == pytest.approx(float(loss) - found.loss, abs=1e-5)


def test_directions_side_by_side_give_what_they_give_alone():
    model = random_model("gpt2")
    axes = coordinate_directions(16, [0, 3, 5])
    together = ablate_directions(model, TOKENS, axes)
    alone = [float(ablate_directions(model, TOKENS, axes[i : i + 1]).loss_change) for i in range(3)]
    assert torch.allclose(together.loss_change, torch.tensor(alone), atol=1e-5)
    few = ablate_directions(model, TOKENS, axes, rows_at_once=1)
    assert torch.allclose(together.loss_change, few.loss_change, atol=1e-5)


def test_a_mean_that_the_direction_always_has_costs_nothing():
    model = random_model("llama")
    same = TOKENS[:1].repeat(3, 1)
    axes = coordinate_directions(16, [2])
    at_one = {"positions": 4, "to": "mean"}
    assert float(ablate_directions(model, same, axes, **at_one).loss_change) == pytest.approx(
        0, abs=1e-5
    )
    assert abs(float(ablate_directions(model, same, axes, positions=4).loss_change)) > 1e-4


def test_positions_limit_where_the_direction_is_kept_out():
    model = random_model("llama")
    axes = coordinate_directions(16, [2])
    last = ablate_directions(model, TOKENS, axes, positions=-1)
    assert float(last.loss_change) == pytest.approx(0, abs=1e-6)  # nothing is predicted from there
    assert float(last.top1_kept) >= 1 - 2 / TOKENS.numel()


def test_bad_directions_and_texts_are_refused():
    model = random_model("llama")
    with pytest.raises(ValueError, match="length 1"):
        ablate_directions(model, TOKENS, torch.ones(1, 16))
    with pytest.raises(ValueError, match="no next token"):
        ablate_directions(model, TOKENS[:, :1], coordinate_directions(16, [0]))
    with pytest.raises(IndexError, match="outside the stream"):
        coordinate_directions(16, [16])


@pytest.mark.real
@pytest.mark.slow
def test_one_coordinate_breaks_the_real_model_and_another_does_not(smollm2):
    tokens = rs.texts.batch(smollm2, length=24)[:2]
    found = ablate_directions(smollm2, tokens, coordinate_directions(576, [507, 0, 1]))
    assert float(found.loss_change[0]) > 5 and float(found.top1_kept[0]) < 0.1
    assert float(found.loss_change[1:].abs().max()) < 0.3


def test_the_shipped_costs_are_those_of_every_coordinate_and_say_what_the_chapter_says():
    costs = rs.coordinates.shipped_costs()
    trained, rotated = costs["as trained"], costs["rotated"]
    assert list(trained.index) == list(range(576)) and list(rotated.index) == list(range(0, 576, 6))
    assert not any(frame.isna().any(axis=None) for frame in costs.values())
    costliest = trained["loss change"].nlargest(8)
    for name in ("at position 0", "elsewhere", "elsewhere, set to its mean"):
        assert list(costs[name].index) == list(costliest.index)
    assert costliest.iloc[0] > 4 * costliest.iloc[1]
    turned = costs["rotated, their directions"]["loss change"]
    assert turned.tolist() == pytest.approx(costliest.tolist(), abs=0.05)
    with pytest.raises(KeyError, match="was not measured"):
        rs.coordinates.shipped_costs("gpt2")


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("case", ["as trained", "elsewhere, set to its mean", "rotated"])
def test_a_sample_of_the_shipped_costs_is_measured_again(smollm2, case):
    how = {
        "as trained": {},
        "rotated": {},
        "elsewhere, set to its mean": {"positions": slice(1, None), "to": "mean"},
    }[case]
    shipped = rs.coordinates.shipped_costs()[case].sort_values("loss change")
    some = shipped.iloc[[-1, -2, len(shipped) // 2]]  # the two costliest and one in the middle
    model = rs.rotation.rotate_model(smollm2, seed=0).model if case == "rotated" else smollm2
    axes = coordinate_directions(576, list(some.index))
    found = ablate_directions(model, rs.texts.batch(smollm2), axes, **how)
    assert found.predictions == 504
    change, kept = some["loss change"].tolist(), some["top-1 kept"].tolist()
    assert found.loss_change.tolist() == pytest.approx(change, rel=0.02, abs=0.01)
    assert found.top1_kept.tolist() == pytest.approx(kept, abs=0.02)
