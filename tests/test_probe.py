"""One prediction's whole story: each number against an independent computation, told plainly."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import residual_stream as rs
from residual_stream.architectures import CONFIGS, TOKENS, random_model
from residual_stream.deletion import delete_layers
from residual_stream.probe import at_position

TEXT = "In the beginning God created the heaven and the"
READ_OUT = [name for name in CONFIGS if name != "bert"]  # which predicts no next token

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def story(bench):
    return rs.probe(bench, TEXT)


@pytest.fixture(scope="module")
def logits(bench):
    with torch.no_grad():
        return bench(TEXT, return_type="logits")[0]


def test_the_prediction_is_the_models_own(story, logits, bench):
    assert story.predicted_id == int(logits[-1].argmax())
    assert story.probability == pytest.approx(float(logits[-1].softmax(-1).max()), abs=1e-6)
    assert story.predicted == bench.tokenizer.decode([story.predicted_id])
    assert story.target_id == story.predicted_id and "".join(story.tokens).endswith(TEXT)


def test_the_parts_add_up_to_the_models_own_logit(story, logits):
    parts = story.row_share + sum(layer.share for layer in story.layers) + story.bias_share
    own = float(logits[-1].max() - logits[-1].mean())
    assert parts + story.remainder == pytest.approx(story.logit, abs=1e-4)
    assert story.logit == pytest.approx(own, abs=1e-4) and abs(story.remainder) < 1e-4


def test_the_last_third_is_the_last_layer_of_four(story):
    assert story.last_third == pytest.approx(story.layers[-1].share / story.logit)


def test_updates_are_measured_against_the_row_and_the_stream(story, bench):
    stream = rs.record(bench, TEXT)
    row, first = stream.after("pos_embed")[0, -1], stream.after("0_mlp_out")[0, -1]
    assert story.row_norm == pytest.approx(float(row.norm()), rel=1e-5)
    assert story.layers[0].of_row == pytest.approx(
        float((first - row).norm() / row.norm()), rel=1e-4
    )
    second = stream.after("1_mlp_out")[0, -1] - first
    assert story.layers[1].of_stream == pytest.approx(float(second.norm() / first.norm()), rel=1e-4)


def test_a_deletion_is_the_model_without_the_layer(story, bench):
    for layer in story.layers:
        with torch.no_grad(), rs.skipped_blocks(bench, [layer.layer]):
            scores = bench(TEXT, return_type="logits")[0, -1]
        assert layer.becomes_id == int(scores.argmax())
        assert layer.kept == (layer.becomes_id == story.predicted_id) == (layer.margin > 0)
        rival = scores.clone()
        rival[story.predicted_id] = -torch.inf
        margin = float(scores[story.predicted_id] - rival.max())
        assert layer.margin == pytest.approx(margin, abs=1e-4)
    assert story.kept + len(story.breaking) == len(story.layers)


def test_deletions_agree_with_delete_layers(story, bench):
    swept = delete_layers(bench, TEXT + " earth", read=[len(story.tokens) - 1])
    assert [layer.kept for layer in story.layers] == swept.kept_at[:, 0, 0].tolist()
    for layer, kl in zip(story.layers, swept.kl_at[:, 0, 0], strict=True):
        assert layer.kl == pytest.approx(float(kl), rel=1e-3, abs=1e-5)


def test_the_lens_is_transformer_lenss(story, bench):
    lens = rs.lens_by_depth(bench, TEXT)
    assert [layer.lens_id for layer in story.layers] == lens.top_ids[1:, 0, -1].tolist()
    assert story.layers[1].lens_kl == pytest.approx(float(lens.kl[2, 0, -1]), rel=1e-3)
    assert story.layers[-1].lens_agrees and story.settled <= 3


def test_the_cancellation_is_one_of_this_position(story):
    best = story.cancellations[0]
    assert best.position == story.position
    assert best.before + best.write == pytest.approx(best.after, abs=1e-4)
    index = story.stream.index(best.label)
    assert float(story.stream.writes[index, 0, 0, best.coordinate]) == pytest.approx(best.write)


def test_the_float32_sum_is_within_rounding_of_the_top(story):
    assert 0 <= story.sum.error <= 4 * story.sum.step and story.sum.same_prediction
    assert story.sum.largest == pytest.approx(float(story.stream.top.abs().max()))


def test_in_bfloat16_the_sum_is_off_by_about_a_step():
    story = rs.probe(rs.load("bench", device="cpu", dtype=torch.bfloat16), TEXT)
    assert story.audit.ok and story.audit.replay_error == 0
    assert 0 < story.sum.error < 4 * story.sum.step and story.sum.step > 1e-3


def test_an_earlier_position_tells_what_the_shorter_text_tells(bench, story):
    early = rs.probe(bench, TEXT, position=4)
    short = rs.probe(bench, story.stream.tokens[0, :5])
    assert early.predicted_id == short.predicted_id
    for one, other in zip(early.layers, short.layers, strict=True):
        assert one.share == pytest.approx(other.share, abs=1e-4)
        assert one.becomes_id == other.becomes_id


def test_another_target_splits_another_logit(bench, story):
    other = rs.probe(bench, TEXT, target=" the")
    assert other.target == " the" and other.predicted_id == story.predicted_id
    assert other.logit != pytest.approx(story.logit)
    assert [one.kept for one in other.layers] == [one.kept for one in story.layers]


@pytest.mark.parametrize("name", READ_OUT)
def test_every_architecture_has_a_story(name):
    model = random_model(name)
    story = rs.probe(model, TOKENS[0])
    parts = story.row_share + sum(layer.share for layer in story.layers) + story.bias_share
    assert story.audit.ok and parts == pytest.approx(story.logit, abs=1e-4)
    assert story.sum.same_prediction and story.sum.error <= 8 * story.sum.step
    for layer in story.layers:
        with torch.no_grad(), rs.skipped_blocks(model, [layer.layer]):
            scores = model(TOKENS[:1], return_type="logits")[0, -1]
        assert layer.becomes_id == int(scores.argmax())


def test_writes_can_be_kept_elsewhere(bench, story):
    assert rs.probe(bench, TEXT, device="cpu").to_dict() == story.to_dict()


def test_it_prints_itself_as_a_table_and_in_sentences(story):
    text, page = str(story), story._repr_markdown_()
    lines = text.splitlines()
    assert lines[1].split()[:2] == ["layer", "update"] and lines[2].startswith("row")
    assert [line.split()[0] for line in lines[3:7]] == ["0", "1", "2", "3"]
    assert repr(story).count("\n") == 0 and story.model in repr(story)
    assert all(sentence in text for sentence in story.findings())
    assert page.count("\n| ") >= 6


def test_markdown_shows_a_token_that_is_markup_as_it_is(story):
    page = replace(story, row_lens="a|b*<i>")._repr_markdown_()
    assert r"a\|b\*\<i\>" in page


def test_it_becomes_a_frame_and_json(story):
    frame = story.to_frame()
    assert len(frame) == 4 and {"share", "kept", "becomes", "lens"} <= set(frame.columns)
    plain = json.loads(json.dumps(story.to_dict(), allow_nan=False))
    assert plain["kept"] == story.kept and plain["audit"]["ok"] is True
    assert plain["layers"][0]["of_row"] == pytest.approx(story.layers[0].of_row)


def test_numbers_that_json_lacks_become_none(story):
    assert replace(story, logit=0.0).to_dict()["last_third"] is None


@pytest.mark.parametrize(
    ("arguments", "options", "error", "said"),
    [
        (([[1, 2], [3, 4]],), {}, ValueError, "got 2 texts"),
        (("In the beginning",), {"position": 99}, IndexError, "position 99 is outside"),
        (("In the beginning",), {"position": True}, TypeError, "position is a bool"),
        (("",), {}, ValueError, "the text is empty"),
        (("In the beginning",), {"target": "two words"}, ValueError, "probe: target"),
        (([3, 10**6],), {}, ValueError, "outside the vocabulary"),
    ],
)
def test_wrong_use_is_refused_with_what_was_given(bench, arguments, options, error, said):
    with pytest.raises(error, match=said):
        rs.probe(bench, *arguments, **options)


def test_a_model_whose_ledger_is_open_has_no_story(bench):
    def leak(module, inputs, output):
        return output * 1.01

    handle = bench.blocks[2].original_component.register_forward_hook(
        lambda module, inputs, output: (
            tuple(1.01 * one for one in output)
            if isinstance(output, tuple)
            else leak(module, inputs, output)
        )
    )
    try:
        with pytest.raises(rs.LedgerError, match=r"probe: .* block 2"):
            rs.probe(bench, TEXT)
    finally:
        handle.remove()


def test_the_part_at_one_position_keeps_its_audit(bench):
    stream = rs.record(bench, TEXT)
    here = at_position(stream, 3)
    assert here.audit().ok and torch.equal(here.final[:, 0], stream.final[:, 3])
    with pytest.raises(IndexError, match="has not kept position 4"):
        at_position(here, 4)


@pytest.mark.real
def test_the_real_models_story(smollm2):
    story = rs.probe(smollm2, "The rain in Spain falls mainly on the")
    assert len(story.layers) == 30 and story.audit.ok
    assert not story.layers[0].kept and story.layers[0].of_row > 5
    assert 0 < story.kept < 30


def test_a_model_that_reads_out_another_way_is_refused():
    with pytest.raises(rs.ReadoutError, match="BertForMaskedLM"):
        rs.probe(random_model("bert"), TOKENS[0])
