"""A GGUF file on disk as a Hugging Face folder in the cache, converted once."""

from __future__ import annotations

from pathlib import Path

from .cache import cache_dir, cached
from .fetch import sha256

#: The number rises when the conversion changes, so that an older copy is not taken for the new one.
_ENTRY = "gguf-1"


def gguf_folder(source: Path) -> Path:
    """Return a Hugging Face folder of a GGUF file's model, made at the first call.

    The entry is named after the file's sha256, so a changed file is converted anew. The weights are
    kept in float32: a file quantised to 4 bits grows about eightfold.

    Args:
        source: GGUF file of a Llama model. The folder gets a tokenizer if the file's is of a kind
            that :mod:`residual_stream.gguf` knows.

    Returns:
        The folder.

    Raises:
        ValueError: No such file, not a GGUF file, or a model of another kind.
        FetchError: If the cache can't be written, or the disk is full.
    """
    from . import gguf  # its imports are needed for this alone

    if not source.is_file():
        raise ValueError(f"load: there is no file {source}")
    size = gguf.require_supported(source)
    return cached(
        f"{_ENTRY}-{sha256(source)[:32]}",
        lambda work, result: _make(source, result),
        space=size,
        notice=f"converting {source.name}, once, into {cache_dir()} ({size / 1e6:,.0f} MB there)",
        repair=f"load {source.name} again",
    )


def _make(source: Path, result: Path) -> None:
    from . import gguf

    gguf.convert(source, result, tokenizer=gguf.has_known_tokenizer(source))
