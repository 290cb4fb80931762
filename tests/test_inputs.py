"""Bad input gets an error that says what was given and what is allowed."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import residual_stream as rs
from residual_stream.inputs import to_positions, to_tokens


def test_text_becomes_ids_with_the_start_token_first(bench):
    tokens = to_tokens(bench, "In the beginning")
    assert tokens.shape[0] == 1 and tokens[0, 0] == bench.tokenizer.bos_token_id
    without = to_tokens(bench, "In the beginning", prepend_bos=False)
    assert torch.equal(tokens[:, 1:], without)


def test_ids_may_be_a_list_a_row_or_a_batch(bench):
    for ids in ([3, 1, 4], (3, 1, 4), torch.tensor([3, 1, 4]), torch.tensor([[3, 1, 4]])):
        assert to_tokens(bench, ids).tolist() == [[3, 1, 4]]


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("", ValueError, "the text is empty; pass at least one character"),
        ([], ValueError, "got an empty list"),
        (["In", ""], ValueError, r"the text is empty \(text 1 of 2\)"),
        (["In", "In the beginning God"], ValueError, r"the texts have \d+ to \d+ tokens"),
        ([1, "In"], TypeError, "got a list of int, str"),
        ([1.5], TypeError, "got a list of float"),
        (torch.tensor([0.5]), TypeError, "token ids are integers; got a torch.float32 tensor"),
        (torch.tensor([True]), TypeError, "got a torch.bool tensor"),
        (torch.zeros(0, dtype=torch.long), ValueError, r"have the shape \(1, 0\)"),
        (torch.zeros(1, 1, 1, dtype=torch.long), ValueError, r"have the shape \(1, 1, 1\)"),
        ([-1], ValueError, "token id -1 is outside the vocabulary; ids run from 0 to 1023"),
        ([4, 1024], ValueError, "token id 1024 is outside the vocabulary"),
        ([1] * 129, ValueError, "has 129 tokens, but the model reads at most 128"),
        ("word " * 400, ValueError, "but the model reads at most 128; shorten it"),
    ],
)
def test_wrong_text_is_refused(bench, text, error, says):
    with pytest.raises(error, match=says):
        to_tokens(bench, text)


def test_text_without_a_tokenizer_is_refused():
    config = GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9, bos_token_id=0, eos_token_id=0)
    with pytest.raises(ValueError, match="the model has no tokenizer; pass token ids"):
        to_tokens(rs.load(GPT2LMHeadModel(config)), "In the beginning")


@pytest.mark.parametrize(
    ("positions", "kept"),
    [(None, [0, 1, 2, 3]), (2, [2]), (-1, [3]), (slice(1, 3), [1, 2]), ([3, 0], [3, 0])],
)
def test_positions_become_indices(positions, kept):
    assert to_positions(positions, 4).tolist() == kept


@pytest.mark.parametrize("position", [4, -5, [0, 9]])
def test_a_position_outside_the_text_is_refused(position):
    with pytest.raises(IndexError, match="it has 4 tokens, so -4 ≤ position ≤ 3"):
        to_positions(position, 4)


def test_positions_that_keep_nothing_are_refused():
    with pytest.raises(ValueError, match="keeps none of the 4 tokens"):
        to_positions(slice(9, None), 4)
