"""Chapter 6: the page runs on other models and prompts as it stands, and goes red when broken.

The page decides no claim: those that it takes up again have their homes in chapters 1 to 4.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import transformers as hf

import residual_stream as rs
from chapter_cells import Chapter, patching, replacing, without_write

pytestmark = [pytest.mark.real, pytest.mark.slow]

LINE = 'NAME, DTYPE = "smollm2-135m", torch.float32'
STEPS = (
    "sizes", "sum", "deletions", "shares", "cancel", "lens", "many", "sweep", "compare", "rain",
    "hybrid",
)  # fmt: skip
SMALL = {
    "gpt2": lambda n: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=n, n_positions=96, n_embd=32, n_layer=4, n_head=4)
    ),
    "llama": lambda n: hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=n, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=96,
        )
    ),
    "pythia": lambda n: hf.GPTNeoXForCausalLM(
        hf.GPTNeoXConfig(
            vocab_size=n, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
            num_attention_heads=4, max_position_embeddings=96,
        )
    ),
    "qwen3.5": lambda n: hf.Qwen3_5ForCausalLM(
        hf.Qwen3_5TextConfig(
            vocab_size=n, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, linear_num_key_heads=2,
            linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
            full_attention_interval=4, max_position_embeddings=96,
        )
    ),
}  # fmt: skip


def cells(chapter, tag):
    return [cell.source for cell in chapter.cells if tag in cell.metadata.get("tags", [])]


def run(chapter, *tags, namespace, mutation=None):
    """Run the cells of some steps of the page in a copy of a namespace."""
    namespace = dict(namespace)
    sources = [source for tag in tags for source in cells(chapter, tag)]
    with mutation(namespace) if mutation is not None else nullcontext():
        chapter._run(sources, namespace)
    return namespace


@pytest.fixture(scope="module")
def chapter():
    return Chapter("06_probe")


def test_every_cell_belongs_to_a_step(chapter):
    tags = {tag for cell in chapter.cells for tag in cell.metadata.get("tags", [])}
    assert set(STEPS) <= tags
    assert not any(tag.startswith("claim-") for tag in tags)


def test_one_line_names_the_model(chapter):
    assert sum(LINE in source for source in cells(chapter, "setup")) == 1
    code = "\n".join(source for source in (cell.source for cell in chapter.cells))
    assert code.count("smollm2-135m") == 1


@pytest.fixture(scope="module", params=SMALL)
def another_model(request, tmp_path_factory):
    """A folder with a small random model of a kind, and a tokenizer that reads any text."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = rs.load("bench").tokenizer
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = SMALL[request.param](len(tokenizer))
        for parameter in model.parameters():
            noise = 0.2 * torch.randn(parameter.shape)
            parameter.copy_(parameter + noise if parameter.ndim == 1 else noise)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_page_runs_on_another_model_as_it_stands(chapter, another_model):
    namespace = {"__name__": "chapter"}
    sources = [
        source.replace(LINE, f"NAME, DTYPE = {str(another_model)!r}, torch.float32")
        for source in cells(chapter, "setup")
    ]
    chapter._run(sources, namespace)
    done = run(chapter, *(step for step in STEPS if step != "hybrid"), namespace=namespace)
    assert done["model"].cfg.n_layers == done["n_layers"] == 4 and len(done["stories"]) == 10


def test_the_page_runs_in_bfloat16(chapter):
    namespace = {"__name__": "chapter"}
    sources = [
        source.replace(LINE, 'NAME, DTYPE = "bench", torch.bfloat16')
        for source in cells(chapter, "setup")
    ]
    chapter._run(sources, namespace)
    done = run(chapter, *(step for step in STEPS if step != "hybrid"), namespace=namespace)
    assert done["low"] is done["model"] and done["steps"] > 0


def test_the_page_runs_on_other_prompts(chapter):
    prompts = ["It was a dark and stormy night, and the rain fell in", "Two plus two is"]
    namespace = {"__name__": "chapter"}
    sources = []
    for source in cells(chapter, "setup"):
        sources.append(source)
        if "PROMPTS = [" in source:
            sources.append(f"PROMPTS = {prompts!r}")
    chapter._run(sources, namespace)
    done = run(
        chapter, "sizes", "sum", "deletions", "shares", "cancel", "lens", "many",
        namespace=namespace,
    )  # fmt: skip
    assert [one.tokens[1:] for one in done["stories"]] != [] and len(done["stories"]) == 2


def broken_unembedding(own_logits):
    return lambda model, readout, top: own_logits(model, readout, -top)


def a_run_that_forgets_the_deletion(rerun_from):
    return lambda model, residual, layer, **options: rerun_from(model, residual, layer - 1)


def an_attribution_that_loses_a_part(logit_attribution):
    def losing(*arguments, **options):
        split = logit_attribution(*arguments, **options)
        values = split.values.clone()
        values[values.abs().flatten(1).amax(1).argmax()] = 0
        return replace(split, values=values)

    return losing


def a_lens_upside_down(lens_by_depth):
    def turned(*arguments, **options):
        lens = lens_by_depth(*arguments, **options)
        return replace(lens, top_ids=lens.top_ids.flip(0))

    return turned


def a_record_that_loses_a_write(record):
    return lambda *arguments, **options: without_write(9)(record(*arguments, **options))


def a_probe_that_deletes_nothing(probe):
    def blind(*arguments, **options):
        story = probe(*arguments, **options)
        return replace(story, layers=tuple(replace(one, kept=True) for one in story.layers))

    return blind


MUTATIONS = {
    "setup": (("setup",), patching(rs, "record", a_record_that_loses_a_write)),
    "sum": (("sum",), patching(rs, "record", a_record_that_loses_a_write)),
    "sizes": (("sizes",), replacing("updates", lambda updates: 0 * updates)),
    "deletions": (("deletions",), patching(rs, "rerun_from", a_run_that_forgets_the_deletion)),
    "readout": (("deletions",), patching(rs, "own_logits", broken_unembedding)),
    "shares": (
        ("shares",),
        patching(rs, "logit_attribution", an_attribution_that_loses_a_part),
    ),
    "cancel": (("cancel",), replacing("after", lambda after: after + 1)),
    "lens": (("lens",), patching(rs, "lens_by_depth", a_lens_upside_down)),
    "many": (("deletions", "shares", "many"), patching(rs, "probe", a_probe_that_deletes_nothing)),
}


@pytest.mark.parametrize("broken", [name for name in MUTATIONS if name != "setup"])
def test_a_step_fails_when_it_is_broken(chapter, broken):
    tags, mutation = MUTATIONS[broken]
    with pytest.raises(AssertionError):
        run(chapter, *tags, namespace=chapter.namespace, mutation=mutation)


def test_a_ledger_that_does_not_close_ends_the_page_at_its_first_step(chapter):
    with pytest.raises(AssertionError):
        run(chapter, "setup", namespace={"__name__": "chapter"}, mutation=MUTATIONS["setup"][1])


def test_a_gate_on_the_hybrids_shortcut_is_found(chapter):
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer

    def gated(forward):
        return lambda self, x, *rest, **named: forward(self, x, *rest, **named) - 0.01 * x

    run(chapter, "hybrid", namespace=chapter.namespace)
    with pytest.raises(rs.LedgerError, match="block 0"):
        run(
            chapter, "hybrid", namespace=chapter.namespace,
            mutation=patching(Qwen3_5DecoderLayer, "forward", gated),
        )  # fmt: skip


def test_the_mutations_left_the_model_as_it_was(chapter):
    assert chapter.records_as_before()
