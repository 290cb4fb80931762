"""The cache: a folder of entries, each complete and vouched for by its manifest, or absent.

An entry is a folder with a `MANIFEST.json` that lists every file with size and sha256. It is made
under another name and renamed when it is complete, so a half-made entry never has an entry's name.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_dir

from .fetch import DamagedError, FetchError, NoSpaceError, sha256

logger = logging.getLogger(__name__)

MANIFEST = "MANIFEST.json"
STAMP = ".verified.json"
# files up to this size are hashed at every load; larger ones when their size, time or inode changed
ALWAYS_HASHED = 16_000_000


class CacheWarning(UserWarning):
    """An entry of the cache was damaged and is made anew."""


def cache_dir() -> Path:
    """Folder of the cache: `RESIDUAL_STREAM_CACHE` if it is set, else the platform's cache folder.

    Example:
        >>> import os
        >>> os.environ["RESIDUAL_STREAM_CACHE"] = "somewhere"
        >>> cache_dir().name
        'somewhere'
        >>> del os.environ["RESIDUAL_STREAM_CACHE"]
    """
    chosen = os.environ.get("RESIDUAL_STREAM_CACHE")
    return (
        Path(chosen).expanduser().absolute() if chosen else Path(user_cache_dir("residual-stream"))
    )


def damage(folder: Path) -> str | None:
    """What is wrong with a folder that has a manifest, or None if every file is as it says.

    Names and sizes are compared at every call. The sha256 is computed at every call for files up to
    16 MB; for a larger file it is computed again only when the file's size, time of change or inode
    is not the one noted at the last check.

    Args:
        folder: Folder with a `MANIFEST.json`: `{"files": {name: {"bytes": ..., "sha256": ...}}}`.
    """
    try:
        expected = json.loads((folder / MANIFEST).read_text())["files"]
        sizes = {name: (file["bytes"], file["sha256"]) for name, file in expected.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is missing or unreadable"
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    } - {MANIFEST}
    for name in sorted(found ^ set(sizes)):
        return f"{name} is {'missing' if name in sizes else 'not listed in ' + MANIFEST}"
    noted = _read_stamp(folder)
    checked = {}
    for name, (size, digest) in sizes.items():
        path = folder / name
        try:
            status = path.stat()
        except OSError as error:  # another process is just replacing the entry
            return f"{name} can't be read ({error})"
        if status.st_size != size:
            return f"{name} has {status.st_size:,} bytes, expected {size:,}"
        mark = [status.st_size, status.st_mtime_ns, status.st_ino, digest]
        if size > ALWAYS_HASHED:
            checked[name] = mark
            if noted.get(name) == mark:
                continue
        if (got := sha256(path)) != digest:
            return f"{name} has sha256 {got}, expected {digest}"
    if checked != noted:
        # a cache that others own may be read-only: then the file is hashed at every load
        with contextlib.suppress(OSError):
            _write_atomically(folder / STAMP, json.dumps(checked))
    return None


def _read_stamp(folder: Path) -> dict[str, list[int | str]]:
    try:
        noted = json.loads((folder / STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _write_atomically(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def seal(folder: Path) -> None:
    """Write the folder's `MANIFEST.json`, and bring its files to the disk.

    Args:
        folder: Folder whose files are complete.
    """
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        # safetensors writes files that only the owner may read; a cache may serve a whole class
        path.chmod(0o644)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        name = path.relative_to(folder).as_posix()
        files[name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n")


def cached(
    name: str, make: Callable[[Path, Path], None], *, space: int, notice: str, repair: str
) -> Path:
    """Folder of a cache entry, made first if it is absent or damaged.

    Safe when several processes ask at once: one makes the entry, the others wait for it. What a
    killed process left behind is used as far as its checksum is right, and else removed.

    Args:
        name: Name of the entry.
        make: Called with a folder to work in and an empty folder to fill with the entry's files.
        space: Bytes of free disk that making the entry needs.
        notice: One line for the reader before the entry is made.
        repair: What to run or do when the entry can't be made, for the error.

    Returns:
        The folder, every file of it as its manifest says.

    Raises:
        NoSpaceError: If the disk has less free space than needed, or fills up.
        FetchError: If the cache can't be written, or what `make` raised.
    """
    folder = cache_dir() / name
    if damage(folder) is None:
        return folder
    try:
        with _locked(name):
            return _made(folder, make, space=space, notice=notice, repair=repair)
    except PermissionError as error:
        raise FetchError(
            f"fetch: can't write to the cache {cache_dir()} ({error}); "
            "set RESIDUAL_STREAM_CACHE to a folder you own"
        ) from error


def _made(
    folder: Path, make: Callable[[Path, Path], None], *, space: int, notice: str, repair: str
) -> Path:
    """Make an entry while its lock is held."""
    reason = damage(folder)
    if reason is None:
        return folder
    broken = ""
    if folder.exists():
        broken = f"the copy in {folder} was damaged ({reason}) and is removed; "
        warnings.warn(f"fetch: {broken}it is made anew", CacheWarning, stacklevel=2)
        shutil.rmtree(folder)
    # nobody else has this folder: its name is the entry's, and the entry is locked
    work = folder.with_name(f".partial-{folder.name}")
    result = work / "result"
    shutil.rmtree(result, ignore_errors=True)
    try:
        require_space(folder.parent, space)
        result.mkdir(parents=True)
        print(notice, file=sys.stderr, flush=True)
        logger.info("%s", notice)
        make(work, result)
        seal(result)
        result.replace(folder)
    except Exception as error:
        shutil.rmtree(work, ignore_errors=True)
        if isinstance(error, PermissionError):
            raise
        if _is_full(error):
            error = NoSpaceError(_full(folder.parent, space))
        if isinstance(error, FetchError):
            after = f"\n{broken}to make it anew: {repair}" if broken else ""
            raise type(error)(f"{error}{after}") from error
        raise
    shutil.rmtree(work, ignore_errors=True)
    if (reason := damage(folder)) is not None:
        raise DamagedError(f"fetch: {folder} was just made and is already damaged: {reason}")
    return folder


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    cache_dir().mkdir(parents=True, exist_ok=True)
    lock = FileLock(cache_dir() / f".{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"another process is making {name} in {cache_dir()}; waiting", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def require_space(folder: Path, needed: int) -> None:
    """Check that the disk of a folder has room.

    Args:
        folder: A folder that exists.
        needed: Bytes.

    Raises:
        NoSpaceError: If fewer bytes are free.
    """
    if shutil.disk_usage(folder).free < needed:
        raise NoSpaceError(_full(folder, needed))


def _full(folder: Path, needed: int) -> str:
    free = shutil.disk_usage(folder).free
    return (
        f"fetch: no space on the disk of {folder}: {needed / 1e6:,.0f} MB needed, "
        f"{free / 1e6:,.0f} MB free; free some, or set RESIDUAL_STREAM_CACHE to another disk"
    )


def _is_full(error: Exception) -> bool:
    """Whether an error says that the disk is full; not every library raises an OSError for it."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or "No space left on device" in str(error)
