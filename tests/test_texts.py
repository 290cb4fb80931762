"""The passages that measurements rest on."""

import pytest

import residual_stream as rs


def test_every_passage_gives_a_row_of_64_tokens(bench):
    tokens = rs.texts.batch(bench)
    assert tokens.shape == (8, 64)
    assert (tokens[:, 0] == bench.tokenizer.bos_token_id).all()
    assert len({tuple(row) for row in tokens.tolist()}) == 8


@pytest.mark.real
def test_every_passage_is_long_enough_for_the_real_model(smollm2):
    assert rs.texts.batch(smollm2).shape == (8, 64)


def test_a_length_that_a_passage_does_not_have_is_refused(bench):
    with pytest.raises(
        ValueError, match=r"passage '\w+' has \d+ tokens .* fewer than length = 999"
    ):
        rs.texts.batch(bench, length=999)
