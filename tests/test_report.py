"""Sentences written by code."""

import pytest
import torch

from residual_stream import report


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0, 3, "0"),
        (0.012345, 3, "0.0123"),
        (-0.5, 3, "−0.5"),
        (999.96, 3, "1\u202f000"),
        (25123.4, 2, "25\u202f000"),
        (2.5e-7, 2, "2.5·10⁻⁷"),
        (1.0, 3, "1"),
        (float("nan"), 3, "nan"),
        (float("inf"), 3, "inf"),
    ],
)
def test_numbers_have_significant_digits(value, digits, text):
    assert report.number(value, digits) == text


def test_a_tensor_is_a_number_too():
    assert report.number(torch.tensor(0.5, requires_grad=True).detach()) == "0.5"


def test_a_share_is_a_percentage():
    assert report.percent(0.8812) == "88 %"
    assert report.percent(1.0) == "100 %"


def test_a_spread_is_the_median_and_the_middle_ninety_percent():
    assert report.spread(torch.arange(101.0), 3) == "50 (middle 90 %: 5 to 95)"


def test_a_listing_reads_as_a_sentence():
    assert report.listing(["a"]) == "a"
    assert report.listing(["a", "b", "c"]) == "a, b and c"


def test_a_result_carries_its_claim():
    result = report.Result("B1", "true", "It is so.")
    bundle = result._repr_mimebundle_()
    assert bundle["text/markdown"] == "> **Result · B1 · ✓ true.** It is so."
    assert bundle[report.CLAIM_MIME]["verdict"] == "true"
    assert str(result) == bundle["text/plain"] == "Result (B1: true). It is so."


def test_a_verdict_the_book_does_not_know_is_refused():
    with pytest.raises(Exception, match=r"true with a caveat|verdict"):
        report.Result("B1", "mostly", "It is so.")
