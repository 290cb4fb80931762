"""The command line: what it prints where, and what a script reads off its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import torch

import residual_stream as rs
from residual_stream import cli
from test_gguf import original, write
from test_models import letters, llama

TEXT = "In the beginning God created the heaven and the"


@pytest.fixture(scope="module", autouse=True)
def cache_of_its_own(tmp_path_factory):
    """Conversions of these small files do not go into the reader's cache."""
    kept = os.environ.get("RESIDUAL_STREAM_CACHE")
    os.environ["RESIDUAL_STREAM_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    del os.environ["RESIDUAL_STREAM_CACHE"]
    if kept is not None:
        os.environ["RESIDUAL_STREAM_CACHE"] = kept


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that save_pretrained wrote."""
    path = tmp_path_factory.mktemp("saved")
    llama().save_pretrained(path)
    letters().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write(path, original())
    return path


def run(capsys, *arguments):
    status = cli.main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_an_audit_that_closes_is_a_table_and_status_0(capsys):
    status, out, err = run(capsys, "audit", "bench", "--text", TEXT)
    assert (status, err) == (0, "") and out.splitlines()[-1].startswith("the ledger closes")


def test_an_audit_needs_no_text(capsys):
    status, out, _ = run(capsys, "audit", "bench", "--json")
    assert status == 0 and json.loads(out)["tokens"] == 64


def test_an_audit_as_json_holds_the_three_checks(capsys):
    status, out, _ = run(capsys, "audit", "bench", "--text", TEXT, "--json", "--dtype", "bf16")
    found = json.loads(out)
    assert status == 0 and found["ok"] and found["dtype"] == "bfloat16"
    assert found["replay_error"] == 0 and 0 < found["sum_error"] <= found["bound"]
    assert found["stages_closed"] == found["stages"] == 5 and found["open"] == []


def leaking(load):
    def leaky(*arguments, **options):
        model = load(*arguments, **options)
        model.blocks[2].original_component.register_forward_hook(
            lambda module, inputs, output: (
                (1.01 * output[0], *output[1:]) if isinstance(output, tuple) else 1.01 * output
            )
        )
        return model

    return leaky


@pytest.mark.parametrize("command", ["audit", "probe"])
def test_an_open_ledger_is_status_1_and_names_the_block(command, capsys, monkeypatch):
    monkeypatch.setattr("residual_stream.models.load", leaking(rs.load))
    status, out, err = run(capsys, command, "bench", "--text", TEXT)
    assert status == 1 and "block 2 (GPT2Block)" in out + err
    assert err.count("\n") == (command == "probe")


def test_an_open_ledger_as_json_says_where(capsys, monkeypatch):
    monkeypatch.setattr("residual_stream.models.load", leaking(rs.load))
    status, out, _ = run(capsys, "audit", "bench", "--text", TEXT, "--json")
    found = json.loads(out)
    assert status == 1 and not found["ok"] and found["open"][0]["layer"] == 2


def test_a_probe_is_a_table_with_its_findings(capsys):
    status, out, err = run(capsys, "probe", "bench", "--text", TEXT)
    assert (status, err) == (0, "")
    assert out == str(rs.probe(rs.load("bench"), TEXT)) + "\n"


def test_a_probe_as_json_is_the_library_functions(capsys):
    status, out, _ = run(
        capsys, "probe", "bench", "--text", TEXT, "--json", "--position", "4", "--target", " the"
    )
    story = rs.probe(rs.load("bench"), TEXT, position=4, target=" the")
    assert status == 0 and json.loads(out) == json.loads(json.dumps(story.to_dict()))


@pytest.mark.parametrize("command", ["audit", "probe"])
def test_a_folder_and_a_gguf_file_are_models(command, folder, gguf_file, capsys):
    assert run(capsys, command, folder, "--text", "abc")[0] == 0
    status, out, err = run(capsys, command, gguf_file, "--text", "the", "--json")
    assert status == 0 and json.loads(out)["model"] == "small.gguf"
    assert "converting" in err or command == "probe"  # once


def test_a_gguf_file_is_the_model_that_was_written(gguf_file):
    model = rs.load(gguf_file, device="cpu")
    ids = torch.arange(40, 60)[None]
    with torch.no_grad():
        assert torch.equal(model(ids), original()(ids).logits)
    assert model.tokenizer.decode(model.to_tokens(" the", prepend_bos=False)[0]) == " the"
    assert model.cfg.model_name == "small.gguf" and not model.training


def test_a_changed_gguf_file_is_converted_anew(tmp_path):
    path = tmp_path / "changing.gguf"
    firsts = []
    for seed in (0, 1):
        write(path, original(seed))
        firsts.append(rs.load(path, device="cpu").W_E[5, 0])
    assert firsts[0] != firsts[1]


def test_a_gguf_file_with_another_tokenizer_takes_ids(tmp_path, capsys):
    path = tmp_path / "other.gguf"
    write(path, original(), pre="llama-bpe")
    assert run(capsys, "audit", path, "--text", "5 9 3", "--ids")[0] == 0
    assert run(capsys, "audit", path)[0] == 0
    status, _, err = run(capsys, "probe", path, "--text", "the")
    assert status == 2 and "no tokenizer" in err
    with pytest.raises(ValueError, match="revision is for Hugging Face names"):
        rs.load(path, revision="main")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architecture": "qwen2"}, "holds a 'qwen2' model"),
        ({"scaled": True}, "rotary embedding is scaled"),
        ({"beside": ("blk.0.attn_q_norm.weight",)}, "isn't known"),
    ],
)
def test_a_gguf_file_of_another_kind_is_refused(change, said, tmp_path, capsys):
    path = tmp_path / "other.gguf"
    write(path, original(), **change)
    status, out, err = run(capsys, "audit", path)
    assert (status, out) == (3, "") and said in err.splitlines()[-1]


def test_what_is_no_gguf_file_is_refused(tmp_path, capsys):
    (tmp_path / "no.gguf").write_bytes(b"not a model, but long enough to be read as one" * 9)
    status, _, err = run(capsys, "audit", tmp_path / "no.gguf")
    assert status == 3 and "can't be read as a GGUF file" in err


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("audit", "no-such-model"), 3, "hf download no-such-model"),
        (("audit", "./no-such-folder"), 3, "there is no folder"),
        (("audit", "none.gguf"), 3, "there is no file none.gguf"),
        (("audit", "bench", "--device", "abacus"), 2, "unknown to torch"),
        (("audit", "bench", "--device", "cpu", "--device-map", "auto"), 2, "one of --device"),
        (("audit", "bench", "--text", ""), 2, "the text is empty"),
        (("audit", "bench", "--ids", "--text", "1 x"), 2, "wants integers"),
        (("audit", "bench", "--ids", "--text", "99999"), 2, "outside the vocabulary"),
        (("probe", "bench", "--text", TEXT, "--position", "99"), 2, "position 99 is outside"),
        (("probe", "bench", "--text", TEXT, "--target", "xyzzyx"), 2, "tokens"),
        (("probe", "bench", "--text", TEXT, "--ids"), 2, "wants integers"),
        (("probe", "bench", "--text", TEXT, "--report", "no/such/p.html"), 2, "there is no folder"),
    ],
)
def test_an_error_is_one_line_on_stderr_and_its_status(arguments, status, said, capsys):
    got, out, err = run(capsys, *arguments)
    assert (got, out) == (status, "")
    assert err.count("\n") == 1 and err.startswith("residual-stream: ") and said in err


def test_a_failure_of_the_models_own_code_is_one_line_too(capsys, monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("expected scalar type Float\nbut found BFloat16")

    monkeypatch.setattr("residual_stream.stream.record", broken)
    status, _, err = run(capsys, "audit", "bench")
    assert status == 4 and err.count("\n") == 1 and "RuntimeError: expected scalar" in err
    monkeypatch.setenv("RESIDUAL_STREAM_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="expected scalar"):
        cli.main(["audit", "bench"])


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError])
def test_a_model_that_does_not_fit_can_not_be_had(kind, capsys, monkeypatch):
    def full(*arguments, **options):
        raise kind("CUDA out of memory.")

    monkeypatch.setattr("residual_stream.stream.record", full)
    assert run(capsys, "audit", "bench")[0] == 3


@pytest.mark.parametrize("arguments", [[], ["probe", "bench"], ["audit", "bench", "--dtype", "x"]])
def test_argparse_ends_wrong_use_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2 and "error:" in capsys.readouterr().err


def test_models_are_listed(capsys):
    status, out, _ = run(capsys, "models")
    assert status == 0 and all(name in out for name in rs.available().names)
    status, out, _ = run(capsys, "models", "--json")
    assert [entry["name"] for entry in json.loads(out)] == rs.available().names


class Loads(HTMLParser):
    """Everything that a page would ask for, and what a script would run."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.tags, self.words, self.alts = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        values = dict(attributes)
        self.addresses += [v for k, v in values.items() if k in ("src", "href", "srcset", "data")]
        self.alts += [values["alt"]] if tag == "img" else []
        assert not any(name.startswith("on") for name in values)

    def handle_data(self, data):
        self.words.append(data)


def test_a_report_is_one_page_that_asks_no_host_for_anything(tmp_path, capsys):
    path = tmp_path / "story.html"
    text = 'In the <script>alert("1")</script> beginning & <b>God</b>'
    status, _, _ = run(capsys, "probe", "bench", "--text", text, "--report", path)
    page = path.read_text(encoding="utf-8")
    found = Loads(page)
    assert status == 0 and found.addresses and "script" not in found.tags
    assert all(address.startswith("data:image/png;base64,") for address in found.addresses)
    assert "url(" not in page and "@import" not in page and "http" not in page
    assert "prefers-color-scheme: dark" in page and len(found.alts) == 5
    assert all(len(alt) >= 40 for alt in found.alts)
    story = rs.probe(rs.load("bench"), text)
    assert all(sentence in "".join(found.words) for sentence in story.findings())
    assert text in "".join(found.words) or "unk" in "".join(story.tokens)


def module(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "residual_stream", *arguments],
        capture_output=True, text=True, timeout=300, **options,
    )  # fmt: skip


@pytest.mark.slow
def test_the_module_runs_as_a_program():
    done = module("probe", "bench", "--text", TEXT, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["audit"]["ok"]
    assert done.stderr == ""  # no bar: stderr is no terminal
    done = module("audit", "no-such-model")
    assert done.returncode == 3 and done.stdout == "" and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -m residual_stream probe bench --text beginning | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.count("\n") == 1 and "BrokenPipe" not in done.stderr


def test_what_nobody_read_is_not_reported_as_success():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "residual_stream", "models"],
        stdout=writer, stderr=subprocess.PIPE, text=True, timeout=300,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 141 and done.stderr == ""
