"""Loading: one state at the end of every way, and errors that say what to do."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

import residual_stream as rs
from residual_stream import catalogue, devices
from residual_stream.checkpoint_files import checkpoint_name, save_weights, write_manifest
from residual_stream.fetch import DamagedError, FetchError, NoNetworkError

IDS = torch.tensor([[0, 5, 9, 3]])


def gpt2(seed: int = 0, dtype: torch.dtype = torch.float32) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=40,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config).to(dtype)


def llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config)


def letters(*, bos: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer that no file and no hub knows: one token a letter."""
    vocabulary = {"<s>": 0} | {chr(97 + i): i + 1 for i in range(26)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    special = {"bos_token": "<s>", "eos_token": "<s>"} if bos else {"eos_token": "<s>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def weights(model: GPT2LMHeadModel) -> dict[str, torch.Tensor]:
    return {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A package that ships one small model, called bench, with two checkpoints."""
    folder = tmp_path / "data" / "bench"
    save_weights(folder / checkpoint_name(0), weights(gpt2(0)))
    save_weights(folder / "model.safetensors", weights(gpt2(1)))
    gpt2().config.save_pretrained(folder)
    letters().save_pretrained(folder)
    write_manifest(folder, last_step=8, training={})
    monkeypatch.setattr(catalogue, "DATA", tmp_path / "data")
    return folder


@pytest.fixture
def saved(tmp_path):
    """A folder that save_pretrained wrote."""
    llama().save_pretrained(tmp_path / "saved")
    letters().save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


# every way to load


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        out = model(IDS.to(next(model.parameters()).device))
    return out if isinstance(out, torch.Tensor) else out.logits


def plain(model: torch.nn.Module) -> torch.Tensor:
    """Logits of an untouched copy, on eager attention as every loaded model is."""
    model.set_attn_implementation("eager")
    return logits(model.eval())


# TransformerLens splits GPT-2's joint query-key-value matrix in three: equal up to rounding
ROUNDING = {"rtol": 0, "atol": 1e-6}


@pytest.mark.parametrize(("make", "bars"), [(gpt2, ROUNDING), (llama, {"rtol": 0, "atol": 0})])
@pytest.mark.parametrize("tokenizer", [None, "letters"])
def test_a_model_in_memory_is_wrapped_and_gives_its_own_logits(make, bars, tokenizer):
    expected, hf = plain(make()), make()
    bridge = rs.load(hf, tokenizer=letters() if tokenizer else None)
    assert bridge.original_model is hf
    torch.testing.assert_close(logits(bridge), expected, **bars)
    assert not bridge.training
    assert not hf.training
    assert hf.config._attn_implementation == "eager"
    assert all(parameter.requires_grad for parameter in hf.parameters())


def test_a_model_without_tokenizer_takes_token_ids_and_says_so_for_text():
    bridge = rs.load(gpt2())
    assert bridge.tokenizer is None
    assert rs.record(bridge, IDS).audit().ok
    with pytest.raises(ValueError, match=r"no tokenizer; pass token ids, or load"):
        rs.record(bridge, "abc")


@pytest.mark.parametrize("bos", [True, False])
def test_a_tokenizer_in_memory_is_copied_and_needs_no_hub(bos):
    tokenizer = letters(bos=bos)
    bridge = rs.load(gpt2(), tokenizer=tokenizer)
    assert bridge.to_tokens("abc").tolist() == [[0, 1, 2, 3]]
    assert bridge.to_tokens("abc", prepend_bos=False).tolist() == [[1, 2, 3]]
    assert tokenizer("abc").input_ids == [1, 2, 3]
    assert tokenizer.pad_token is None
    assert (tokenizer.bos_token == "<s>") is bos


def test_a_folder_is_loaded_without_network(saved):
    from_string, from_path = rs.load(str(saved), device="cpu"), rs.load(saved, device="cpu")
    assert torch.equal(logits(from_string), plain(llama()))
    assert torch.equal(logits(from_path), logits(from_string))
    assert from_path.to_tokens("ab").tolist() == [[0, 1, 2]]


def test_a_bridge_is_given_back_in_eval_mode():
    bridge = rs.load(gpt2())
    bridge.train()
    assert rs.load(bridge) is bridge
    assert not bridge.training
    assert not bridge.original_model.training


def test_a_shipped_model_loads_at_the_end_and_at_every_checkpoint(shipped):
    assert rs.checkpoints("bench") == [0, 8]
    end, start = rs.load("bench", device="cpu"), rs.load("bench", device="cpu", checkpoint=0)
    torch.testing.assert_close(logits(end), plain(gpt2(1).half().float()), **ROUNDING)
    torch.testing.assert_close(logits(start), plain(gpt2(0).half().float()), **ROUNDING)
    assert (logits(end) - logits(start)).abs().max() > 0.1
    assert torch.equal(logits(rs.load("bench", device="cpu", checkpoint=8)), logits(end))
    assert end.to_tokens("abc").tolist() == [[0, 1, 2, 3]]
    assert end.cfg.dtype is torch.float32, "float16 is only how it is stored"
    # the output head is the embedding, not a random matrix of its own
    hf = end.original_model
    assert hf.get_output_embeddings().weight is hf.get_input_embeddings().weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("way", ["name", "folder", "memory", "no tokenizer", "bridge"])
def test_the_configuration_says_what_the_weights_are(way, dtype, shipped, saved):
    bridge = {
        "name": lambda: rs.load("bench", device="cpu", dtype=dtype),
        "folder": lambda: rs.load(saved, device="cpu", dtype=dtype),
        "memory": lambda: rs.load(gpt2(dtype=dtype), tokenizer=letters()),
        "no tokenizer": lambda: rs.load(gpt2(dtype=dtype)),
        "bridge": lambda: rs.load(rs.load(gpt2()), dtype=dtype),
    }[way]()
    assert {p.dtype for p in bridge.parameters()} == {dtype}
    assert bridge.cfg.dtype is dtype
    assert torch.device(bridge.cfg.device) == next(bridge.parameters()).device
    expected = {"name": "bench", "folder": str(saved)}.get(way, "GPT2LMHeadModel")
    assert bridge.cfg.model_name == expected
    assert logits(bridge).dtype is dtype


@pytest.mark.gpu
def test_a_model_goes_to_the_accelerator_and_the_configuration_says_so(shipped):
    best = rs.load("bench")
    assert next(best.parameters()).device.type in ("cuda", "mps")
    assert torch.device(best.cfg.device) == next(best.parameters()).device
    hf = gpt2()
    assert rs.load(hf).cfg.device == "cpu", "a loaded model stays where it is"
    moved = rs.load(hf, device=best.cfg.device)
    assert torch.device(moved.cfg.device) == next(hf.parameters()).device
    assert torch.allclose(logits(best).cpu(), logits(rs.load("bench", device="cpu")), atol=1e-4)


def test_loading_leaves_the_random_state_alone(shipped, saved):
    before = torch.get_rng_state()
    rs.load("bench", device="cpu")
    rs.load("bench", device="cpu", checkpoint=0)
    rs.load(saved, device="cpu")
    rs.load(gpt2(), tokenizer=letters())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("level", [logging.WARNING, logging.DEBUG])
@pytest.mark.parametrize("bars", [True, False])
def test_loading_leaves_the_users_logging_and_progress_bars_alone(level, bars, shipped, capsys):
    logger = logging.getLogger("transformers")
    level_before, bars_before = logger.level, transformers_logging.is_progress_bar_enabled()

    def show(on: bool) -> None:
        if on:
            transformers_logging.enable_progress_bar()
        else:
            transformers_logging.disable_progress_bar()

    try:
        logger.setLevel(level)
        show(bars)
        rs.load("bench", device="cpu")
        assert logger.level == level
        assert transformers_logging.is_progress_bar_enabled() is bars
    finally:
        logger.setLevel(level_before)
        show(bars_before)
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_importing_the_library_does_not_import_transformer_lens():
    # nor does the first load leave transformers' logger at TransformerLens's ERROR
    code = """
import logging, sys
import residual_stream as rs
assert "transformer_lens" not in sys.modules
assert "transformers" not in sys.modules
from transformers import GPT2Config, GPT2LMHeadModel
before = logging.getLogger("transformers").level
sizes = dict(n_embd=8, n_head=2, n_layer=1, vocab_size=9, bos_token_id=0, eos_token_id=0)
rs.load(GPT2LMHeadModel(GPT2Config(**sizes)))
assert logging.getLogger("transformers").level == before != logging.ERROR
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# the catalogue


def test_the_catalogue_prints_as_a_table_in_text_markdown_and_pandas(shipped):
    table = rs.available()
    assert table.names == ["smollm2-135m", "bench"]
    lines = repr(table).splitlines()
    assert [line.split()[0] for line in lines] == ["name", "smollm2-135m", "bench"]
    assert "93 MB to fetch once" in lines[1]
    assert "Apache-2.0" in lines[1]
    markdown = table._repr_markdown_().splitlines()
    assert markdown[0] == "| name | what | size | license | source |"
    assert markdown[1] == "| --- | --- | --- | --- | --- |"
    assert len(markdown) == 2 + len(table)
    assert table.to_frame()["name"].tolist() == table.names


def test_only_what_ships_is_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "DATA", tmp_path)
    assert rs.available().names == ["smollm2-135m"]
    with pytest.raises(ValueError, match=r"'bench' has none; models with checkpoints: none ships"):
        rs.checkpoints("bench")


# errors


def test_an_unknown_name_is_told_what_exists_and_that_the_hub_needs_a_network(shipped):
    with pytest.raises(ValueError, match="load: ") as error:
        rs.load("smolm2-135")
    said = str(error.value)
    assert "Did you mean 'smollm2-135m'?" in said
    assert "'smollm2-135m', 'bench'" in said
    assert "Hugging Face names need a network" in said


def test_without_network_a_hub_name_is_told_which_command_to_run_where():
    with pytest.raises(NoNetworkError, match=r"`hf download EleutherAI/pythia-70m --revision s`"):
        rs.load("EleutherAI/pythia-70m", revision="s")


@pytest.mark.parametrize("name", ["a/b/c", "no such name", ""])
def test_what_cant_be_a_hub_name_is_an_unknown_name(name):
    with pytest.raises(ValueError, match=r"load: no model .*, here or on the Hugging Face hub"):
        rs.load(name)


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/model", "~/nowhere/model"])
def test_a_folder_that_is_not_there_is_named(name):
    with pytest.raises(ValueError, match=r"load: there is no folder .*nowhere"):
        rs.load(name)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json; pass one that save_pretrained wrote"):
        rs.load(tmp_path)


def test_a_pickle_is_never_read(saved):
    (saved / "model.safetensors").unlink()
    (saved / "pytorch_model.bin").write_bytes(b"not even opened")
    with pytest.raises(ValueError, match=r"no model\.safetensors, and other .* \(pickles\)"):
        rs.load(saved)


def hub_cache(root: Path, files: dict[str, bytes], *, name: str = "someone/tiny") -> None:
    """The hub's cache after `hf download`."""
    repo, commit = root / f"models--{name.replace('/', '--')}", "0" * 40
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots" / commit).mkdir(parents=True)
    for file, data in files.items():
        (repo / "snapshots" / commit / file).write_bytes(data)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


@pytest.mark.parametrize("sharded", [False, True])
def test_a_hub_model_in_the_cache_is_complete_for_us_offline(hub, sharded, saved):
    files = {file.name: file.read_bytes() for file in saved.iterdir()}
    if sharded:
        files["part-1.safetensors"] = files.pop("model.safetensors")
        index = {"weight_map": {"lm_head.weight": "part-1.safetensors"}}
        files["model.safetensors.index.json"] = json.dumps(index).encode()
    hub_cache(hub, files)
    from residual_stream.hub import bring

    bring("someone/tiny", known="")


def test_a_hub_model_in_the_cache_loads_offline(hub, saved):
    hub_cache(hub, {file.name: file.read_bytes() for file in saved.iterdir()})
    model = rs.load("someone/tiny", device="cpu", revision="main")
    assert torch.equal(logits(model), plain(llama()))
    assert model.cfg.model_name == "someone/tiny"
    assert model.to_tokens("ab").tolist() == [[0, 1, 2]]


def test_a_hub_model_with_only_a_pickle_in_the_cache_is_refused(hub, saved):
    hub_cache(hub, {"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    with pytest.raises(NoNetworkError, match="`hf download someone/tiny`"):
        rs.load("someone/tiny")


def refused(kind: str | None):
    """Stand in for the hub's answer; None is that it knows the model."""

    def ask(*args, **kwargs):
        if kind is not None:
            raise answer(kind)

    return ask


def answer(kind: str) -> Exception:
    import httpx
    from huggingface_hub import errors

    response = httpx.Response(404, request=httpx.Request("GET", "https://example.org"))
    if kind == "ConnectError":
        return httpx.ConnectError("no route to host")
    return getattr(errors, kind)(kind, response=response)


@pytest.mark.parametrize(
    ("kind", "expected", "said"),
    [
        ("RepositoryNotFoundError", ValueError, "no model 'bensh'.*Did you mean 'bench'"),
        ("GatedRepoError", FetchError, "accept the licence on its hub page"),
        ("RevisionNotFoundError", ValueError, "bensh has no revision 'x' on the Hugging Face hub"),
        ("RemoteEntryNotFoundError", ValueError, "has no config.json on the Hugging Face hub"),
        ("ConnectError", NoNetworkError, "run `hf download bensh --revision x`"),
    ],
)
def test_what_the_hub_refuses_is_said_in_our_words(kind, expected, said, monkeypatch, shipped):
    import huggingface_hub

    asked_first = None if kind == "RemoteEntryNotFoundError" else kind  # of a model that is there
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refused(asked_first))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refused(kind))
    with pytest.raises(expected, match=f"(?s)load: .*{said}"):
        rs.load("bensh", revision="x")


def test_a_hub_that_is_not_there_is_asked_once(monkeypatch):
    import huggingface_hub

    def downloaded(*args, **kwargs):
        raise AssertionError("it went on to the download, which tries again and again")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refused("ConnectError"))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", downloaded)
    with pytest.raises(NoNetworkError, match="run `hf download someone/new`"):
        rs.load("someone/new")


def test_a_hub_model_without_safetensors_is_refused_before_its_weights_are_fetched(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refused(None))
    asked = []

    def download(name, file, **kwargs):
        asked.append(file)
        if file != "config.json":
            raise answer("RemoteEntryNotFoundError")
        return file

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(ValueError, match=r"someone/old has no model\.safetensors"):
        rs.load("someone/old")
    assert asked == ["config.json", "model.safetensors.index.json", "model.safetensors"]


@pytest.mark.parametrize("change", ["a weight less", "a weight more"])
def test_shipped_weights_that_do_not_fit_the_model_are_never_loaded(shipped, change):
    state = weights(gpt2())
    if change == "a weight less":
        del state["transformer.h.1.ln_2.bias"]
    else:
        state["transformer.h.2.ln_2.bias"] = torch.zeros(32)
    save_weights(shipped / "model.safetensors", state)
    write_manifest(shipped, last_step=8, training={})
    with pytest.raises(DamagedError, match=r"ln_2\.bias is missing, or has no place"):
        rs.load("bench", device="cpu")


def test_a_damaged_shipped_file_is_never_loaded(shipped):
    file = shipped / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedError, match=r"model\.safetensors has sha256 .*install the package"):
        rs.load("bench")


def test_a_checkpoint_that_is_not_there_is_named(shipped):
    with pytest.raises(ValueError, match=r"load: bench has no checkpoint 5; steps are \[0, 8\]"):
        rs.load("bench", checkpoint=5)


@pytest.mark.parametrize("what", ["smollm2-135m", "gpt2", "memory"])
def test_a_checkpoint_of_what_has_none_is_refused(what, shipped):
    with pytest.raises(ValueError, match=r"got checkpoint=0 for .*only models that ship here have"):
        rs.load(gpt2() if what == "memory" else what, checkpoint=0)


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "meta"])
def test_a_device_that_is_not_here_is_refused_with_those_that_are(device, shipped):
    with pytest.raises(ValueError, match=r"load: .*" + device + r".*usable here: .*'cpu'"):
        rs.load("bench", device=device)


def test_cuda_without_cuda_is_refused_for_a_loaded_model_too(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"finds no device 'cuda' on this machine; usable here: "):
        rs.load(gpt2(), device="cuda")


def test_the_best_device_is_cuda_then_mps_then_cpu(monkeypatch):
    for present, best in [({"cuda", "mps"}, "cuda"), ({"mps"}, "mps"), (set(), "cpu")]:
        monkeypatch.setattr(devices, "_usable", lambda kind, here=present: kind in here | {"cpu"})
        assert devices.choose_device(None, None).type == best


def test_mps_has_no_float64(monkeypatch):
    monkeypatch.setattr(devices, "_usable", lambda kind: kind in ("mps", "cpu"))
    assert devices.choose_device(None, torch.float64).type == "cpu"
    with pytest.raises(ValueError, match="mps has no float64; pass device='cpu'"):
        devices.choose_device("mps", torch.float64)


@pytest.mark.parametrize("dtype", [torch.int8, torch.long, torch.bool])
def test_a_dtype_that_does_not_float_is_refused(dtype, shipped):
    with pytest.raises(ValueError, match=f"dtype {dtype} is not a floating type; pass torch"):
        rs.load("bench", dtype=dtype)


def test_options_are_refused_by_name_where_they_mean_nothing(shipped, saved):
    with pytest.raises(ValueError, match=r"revision is for Hugging Face names .* not for 'bench'"):
        rs.load("bench", revision="main")
    with pytest.raises(ValueError, match=r"device_map is for .* not for a loaded GPT2LMHeadModel"):
        rs.load(gpt2(), device_map="auto")
    with pytest.raises(ValueError, match="unknown option 'dtyp'; options are code_revision, "):
        rs.load(saved, dtyp=torch.float32)
    with pytest.raises(ValueError, match="got device='cpu' and device_map; pass one of the two"):
        rs.load(saved, device="cpu", device_map="auto")


def test_options_reach_the_boot_of_a_folder(saved):
    assert rs.load(saved, device="cpu", n_ctx=8).cfg.n_ctx == 8


@pytest.mark.parametrize("spread", ["cpu", {"": "cpu"}])
def test_a_folder_that_accelerate_places_is_recorded_and_probed(saved, spread):
    model = rs.load(saved, device_map=spread)
    placed = rs.probe(model, IDS[0])
    assert placed.audit.ok
    assert placed.to_dict() == rs.probe(rs.load(saved, device="cpu"), IDS[0]).to_dict()


def test_a_second_tokenizer_is_refused(shipped):
    with pytest.raises(ValueError, match="'bench' brings its own tokenizer"):
        rs.load("bench", tokenizer=letters())
    with pytest.raises(ValueError, match="a bridge has its tokenizer already"):
        rs.load(rs.load(gpt2()), tokenizer=letters())


def test_a_module_that_is_no_language_model_is_refused():
    with pytest.raises(TypeError, match="got a Linear; pass a transformers model"):
        rs.load(torch.nn.Linear(2, 2))


def test_a_model_inside_another_module_is_named():
    with pytest.raises(
        TypeError, match=r"got a DataParallel; .*\(pass the LlamaForCausalLM inside"
    ):
        rs.load(torch.nn.DataParallel(llama()))


def test_a_model_that_is_wrapped_already_is_refused_and_the_first_bridge_still_records():
    hf = llama()
    bridge = rs.load(hf)
    with pytest.raises(ValueError, match="this LlamaForCausalLM is wrapped by an earlier load"):
        rs.load(hf)
    assert rs.record(bridge, IDS).audit().ok


def test_trying_whether_a_model_runs_fires_no_hook_of_the_caller():
    bridge, seen = rs.load(llama(), dtype=torch.bfloat16), []
    bridge.add_hook("blocks.0.hook_in", lambda value, hook: seen.append(value))
    rs.load(bridge)
    assert seen == []


# the real model


@pytest.mark.real
def test_the_real_model_is_what_the_catalogue_says(smollm2):
    cfg = smollm2.cfg
    assert (cfg.n_layers, cfg.d_model, cfg.n_heads, cfg.n_key_value_heads) == (30, 576, 9, 3)
    assert (cfg.dtype, cfg.device, cfg.model_name) == (torch.float32, "cpu", "smollm2-135m")
    assert not smollm2.training
    assert smollm2.to_str_tokens("The quick") == ["<|im_start|>", "The", " quick"]


@pytest.mark.real
def test_the_real_model_gives_the_logits_of_plain_transformers(smollm2):
    hf = LlamaForCausalLM.from_pretrained(
        catalogue.smollm2_folder(), attn_implementation="eager", dtype=torch.float32
    ).eval()
    ids = smollm2.to_tokens("A stream carries everything that was written to it.")
    with torch.no_grad():
        assert torch.equal(smollm2(ids), hf(ids).logits)


def test_a_conversion_that_gives_other_weights_is_refused(tmp_path, monkeypatch):
    from residual_stream import gguf

    (tmp_path / "result").mkdir()
    monkeypatch.setattr(catalogue, "obtain", lambda pinned, work: work / "file.gguf")
    monkeypatch.setattr(gguf, "convert", lambda source, folder: "0" * 64)
    with pytest.raises(DamagedError, match=f"checksum {'0' * 64}, expected [0-9a-f]{{64}}"):
        catalogue._make_smollm2(tmp_path, tmp_path / "result")
