"""Bad input gets an error that says what was given and what is allowed."""

import numpy as np
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
    row = [3, 1, 4]
    for ids in (row, tuple(row), torch.tensor(row), torch.tensor([row]), np.array(row), [row]):
        assert to_tokens(bench, ids).tolist() == [row]
    assert to_tokens(bench, [np.int64(3), torch.tensor(1).item()]).tolist() == [[3, 1]]
    assert to_tokens(bench, [[3, 1], [4, 1]]).tolist() == [[3, 1], [4, 1]]


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("", ValueError, "the text is empty; pass at least one character"),
        ([], ValueError, "got an empty list"),
        (["In", ""], ValueError, r"the text is empty \(text 1 of 2\)"),
        (["In", "In the beginning God"], ValueError, r"the texts have \d+ to \d+ tokens"),
        ([1, "In"], TypeError, "got a list of int, str"),
        ([1.5], TypeError, "got a list of float"),
        ([True], TypeError, "got a list of bool"),
        ([[1, 2], 3], TypeError, "got a list of int, list"),
        ([[1, 2], [3]], ValueError, "the rows of token ids have 1 to 2 tokens"),
        (5, TypeError, "got an int; pass a text, a list of texts of one length, or token ids"),
        (None, TypeError, "got a NoneType"),
        (b"In the beginning", TypeError, "got a bytes; pass a text"),
        ([10**30], ValueError, f"token id {10**30} is outside every vocabulary"),
        (np.array([0.5]), TypeError, "token ids are integers; got a torch.float64 tensor"),
        (np.array(["In"]), TypeError, "got a ndarray; pass a text"),
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
    [
        (None, [0, 1, 2, 3]),
        (2, [2]),
        (-1, [3]),
        (slice(1, 3), [1, 2]),
        ([3, 0], [3, 0]),
        (range(1, 3), [1, 2]),
        (np.int64(2), [2]),
        (torch.tensor(2), [2]),
        (torch.tensor([3, 0]), [3, 0]),
        (np.array([3, 0]), [3, 0]),
        ([True, False, False, True], [0, 3]),
        (torch.tensor([True, False, False, True]), [0, 3]),
    ],
)
def test_positions_become_indices(positions, kept):
    assert to_positions(positions, 4).tolist() == kept


@pytest.mark.parametrize("position", [4, -5, [0, 9]])
def test_a_position_outside_the_text_is_refused(position):
    with pytest.raises(IndexError, match="it has 4 tokens, so -4 ≤ position ≤ 3"):
        to_positions(position, 4)


@pytest.mark.parametrize(
    ("positions", "error", "says"),
    [
        (0.9, TypeError, "position 0.9 is a float; pass an integer, a slice, a list of integers"),
        ([0, 1.5], TypeError, "position 1.5 is a float"),
        ("01", TypeError, "position '01' is a str"),
        (True, TypeError, "position True is a bool"),
        ([0, True], TypeError, "position True is a bool"),
        ([True, False], ValueError, "the mask of positions has 2 entries; the text has 4 tokens"),
        ([False] * 4, ValueError, "keeps none of the 4 tokens"),
        ([], ValueError, "keeps none of the 4 tokens"),
    ],
)
def test_positions_that_are_no_positions_are_refused(positions, error, says):
    with pytest.raises(error, match=says):
        to_positions(positions, 4)


def test_positions_that_keep_nothing_are_refused():
    with pytest.raises(ValueError, match="keeps none of the 4 tokens"):
        to_positions(slice(9, None), 4)
