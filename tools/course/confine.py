"""Confine one process: a root of its own, no network, no privileges, limits on everything.

Three layers, each tried, each independent of the others:

* namespaces: the process sees its own file tree (the programs read-only, a small folder in memory
  to write to), its own process numbers, no network device. Root makes them; elsewhere a user
  namespace does, where the kernel allows it.
* identity: as root, a user id that nothing else has; always no new privileges, no capabilities.
* Landlock and a system-call filter: files outside the same two lists and sockets are refused even
  where there are no namespaces, as in most containers.

What is left of them on a machine is measured by `protections` before anything is graded.
"""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from dataclasses import dataclass
from pathlib import Path

from . import syscalls

#: User ids of the graded processes, when root grades: this one and the next few.
FIRST_UID = 58_000
HOME = "/home/student"
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin")
_SETTINGS = ("/etc/ld.so.cache", "/etc/fonts", "/etc/alternatives", "/etc/localtime", "/etc/ssl")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# statvfs flags that a mount may have locked, and what they are called when it is mounted again
_LOCKED = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}


@dataclass(frozen=True)
class Limits:
    """What one submission may use.

    Attributes:
        seconds: Wall-clock and processor time, all cells and tests together.
        cell_seconds: Time of one cell, which is then interrupted; the next one still runs.
        memory: Bytes of all its processes together.
        processes: Processes and threads.
        disk: Bytes of files, together and each.
        open_files: Open files per process.
    """

    seconds: float = 240.0
    cell_seconds: float = 60.0
    memory: int = 3 * 2**30
    processes: int = 24
    disk: int = 192 * 2**20
    open_files: int = 256


def readable(*extra: str | Path) -> list[str]:
    """Return the folders and files a graded process may read: programs, libraries, `extra`.

    A path inside another one of them is left out; symbolic links are kept as links by `build_root`.
    """
    import sys

    wanted = [*_SYSTEM, *_SETTINGS, sys.prefix, sys.base_prefix, *map(str, extra)]
    kept: list[str] = []
    for path in sorted({os.path.normpath(p) for p in wanted if os.path.lexists(p)}):
        if path == "/":
            raise ValueError("readable: the whole file system; give folders inside it")
        if not any(path == k or path.startswith(k + "/") for k in kept):
            kept.append(path)
    return kept


def out_of_reach(paths: list[str]) -> list[str]:
    """Return which of these paths nobody but their owner can get at, by a folder above or by mode.

    A graded process has a user id of its own; without a file tree of its own it meets these modes.
    """
    import sys

    if os.geteuid() != 0:
        return []
    return [
        path
        for path in dict.fromkeys([*paths, sys.prefix, sys.base_prefix])
        if not all(
            part.stat().st_mode & stat.S_IXOTH
            for part in (Path(path), *Path(path).resolve().parents)
            if part.is_dir()
        )
    ]


def new_namespaces() -> None:
    """Leave the processes, the network, the messages of the machine; `build_root` leaves its files.

    Raises:
        OSError: the kernel, or the container, does not allow it.
    """
    flags = syscalls.NEWPID | syscalls.NEWNET | syscalls.NEWIPC | syscalls.NEWUTS
    if os.geteuid() == 0:
        syscalls.unshare(flags)
        return
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.NEWUSER | flags)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def namespaces_allowed(base: str, paths: list[str]) -> bool:
    """Try, in a process that is then thrown away, whether a root of its own can be built."""
    child = os.fork()
    if child == 0:
        try:
            new_namespaces()
            inner = os.fork()
            if inner == 0:
                code = 1
                try:
                    build_root(base, paths, os.geteuid(), 2**20)
                    code = 0
                finally:
                    os._exit(code)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def build_root(base: str, paths: list[str], uid: int, disk: int) -> None:
    """Make an empty file tree at `base`, show `paths` in it read-only, and move into it."""
    # Here and not with the others: the process that watches goes on seeing the machine's /proc.
    syscalls.unshare(syscalls.NEWNS)
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    safe = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("tmpfs", base, "tmpfs", safe, f"size={disk},nr_inodes=20000,mode=755")
    for path in paths:
        _show(path, base + path, safe | syscalls.MS_RDONLY)
    for path in _DEVICES:
        _show(path, base + path, None)
    os.makedirs(base + "/proc")
    with contextlib.suppress(OSError):  # refused in some containers; then there is no /proc
        syscalls.mount("proc", base + "/proc", "proc", safe | 8)
    for path, mode in ((HOME, 0o700), ("/tmp", 0o700)):
        os.makedirs(base + path, exist_ok=True)
        os.chmod(base + path, mode)
        os.chown(base + path, uid, -1)
    os.makedirs(base + "/.old")
    _pivot(base)
    os.chdir(HOME)


def _show(path: str, target: str, flags: int | None) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if stat.S_ISDIR(os.stat(path).st_mode):
        os.makedirs(target, exist_ok=True)
    else:
        Path(target).touch()
    syscalls.mount(path, target, "", syscalls.MS_BIND | syscalls.MS_REC)
    if flags is not None:
        there = os.statvfs(path).f_flag
        flags |= sum(mount for held, mount in _LOCKED.items() if there & held)
        syscalls.mount("none", target, "", syscalls.MS_BIND | syscalls.MS_REMOUNT | flags)


def _pivot(base: str) -> None:
    syscalls.pivot_root(base, base + "/.old")
    os.chdir("/")
    syscalls.detach("/.old")
    os.rmdir("/.old")


def become_unprivileged(uid: int, limits: Limits, paths: list[str], home: str) -> list[str]:
    """Give up everything that a submission needs not; return the layers that the kernel refused.

    Args:
        uid: The user id to take, when root.
        limits: The limits, from here on.
        paths: What stays readable.
        home: What stays writable, beside `/tmp` in a root of its own.
    """
    held = {
        resource.RLIMIT_CPU: int(limits.seconds) + 5,
        resource.RLIMIT_DATA: _data_bytes() + limits.memory,
        resource.RLIMIT_FSIZE: limits.disk,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for limit, value in held.items():
        resource.setrlimit(limit, (value, value))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    missing = []
    syscalls.no_new_privileges()
    syscalls.drop_capabilities()
    writable = [home, *(["/tmp"] if home == HOME else []), "/dev/null"]
    layers = {
        "landlock": lambda: syscalls.landlock([*paths, "/proc", *_DEVICES], writable),
        "filter": syscalls.filter_calls,
    }
    for name, layer in layers.items():
        try:
            layer()
        except OSError as refused:
            missing.append(f"{name}: {refused}")
    return missing


def _data_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 2 * 2**30


def members(uid: int, namespace: int | None) -> list[int]:
    """Return the processes of a submission: of its process namespace, or else of its user id."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if namespace is not None:
                belongs = os.stat(f"/proc/{entry.name}/ns/pid").st_ino == namespace
            else:
                belongs = os.stat(f"/proc/{entry.name}").st_uid == uid
            if belongs:
                found.append(int(entry.name))
    return found


def memory_of(processes: list[int]) -> int:
    """Return the bytes these processes hold, what they share with others divided among all."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError, ValueError):
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            total += sum(
                int(line.split()[1]) * 1024
                for line in text.splitlines()
                if line.startswith(("Pss_Anon:", "Pss_Shmem:"))
            )
    return total
