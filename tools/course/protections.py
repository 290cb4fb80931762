"""Measure what a confined process can still do on this machine, before anything is graded.

A kernel or a container may refuse any layer of `confine`. Instead of reasoning about which, a
process of our own tries everything a hostile submission would, and the grader looks outside for
what happened.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .confine import Limits, members
from .pool import Pool

#: What each protection keeps a submission from.
PROTECTIONS = {
    "network": "opening a connection, to this machine or beyond it",
    "reading": "reading the tests, the results and other submissions",
    "writing": "writing outside its own folder",
    "processes": "starting more processes than it may, or leaving some behind",
    "memory": "holding more memory than it may",
    "disk": "writing more than it may",
    "privileges": "being root, winning privileges, reaching the grader's processes",
    "time": "running longer than it may",
}
_LIMITS = Limits(
    seconds=20, cell_seconds=20, memory=512 * 2**20, processes=16, disk=80 * 2**20, open_files=128
)

_TRY = """
import ctypes, os, signal, socket, time
found = {}

def works(call):
    try:
        return call() is not False
    except BaseException:
        return False

def connects(port):
    with socket.create_connection(("127.0.0.1", port), timeout=2):
        return True

def reads(path):
    return bool(os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1))

def leaves(path):
    with open(path, "w") as file:
        file.write("left")

def descendants(most):
    alive = []
    try:
        for _ in range(most):
            child = os.fork()
            if child == 0:
                time.sleep(30)
                os._exit(0)
            alive.append(child)
    except OSError:
        pass
    for child in alive:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return len(alive)

def big_file(size):
    with open("big", "wb") as file:
        for _ in range(size // 2**20):
            file.write(bytes(2**20))
    return True

found["connects"] = works(lambda: connects(PORT))
found["socket"] = works(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close())
found["reads"] = [path for path in READ if works(lambda: reads(path))]
found["leaves"] = [path for path in LEAVE if works(lambda: leaves(path))]
found["memory"] = works(lambda: bytearray(MEMORY) and True)
found["disk"] = works(lambda: big_file(DISK))
found["root"] = os.geteuid() == 0 or works(lambda: os.setuid(0))
found["grader"] = works(lambda: os.kill(GRADER, 0))
found["remount"] = ctypes.CDLL(None).mount(b"none", b"/tmp", b"tmpfs", 0, b"") == 0
found["processes"] = descendants(PROCESSES)
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
    os._exit(0)
"""
_STAY = """
import signal
for number in (14, 15, 24):
    signal.signal(number, signal.SIG_IGN)
while True:
    pass
"""


@dataclass(frozen=True)
class Protections:
    """What holds on this machine.

    Attributes:
        missing: By protection, what a process could do; empty if all hold.
        namespaces: Whether submissions get a file tree, a network and processes of their own.
    """

    missing: dict[str, str]
    namespaces: bool

    def __str__(self) -> str:
        """One line per protection."""
        lines = [
            f"  {'MISSING' if name in self.missing else 'holds  '}  {name:<11} {what}"
            + (f" ({self.missing[name]})" if name in self.missing else "")
            for name, what in PROTECTIONS.items()
        ]
        how = "namespaces" if self.namespaces else "no namespaces: user id, Landlock, call filter"
        return "\n".join([f"protections measured on this machine ({how}):", *lines])


class Unprotected(RuntimeError):
    """A protection is missing that the operator has not allowed to be."""


def measure(pool: Pool, secret_paths: Iterable[Path]) -> Protections:
    """Let a process of our own try to break out, and return what it could do.

    Args:
        pool: Where submissions will run.
        secret_paths: What submissions must not read: the sources of the sheets, the results.
    """
    mark = f".course-{secrets.token_hex(6)}"
    places = ["/tmp", "/var/tmp", "/dev/shm", "/", str(Path.home()), os.getcwd()]
    places += [str(path if path.is_dir() else path.parent) for path in secret_paths]
    leave = [str(Path(place) / mark) for place in dict.fromkeys(places)]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        values = {
            "PORT": listener.getsockname()[1],
            "READ": [str(path) for path in secret_paths],
            "LEAVE": leave,
            "MEMORY": 2 * _LIMITS.memory,
            "DISK": 2 * _LIMITS.disk,
            "GRADER": os.getpid(),
            "PROCESSES": 4 * _LIMITS.processes,
        }
        came = _ask(pool, "\n".join(f"{k} = {v!r}" for k, v in values.items()) + _TRY, _LIMITS)
    ending, found = came
    left = [path for path in leave if Path(path).exists()]
    for path in left:
        Path(path).unlink()
    missing: dict[str, str] = {}
    if not isinstance(found, dict):
        return Protections(
            dict.fromkeys(PROTECTIONS, f"the trial ended: {ending}"), pool.namespaces
        )
    if found["connects"] or found["socket"]:
        missing["network"] = "connected" if found["connects"] else "a socket could be opened"
    if found["reads"]:
        missing["reading"] = ", ".join(found["reads"])
    if left:
        missing["writing"] = ", ".join(str(Path(path).parent) for path in left)
    if found["processes"] > _LIMITS.processes:
        missing["processes"] = f"{found['processes']} at once, {_LIMITS.processes} allowed"
    if os.geteuid() != 0 and not pool.namespaces:
        missing["processes"] = "what is left behind can't be told from the operator's own"
    elif behind := _left_behind(pool):
        missing["processes"] = f"left {len(behind)} behind"
    for name in ("memory", "disk"):
        if found[name]:
            missing[name] = f"more than {getattr(_LIMITS, name) // 2**20} MiB"
    can = [name for name in ("root", "grader", "remount") if found[name]]
    if can:
        missing["privileges"] = ", ".join(can)
    ending, _ = _ask(pool, _STAY, Limits(seconds=1.0, cell_seconds=0.3))
    if not ending.startswith("time"):
        missing["time"] = f"ended: {ending}"
    return Protections(missing, pool.namespaces)


def require(protections: Protections, allowed: Iterable[str]) -> None:
    """Raise an error unless every protection holds, or was allowed to be missing by name.

    Raises:
        Unprotected: naming each missing one and the option that allows it.
    """
    refused = {k: v for k, v in protections.missing.items() if k not in set(allowed)}
    if refused:
        raise Unprotected(
            "not grading: on this machine a submission is not kept from\n"
            + "\n".join(f"  {PROTECTIONS[k]} ({v})" for k, v in refused.items())
            + "\nGrade where it is (as root, or where user namespaces are allowed), or type "
            + " ".join(f"--allow-{name}" for name in refused)
            + " to grade all the same."
        )


def _ask(pool: Pool, code: str, limits: Limits) -> tuple[str, Any]:
    test = {"key": "found", "inputs": "", "given": "given = found"}
    job = {"cells": [code], "tests": [test], "checks": [], "texts": [], "closed": [], "seed": 0}
    answer = pool.run(job, limits)
    came = answer.values.get("found")
    given = came.get("given") if isinstance(came, dict) else None
    trouble = answer.values.get("cells") or [came]
    return answer.ending if given is not None else f"{answer.ending}, {trouble[:1]}", given


def _left_behind(pool: Pool) -> list[int]:
    """Return processes of the trial that still run, told by their user ids."""
    if os.geteuid() != 0:
        return []
    return [process for uid in pool.uids for process in members(uid, None)]
