"""No analysis answers from a ledger that does not close, and a closed one is audited once."""

import dataclasses
import importlib
import inspect
import pkgutil

import pytest
import torch

import residual_stream as rs
from residual_stream import stream as stream_module

# What each analysis needs besides the stream; one that is new must be added here.
ARGUMENTS = {
    "ablate_heads": {"heads": [(0, 1)]},
    "cancellations": {},
    "cancelled_share": {},
    "common_share": {},
    "logit_attribution": {"targets": 5},
    "rounding_by_depth": {"dtype": torch.bfloat16},
    "self_repair": {"heads": [(0, 1)], "targets": 5},
    "stream_norms": {},
}
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


def analyses():
    """Every public function of the package that takes a ResidualStream, by name."""
    found = {}
    for info in pkgutil.walk_packages(rs.__path__, f"{rs.__name__}."):
        module = importlib.import_module(info.name)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("_") or function.__module__ != module.__name__:
                continue
            kinds = [str(p.annotation) for p in inspect.signature(function).parameters.values()]
            if any("ResidualStream" in kind for kind in kinds):
                found[name] = function
    return found


# Reached through an analysis only, or returning a part of the stream with its audit.
# `ledger` draws what `switch_off` returned.
INTERNAL = {"along_each_write", "at_position", "branch_shares", "ledger"}
# Analyses of one text.
OF_ONE_TEXT = {"climb": {}, "switch_off": {"targets": [5], "writes": 2}}


def test_every_analysis_of_a_stream_is_in_the_list():
    assert set(analyses()) - INTERNAL == set(ARGUMENTS) | set(OF_ONE_TEXT)


@pytest.mark.parametrize("name", OF_ONE_TEXT)
def test_an_open_ledger_of_one_text_is_refused(name, bench):
    stream = rs.record(bench, "In the beginning")
    stream.writes[2, :, 1] += 0.5
    with pytest.raises(rs.LedgerError, match=f"^{name}: .*a write was changed or lost"):
        analyses()[name](stream, **OF_ONE_TEXT[name])


@pytest.fixture
def stream(bench):
    return rs.record(bench, TOKENS)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_open_ledger_is_refused_by_every_analysis(name, stream):
    function, arguments = analyses()[name], ARGUMENTS[name]
    function(stream, **arguments)  # the closed one, which is then remembered as closed
    stream.writes[2, :, 1] += 0.5
    with pytest.raises(rs.LedgerError, match=f"^{name}: .*a write was changed or lost"):
        function(stream, **arguments)
    stream.writes[2, :, 1] -= 0.5


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_block_that_did_not_close_when_recorded_is_refused_by_name(name, stream):
    first, *others = stream.blocks
    broken = dataclasses.replace(stream, blocks=(dataclasses.replace(first, error=0.1), *others))
    with pytest.raises(rs.LedgerError, match=f"^{name}: .*does not close at the embedding"):
        analyses()[name](broken, **ARGUMENTS[name])


def test_ablating_directions_to_their_mean_refuses_a_model_whose_ledger_is_open(bench):
    def hidden(value, hook):
        return value + 0.5

    with (
        bench.hooks(fwd_hooks=[("blocks.2.hook_in", hidden)]),
        pytest.raises(rs.LedgerError, match=r"^ablate_directions: the ledger does not close"),
    ):
        rs.coordinates.ablate_directions(bench, TOKENS, torch.eye(bench.cfg.d_model)[:1], to="mean")


def test_a_closed_ledger_is_audited_once_and_again_after_a_change(stream, monkeypatch):
    audits = []
    honest = stream_module.audit_ledger
    monkeypatch.setattr(
        stream_module,
        "audit_ledger",
        lambda *args, **options: audits.append(1) or honest(*args, **options),
    )
    stream.require_closed()
    stream.require_closed()
    assert len(audits) == 1
    stream.writes[3].mul_(1.0)  # through a view, and without effect: counted all the same
    stream.require_closed()
    assert len(audits) == 2
    dataclasses.replace(stream).require_closed()  # another object: nothing remembered
    assert len(audits) == 3
    stream.audit()  # asked for by name, it always measures
    assert len(audits) == 4


def test_a_change_that_pytorch_does_not_count_is_seen_by_the_audit(stream):
    stream.require_closed()
    stream.writes.data[2] += 0.5
    assert not stream.audit().ok


def test_tensors_of_inference_mode_are_audited_each_time(bench, monkeypatch):
    with torch.inference_mode():
        stream = rs.record(bench, TOKENS)
        stream.require_closed()
        stream.writes[2] = 0.0
        with pytest.raises(rs.LedgerError):
            stream.require_closed()
