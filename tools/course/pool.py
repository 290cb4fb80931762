"""Run jobs in confined processes, several at a time, from the grader's side of the socket."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from . import confine, warm
from .confine import Limits
from .plain import TOTAL_LIMIT, frames


@dataclass(frozen=True)
class Answer:
    """What a submission's process gave back.

    Attributes:
        ending: `"finished"`, the limit that ended it (`"time"`, `"memory"`, `"disk"`), or how it
            crashed.
        seconds: How long it ran.
        values: Plain data by key; the first frame of a key counts.
    """

    ending: str
    seconds: float
    values: dict[str, Any]


class PoolError(RuntimeError):
    """The clean process could not be started, or ended."""


class Pool:
    """A clean process, and places for submissions to run in.

    Example:
        >>> with Pool(places=1) as pool:  # doctest: +SKIP
        ...     pool.run({"cells": ["x = 1"], ...}, Limits())
    """

    def __init__(self, *, places: int = 2, namespaces: bool = True) -> None:
        """Start the clean process; it takes seconds to import everything.

        Args:
            places: Jobs at a time.
            namespaces: Whether to use them where they are allowed; False is for tests.
        """
        if not 1 <= places <= 64:
            raise ValueError(f"Pool: places = {places}; from 1 to 64")
        self._claims: list[int] = []
        #: The user ids that submissions run under, one for each place.
        self.uids = [self._claim() for _ in range(places)]
        self._places = list(self.uids)
        self._free = threading.Semaphore(places)
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[threading.Event, list[dict[str, Any]]]] = {}
        self._number = 0
        self._base = tempfile.mkdtemp(prefix="course-")
        os.chmod(self._base, 0o711)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        cache = str(_cache())
        self._process = subprocess.Popen(
            warm.command(theirs.fileno(), cache, self._base, namespaces),
            env=warm.environment(cache, self._base),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd="/",
        )
        theirs.close()
        self._channel = ours
        ready = ours.recv(65536)
        if not ready:
            self.close()
            raise PoolError("Pool: the clean process did not start; its error is printed above")
        said = json.loads(ready)
        if said["programs"]:
            self.close()
            raise PoolError(
                "Pool: without namespaces, as here, notebooks run under a user id of their own, "
                f"which cannot read {', '.join(said['programs'])}; use a Python that all can read"
            )
        #: Whether submissions get a file tree, a network and processes of their own.
        self.namespaces: bool = said["namespaces"]
        #: Whether submissions can read the cache, where the real model is.
        self.cache: bool = said["cache"]
        threading.Thread(target=self._listen, daemon=True).start()

    def _claim(self) -> int:
        """Return a user id that no process and no other grader has; without root, one's own."""
        if os.geteuid() != 0:
            return os.geteuid()
        for uid in range(confine.FIRST_UID, confine.FIRST_UID + 1000):
            if confine.members(uid, None):
                continue
            flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
            claim = os.open(f"{tempfile.gettempdir()}/course-user-{uid}.lock", flags, 0o600)
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(claim)
                continue
            self._claims.append(claim)
            return uid
        raise PoolError("Pool: no user id is free among a thousand")

    def run(self, job: dict[str, Any], limits: Limits) -> Answer:
        """Run one job to its end and return what it gave back; waits for a free place."""
        with self._free, tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as answers:
            given.write(json.dumps(job).encode())
            given.seek(0)
            event, reply = threading.Event(), []
            with self._lock:
                uid = self._places.pop()
                self._number += 1
                number = self._number
                self._waiting[number] = (event, reply)
                request = {"id": number, "uid": uid, "limits": asdict(limits)}
                files = [given.fileno(), answers.fileno()]
                try:
                    socket.send_fds(self._channel, [json.dumps(request).encode()], files)
                except OSError as error:
                    raise PoolError("Pool: the clean process has ended") from error
            try:
                event.wait()
            finally:
                with self._lock:
                    self._places.append(uid)
                    self._waiting.pop(number, None)
            if not reply:
                raise PoolError("Pool: the clean process has ended")
            answer = Answer(reply[0]["ending"], reply[0]["seconds"], _values(answers))
        if answer.values.get("started") is not True:
            # Not a submission's doing: none of its code has run.
            why = answer.values.get("refused", answer.ending)
            raise PoolError(f"Pool: a process could not be confined: {why}")
        return answer

    def _listen(self) -> None:
        while True:
            try:
                message = self._channel.recv(65536)
            except OSError:
                message = b""
            with self._lock:
                if not message:
                    for event, _ in self._waiting.values():
                        event.set()
                    return
                reply = json.loads(message)
                if reply["id"] in self._waiting:
                    event, place = self._waiting[reply["id"]]
                    place.append(reply)
                    event.set()

    def close(self) -> None:
        """End the clean process and what runs under it."""
        # A close alone does not wake a thread that is in recv.
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._base, ignore_errors=True)
        while self._claims:
            os.close(self._claims.pop())

    def __enter__(self) -> Pool:
        """Return the pool."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Close the pool."""
        self.close()


def _values(answers: BinaryIO) -> dict[str, Any]:
    # The place in an open file is shared with the process that wrote it: read by offset.
    data = os.pread(answers.fileno(), TOTAL_LIMIT, 0)
    values: dict[str, Any] = {}
    for key, value in frames(data):
        values.setdefault(key, value)
    return values


def _cache() -> Path:
    from residual_stream.cache import cache_dir

    return cache_dir()
