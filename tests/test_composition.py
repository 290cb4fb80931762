"""Composition scores: closed form, TransformerLens's own numbers, the chance level."""

from __future__ import annotations

import pytest
import torch

from handmade import induction_model, random_model
from residual_stream import composition
from residual_stream.composition import (
    composes,
    composition_baseline,
    composition_pairs,
    composition_scores,
)


def set_head(model, layer, head, **weights):
    for name, value in weights.items():
        getattr(model.blocks[layer].attn, name)[head].copy_(value)


def test_scores_of_known_subspaces_are_their_overlap():
    # Four-dimensional heads in 16 dimensions: a head that writes where another reads.
    model = random_model("gpt2")
    eye = torch.eye(16)
    mine, half, other = eye[:4], torch.cat([eye[:2], eye[8:10]]), eye[8:12]
    with torch.no_grad():
        set_head(model, 0, 0, W_V=eye[4:8].T, W_O=mine)
        for head, read in enumerate((mine, half, other)):
            set_head(model, 1, head, W_K=read.T, W_Q=eye[12:].T)
            set_head(model, 1, head, W_V=read.T, W_O=eye[12:])
    K, V, Q = (composition_scores(model, kind)[0, 0, 1, :3] for kind in "KVQ")
    # ‖AB‖ = √(shared dimensions), over ‖A‖‖B‖ = √4 √4.
    assert K.tolist() == pytest.approx([0.5, 2**0.5 / 4, 0.0], abs=1e-6)
    assert V.tolist() == pytest.approx([0.5, 2**0.5 / 4, 0.0], abs=1e-6)
    assert Q.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_scores_equal_transformer_lens(name, kind):
    model = random_model(name)
    theirs = model.all_composition_scores(kind).scores
    ours = composition_scores(model, kind)
    assert ours.shape == theirs.shape
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert float(ours.max()) > 0.1


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_scores_with_the_gain_are_the_full_width_products(kind):
    model = random_model("llama")
    source, reader = model.blocks[0].attn, model.blocks[1].attn
    gain = model.blocks[1].ln1.original_component.weight
    shared = 1  # query head 3 of 4 shares key/value group 1 of 2
    A = source.W_V[0] @ source.W_O[1]
    WQ, WK = gain[:, None] * reader.W_Q[3], gain[:, None] * reader.W_K[shared]
    WV = gain[:, None] * reader.W_V[shared]
    M = {"Q": WQ @ WK.T, "K": WK @ WQ.T, "V": WV @ reader.W_O[3]}[kind]
    want = float(((A @ M).norm() / (A.norm() * M.norm())).detach())
    assert composition_scores(model, kind, gain=True)[0, 1, 1, 3] == pytest.approx(want, abs=1e-6)


def test_the_handmade_induction_pair_stands_out_by_keys_and_by_nothing_else():
    model = induction_model()
    K = composition_scores(model, "K")
    assert composition_pairs(K, k=1).values[0, :2].tolist() == [(0, 0), (1, 0)]
    assert float(K[0, 0, 1, 0]) > 0.25
    assert float(composition_scores(model, "V")[0, 0, 1, 0]) == 0.0


def test_only_pairs_of_an_earlier_and_a_later_layer_are_marked_and_the_rest_is_zero():
    scores = composition_scores(random_model("llama"), "K")
    mask = composes(scores).expand_as(scores)
    assert mask.sum() == 16 and bool((scores[mask] > 0).all())
    assert bool((scores[~mask] == 0).all())


def test_the_chance_level_is_one_over_the_root_of_the_width():
    mean, spread = composition_baseline(random_model("llama"), "K")
    assert mean == pytest.approx(16**-0.5, rel=0.05)
    assert 0 < spread < mean


def test_the_baseline_repeats_with_its_seed():
    model = random_model("gpt2")
    assert composition_baseline(model, "V", seed=3) == composition_baseline(model, "V", seed=3)
    assert composition_baseline(model, "V", seed=3) != composition_baseline(model, "V", seed=4)


def test_an_unknown_kind_says_what_there_is():
    with pytest.raises(ValueError, match=r"composition_scores: kind 'O' is not known; pass one"):
        composition_scores(random_model("llama"), "O")


@pytest.mark.real
@pytest.mark.slow
def test_the_real_models_scores_equal_full_width_products(smollm2):
    scores = composition_scores(smollm2, "K")
    assert scores.shape == (30, 9, 30, 9)
    for l1, h1, l2, h2 in [(16, 0, 18, 6), (0, 5, 29, 8), (11, 1, 17, 3)]:
        source, reader = smollm2.blocks[l1].attn, smollm2.blocks[l2].attn
        A = (source.W_V[h1 // 3] @ source.W_O[h1]).double()
        M = (reader.W_K[h2 // 3] @ reader.W_Q[h2].T).double()
        want = float(((A @ M).norm() / (A.norm() * M.norm())).detach())
        assert float(scores[l1, h1, l2, h2]) == pytest.approx(want, abs=1e-6)


def test_the_number_of_threads_is_restored_also_after_an_error(bench):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        composition_scores(bench, "K")
        with pytest.raises(RuntimeError, match="stop"), composition._one_thread():
            assert torch.get_num_threads() == 1
            raise RuntimeError("stop")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_the_baseline_reduces_each_layer_once(bench, monkeypatch):
    reduced = []
    honest = composition._source
    monkeypatch.setattr(
        composition, "_source", lambda model, layer: reduced.append(layer) or honest(model, layer)
    )
    composition_baseline(bench, "K", draws=3)
    assert sorted(reduced) == list(range(len(bench.blocks)))
