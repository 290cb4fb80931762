"""The few kernel calls that Python has no function for: namespaces, mounts, Landlock, a filter.

Linux only. Every function raises `OSError` where the kernel refuses; what then is not protected is
for `protections` to measure and for the operator to allow.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)

NEWNS, NEWUTS, NEWIPC = 0x00020000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 0x1, 0x2, 0x4, 0x20
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PDEATHSIG, _DUMPABLE, _CAPBSET_DROP, _NO_NEW_PRIVS, _SECCOMP, _SUBREAPER = 1, 4, 24, 38, 22, 36


def _call(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    _call(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount `source` at `target`."""
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags))
    _call(_libc.mount(*arguments, options.encode()), f"mount {target}")


def prctl(option: int, argument: int | ctypes.Structure, *rest: object) -> None:
    """Call prctl."""
    value = ctypes.c_ulong(argument) if isinstance(argument, int) else ctypes.byref(argument)
    zeros = [ctypes.c_ulong(0)] * 3
    _call(_libc.prctl(option, value, *(rest or zeros)), f"prctl {option}")


def die_with_parent() -> None:
    """Be killed when the parent ends."""
    prctl(_PDEATHSIG, 9)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    prctl(_SUBREAPER, 1)


def no_new_privileges() -> None:
    """Make set-uid programs harmless, for good, and hide this process from its equals."""
    prctl(_NO_NEW_PRIVS, 1)
    prctl(_DUMPABLE, 0)


def drop_capabilities() -> None:
    """Give up every capability, those that could be won back too."""
    for capability in range(64):
        try:
            prctl(_CAPBSET_DROP, capability)
        except OSError:  # past the last one, or none may be dropped: then none is held
            break
    header = struct.pack("<II", 0x20080522, 0)
    number = {"x86_64": 126, "aarch64": 91}[platform.machine()]
    _call(_libc.syscall(number, header, bytes(24)), "capset")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


# Names to numbers. The last group is alike on both machines.
_SHARED = {
    "pidfd_open": 434, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431,
    "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "mount_setattr": 442,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
}  # fmt: skip
_NUMBERS = {
    "x86_64": (0xC000003E, {
        "socket": 41, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311,
        "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272,
        "setns": 308, "keyctl": 250, "add_key": 248, "request_key": 249, "bpf": 321,
        "perf_event_open": 298, "memfd_create": 319, "userfaultfd": 323, "kexec_load": 246,
        "init_module": 175, "finit_module": 313, "open_by_handle_at": 304, "swapon": 167,
        "memfd_secret": 447, "shmget": 29, "msgget": 68, "mq_open": 240,
    }),
    "aarch64": (0xC00000B7, {
        "socket": 198, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271,
        "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "unshare": 97,
        "setns": 268, "keyctl": 219, "add_key": 217, "request_key": 218, "bpf": 280,
        "perf_event_open": 241, "memfd_create": 279, "userfaultfd": 282, "kexec_load": 104,
        "init_module": 105, "finit_module": 273, "open_by_handle_at": 265, "swapon": 224,
        "memfd_secret": 447, "shmget": 194, "msgget": 186, "mq_open": 180,
    }),
}  # fmt: skip
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3, _SECCOMP_REFUSE, _SECCOMP_ALLOW, _SECCOMP_KILL = 435, 0x00050000, 0x7FFF0000, 0x80000000
_EPERM, _ENOSYS = 1, 38
_NAMESPACES = NEWUSER | NEWNS | NEWPID | NEWNET | NEWUTS | NEWIPC | 0x02000000


def filter_calls() -> None:
    """Refuse sockets, namespaces, tracing and memory that no limit counts, for good.

    Raises:
        OSError: the kernel takes no filter, or the machine is neither x86_64 nor aarch64.
    """
    machine = platform.machine()
    if machine not in _NUMBERS:
        raise OSError(f"filter_calls: no call numbers for {machine}")
    architecture, numbers = _NUMBERS[machine]
    refused = sorted({**_SHARED, **numbers}.values())

    def load(offset: int) -> bytes:
        return struct.pack("<HBBI", 0x20, 0, 0, offset)

    def jump(test: int, value: int, yes: int, no: int) -> bytes:
        return struct.pack("<HBBI", test, yes, no, value)

    def answer(value: int) -> bytes:
        return struct.pack("<HBBI", 0x06, 0, 0, value)

    equal, at_least, any_bit = 0x15, 0x35, 0x45
    program = [load(4), jump(equal, architecture, 1, 0), answer(_SECCOMP_KILL), load(0)]
    # x32: the same machine under other numbers
    program += [jump(at_least, 0x40000000, 0, 1), answer(_SECCOMP_KILL)]
    for number in refused:
        program += [jump(equal, number, 0, 1), answer(_SECCOMP_REFUSE | _EPERM)]
    # clone3 hides its flags behind a pointer; without it the C library falls back to clone
    program += [jump(equal, _CLONE3, 0, 1), answer(_SECCOMP_REFUSE | _ENOSYS)]
    program += [jump(equal, _CLONE[machine], 0, 3), load(16)]
    program += [jump(any_bit, _NAMESPACES, 0, 1), answer(_SECCOMP_REFUSE | _EPERM)]
    program += [answer(_SECCOMP_ALLOW)]
    code = b"".join(program)
    prctl(_SECCOMP, 2, ctypes.byref(_Program(len(program), code)), *[ctypes.c_ulong(0)] * 2)


# Landlock: rights by the ABI that brought them.
_READ, _WRITE_FILE, _EXECUTE, _READ_DIR = 1 << 2, 1 << 1, 1 << 0, 1 << 3
_BY_ABI = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}


def landlock(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Leave only these folders to read and these to write, for this process and all it starts.

    Raises:
        OSError: the kernel has no Landlock.
    """
    abi = _call(_libc.syscall(444, None, ctypes.c_size_t(0), 1), "landlock")
    every = 0
    for since, rights in _BY_ABI.items():
        every |= rights if abi >= since else 0
    # struct landlock_ruleset_attr: files; with ABI 4 network (bind, connect)
    attribute = struct.pack("<Q", every) + (struct.pack("<Q", 3) if abi >= 4 else b"")
    ruleset = _call(
        _libc.syscall(444, attribute, ctypes.c_size_t(len(attribute)), 0), "landlock ruleset"
    )
    granted = [(path, _EXECUTE | _READ | _READ_DIR) for path in readable]
    granted += [(path, every) for path in writable]
    for path, rights in granted:
        try:
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):  # what is out of reach needs no permission
            continue
        if not os.path.isdir(path):
            rights &= _EXECUTE | _READ | _WRITE_FILE
        rule = struct.pack("<Qi", rights, folder)
        _call(_libc.syscall(445, ruleset, 1, rule, 0), f"landlock {path}")
        os.close(folder)
    _call(_libc.syscall(446, ruleset, 0), "landlock restrict")
    os.close(ruleset)


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root, and show the old one at `old`."""
    number = {"x86_64": 155, "aarch64": 41}[platform.machine()]
    _call(_libc.syscall(number, new.encode(), old.encode()), "pivot_root")


def detach(path: str) -> None:
    """Unmount `path` and all below it, as soon as nobody uses it."""
    _call(_libc.umount2(path.encode(), 2), f"umount {path}")
