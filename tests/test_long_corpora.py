"""A corpus longer than memory: the same numbers as at once, and a peak that does not grow."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

import residual_stream as rs
from residual_stream.architectures import random_model
from residual_stream.long_corpora import corpus_shares, over_corpus

TEXTS = list(rs.texts.PASSAGES.values())


def test_rows_are_filled_end_to_end_behind_the_start_token(bench):
    streams = list(over_corpus(bench, iter(TEXTS), length=32, batch=5))
    start, ids = bench.tokenizer.bos_token_id, []
    for text in TEXTS:
        ids += bench.tokenizer(text, add_special_tokens=False)["input_ids"]
    first = [] if start is None else [start]
    width = 32 - len(first)
    rows = torch.cat([stream.tokens for stream in streams])
    expected = [first + ids[i : i + width] for i in range(0, len(ids) - width + 1, width)]
    assert rows.tolist() == expected and [len(s.tokens) for s in streams[:-1]] == [5] * (
        len(streams) - 1
    )
    assert all(stream.audit().ok for stream in streams)


@pytest.mark.parametrize("unit", ["layer", "sublayer", "head"])
def test_the_shares_are_those_of_the_whole_corpus_at_once(bench, unit):
    shares = corpus_shares(bench, TEXTS, unit=unit, length=32, batch=3)
    rows = torch.cat([stream.tokens for stream in over_corpus(bench, TEXTS, length=32)])
    stream = rs.record(bench, rows)
    with torch.no_grad():
        wanted = bench(rows, return_type="logits")[:, 1:].argmax(-1)
    whole = rs.logit_attribution(stream, wanted, unit=unit, position=slice(1, None))
    assert shares.labels == whole.labels and torch.equal(shares.targets, wanted.flatten())
    assert torch.allclose(shares.values, whole.values.flatten(1), atol=1e-4)
    assert torch.allclose(shares.values.sum(0), shares.logit, atol=1e-3)
    assert torch.allclose(shares.fractions.sum(0), torch.ones(len(shares.logit)), atol=1e-2)


def test_the_next_token_can_be_the_target(bench):
    shares = corpus_shares(bench, TEXTS, target="next", length=32, batch=4)
    rows = torch.cat([stream.tokens for stream in over_corpus(bench, TEXTS, length=32)])
    assert torch.equal(shares.targets, rows[:, 2:].flatten())
    assert len(shares.to_frame()) == len(shares.labels) and "tokens" in repr(shares)
    assert shares._repr_markdown_().count("\n| ") == len(shares.labels)


def test_token_ids_do_without_a_tokenizer():
    model = random_model("llama")
    (stream,) = over_corpus(model, [[3, 4, 5, 6], [7, 8, 9]], length=3, batch=9)
    assert stream.tokens.tolist() == [[3, 4, 5], [6, 7, 8]]
    with pytest.raises(ValueError, match="no tokenizer"):
        next(over_corpus(model, ["text"], length=3))


@pytest.mark.parametrize(
    ("texts", "options", "error", "said"),
    [
        ("one text", {}, TypeError, "got one text"),
        (["short"], {}, ValueError, "fewer than 64 tokens together"),
        (TEXTS, {"length": 1}, ValueError, "length = 1"),
        (TEXTS, {"length": 10**6}, ValueError, "reads 2 to 128"),
        (TEXTS, {"batch": 0}, ValueError, "batch = 0"),
        (TEXTS, {"target": "last"}, ValueError, "target = 'last'"),
    ],
)
def test_wrong_use_is_refused(bench, texts, options, error, said):
    with pytest.raises(error, match=said):
        corpus_shares(bench, texts, **options)


# Peak memory beyond the loaded model, in a process of its own. glibc is told to give large blocks
# back at once, so that the peak is what was held and not what was fragmented.
PEAK = """
import json, sys
import torch
import transformers
import residual_stream as rs
from residual_stream.long_corpora import corpus_shares, over_corpus

torch.set_num_threads(1)
config = transformers.LlamaConfig(
    vocab_size=1000, hidden_size=512, intermediate_size=512, num_hidden_layers=12,
    num_attention_heads=8, num_key_value_heads=8,
)
torch.manual_seed(0)
model = rs.load(transformers.LlamaForCausalLM(config))
tokens, keep = int(sys.argv[1]), sys.argv[2] == "keep"
ids = torch.randint(3, 900, (tokens,), generator=torch.Generator().manual_seed(0)).tolist()
texts = (ids[i : i + 50] for i in range(0, tokens, 50))
corpus_shares(model, [ids[:200]], length=50, batch=4)  # what is allocated once is not counted

with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak begins anew here

def high():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(x for x in lines if x.startswith("VmHWM")).split()[1])
before = high()
kept = list(over_corpus(model, texts, length=50, batch=4)) if keep else corpus_shares(
    model, texts, length=50, batch=4)
print(json.dumps({"before": before, "peak": high()}))
"""


def peak_of(tokens, way):
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tokens), way], capture_output=True, text=True, timeout=300,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_two_thousand_tokens_peak_where_two_hundred_do():
    short, long, kept = peak_of(200, "use"), peak_of(2000, "use"), peak_of(2000, "keep")
    rise = {name: one["peak"] - one["before"] for name, one in
            (("short", short), ("long", long), ("kept", kept))}  # fmt: skip
    assert long["peak"] <= 1.2 * short["peak"]  # the whole process
    assert rise["long"] <= 1.2 * rise["short"], rise  # what the work itself needs, in KiB
    assert rise["kept"] > 3 * rise["long"], rise  # the test would see streams that stay
