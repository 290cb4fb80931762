"""Writes kept off the model's device serve every analysis, as on a GPU that the model fills."""

from __future__ import annotations

import pytest
import torch

import residual_stream as rs
from residual_stream import architectures
from test_open_ledger import ARGUMENTS, OF_ONE_TEXT, TOKENS, analyses
from two_devices import ELSEWHERE, TwoDevices, is_elsewhere


def numbers(value):
    """Every tensor of a result, by name."""
    fields = value if isinstance(value, dict) else getattr(value, "__dict__", {"value": value})
    return {name: part.cpu() for name, part in fields.items() if isinstance(part, torch.Tensor)}


def test_what_is_kept_elsewhere_does_not_mix_with_the_models_own(bench):
    with TwoDevices():
        stream = rs.record(bench, TOKENS, device=ELSEWHERE)
        assert is_elsewhere(stream.writes) and is_elsewhere(stream.top)
        assert stream.writes.device == ELSEWHERE
        for mixed in (
            lambda: stream.top @ bench.W_U,
            lambda: bench.W_U.T @ stream.top[0, 0],
            lambda: torch.stack([stream.top[0, 0], bench.W_U[:, 0]]),
            lambda: stream.top[:, torch.tensor([1])],
        ):
            with pytest.raises(RuntimeError, match="on the same device"):
                mixed()
        assert not is_elsewhere(stream.top.to(bench.W_U) @ bench.W_U)
    assert stream.audit().ok


@pytest.mark.parametrize("name", [*ARGUMENTS, *OF_ONE_TEXT])
def test_every_analysis_takes_a_stream_that_is_kept_elsewhere(name, bench):
    text = "In the beginning" if name in OF_ONE_TEXT else TOKENS
    arguments = (ARGUMENTS | OF_ONE_TEXT)[name]
    expected = analyses()[name](rs.record(bench, text), **arguments)
    with TwoDevices():
        got = analyses()[name](rs.record(bench, text, device=ELSEWHERE), **arguments)
        found = numbers(got)
    for field, value in numbers(expected).items():
        assert torch.equal(found[field], value), field


@pytest.mark.parametrize("unit", ["layer", "sublayer", "head", "neuron"])
@pytest.mark.parametrize("name", ["llama", "gpt1", "gemma2", "neox"])
def test_a_logit_is_split_wherever_the_stream_is_kept(name, unit):
    model = architectures.random_model(name)
    expected = rs.logit_attribution(rs.record(model, architectures.TOKENS), 5, unit=unit)
    kept = [unit] if unit in ("head", "neuron") else []
    with TwoDevices():
        stream = rs.record(model, architectures.TOKENS, device=ELSEWHERE, units=kept)
        got = rs.logit_attribution(stream, 5, unit=unit)
        values = got.values.cpu()
    torch.testing.assert_close(values, expected.values)


@pytest.mark.parametrize("name", ["llama", "gpt1"])
def test_a_probe_keeps_its_stream_elsewhere(name):
    model = architectures.random_model(name)
    ids = architectures.TOKENS[0].tolist()
    expected = rs.probe(model, ids).to_dict()
    with TwoDevices():
        got = rs.probe(model, ids, device=ELSEWHERE)
    assert got.to_dict() == expected
