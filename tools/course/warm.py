"""The clean process that has imported everything once, and forks one process per submission.

Importing torch and the library costs seconds; a fork costs milliseconds. The fork is safe here:
this process has loaded small models and run none, holds no lock while it forks, and has never seen
a submission, the source of a sheet or an expected value. It has nothing to give away.

It speaks over one socket with the grader: in, a job's number, its user id and two open files (the
job, and where the answers go); out, the job's number and how it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from . import confine, syscalls
from .confine import HOME, Limits
from .plain import frame

#: How a job can end, by the exit status of the process that watches it.
ENDINGS = {0: "finished", 10: "time", 11: "memory", 12: "disk", 13: "refused"}
_TICK, _LOOK = 0.02, 0.4


def environment(cache: str, base: str) -> dict[str, str]:
    """Return the environment of the clean process: nothing of the operator's."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.prefix) / "bin"), "/usr/bin", "/bin"]),
        "HOME": HOME, "USER": "student", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "RESIDUAL_STREAM_CACHE": cache, "MPLBACKEND": "agg", "MPLCONFIGDIR": f"{base}/mpl",
        "IPYTHONDIR": f"{base}/ipython", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip


def command(descriptor: int, cache: str, base: str, namespaces: bool) -> list[str]:
    """Return the command line of the clean process; `descriptor` is its end of the socket."""
    import residual_stream

    # realpaths: this interpreter, wherever the operator stands and whatever PYTHONPATH says
    folders = [str(Path(__file__).resolve().parents[1])]
    folders.append(str(Path(residual_stream.__file__).resolve().parents[1]))
    program = (
        f"import sys; sys.path[:0] = {folders!r}; from course.warm import serve; "
        f"serve({descriptor}, {cache!r}, {base!r}, {namespaces})"
    )
    return [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", "-c", program]


def serve(descriptor: int, cache: str, base: str, wanted: bool) -> None:
    """Import, say what holds, and fork until the grader closes the socket."""
    syscalls.die_with_parent()
    channel = socket.socket(fileno=descriptor)
    import residual_stream

    from . import inside

    library = Path(residual_stream.__file__).resolve().parent
    inside.warm_up()
    paths = confine.readable(library, cache)
    root = str(Path(base) / "root")
    Path(root).mkdir()
    namespaces = wanted and confine.namespaces_allowed(root, paths)
    beyond = [] if namespaces else confine.out_of_reach([str(library), cache])
    said = {
        "namespaces": namespaces,
        "cache": cache not in beyond,
        "programs": [path for path in beyond if path != cache],
    }
    channel.send(json.dumps(said).encode())
    running: dict[int, tuple[int, float]] = {}
    while True:
        ready, _, _ = select.select([channel], [], [], _TICK if running else None)
        if ready:
            message, files, _, _ = socket.recv_fds(channel, 65536, 2)
            if not message:
                return
            request = json.loads(message)
            watcher = os.fork()
            if watcher == 0:
                channel.close()
                _watch(request, files, paths, root, base, namespaces, inside.run)
            running[watcher] = (request["id"], time.monotonic())
            for file in files:
                os.close(file)
        for watcher in list(running):
            done, status = os.waitpid(watcher, os.WNOHANG)
            if done:
                number, since = running.pop(watcher)
                code = os.waitstatus_to_exitcode(status)
                ending = ENDINGS.get(code, f"crashed ({code})")
                reply = {"id": number, "ending": ending, "seconds": time.monotonic() - since}
                channel.send(json.dumps(reply).encode())


def _watch(
    request: dict[str, Any], files: list[int], paths: list[str], root: str, base: str,
    namespaces: bool, run: Any,
) -> None:  # fmt: skip
    """Start a submission's process and see that it keeps to its limits; never return."""
    code = 13
    try:
        syscalls.die_with_parent()
        syscalls.adopt_orphans()
        limits = Limits(**request["limits"])
        uid = request["uid"]
        home = HOME
        if namespaces:
            confine.new_namespaces()
        else:
            home = tempfile.mkdtemp(dir=base, prefix="home-")
            os.chown(home, uid, -1)
        first = os.fork()
        if first == 0:
            if namespaces:
                _first(uid, limits, paths, root, files, run)
            _student(uid, limits, paths, home, files, run)
        own = os.stat(f"/proc/{first}/ns/pid").st_ino if namespaces else None
        code = _until_done(first, uid, own, limits, None if namespaces else home)
        if not namespaces:
            _end_all(uid)
            shutil.rmtree(home, ignore_errors=True)
    finally:
        os._exit(code)


def _first(
    uid: int, limits: Limits, paths: list[str], root: str, files: list[int], run: Any
) -> None:
    """Be process 1 of the new namespace: build its root, start the submission, bury the dead."""
    code = 13
    try:
        syscalls.die_with_parent()
        with _told(files[1]):
            confine.build_root(root, paths, uid, limits.disk)
            student = os.fork()
        if student == 0:
            _student(uid, limits, paths, HOME, files, run)
        code = 14
        while True:
            ended, status = os.wait()
            if ended == student:
                code = os.waitstatus_to_exitcode(status)
                break
    finally:
        os._exit(code if code >= 0 else 14)


def _student(
    uid: int, limits: Limits, paths: list[str], home: str, files: list[int], run: Any
) -> None:
    """Become the submission's process."""
    code = 13
    try:
        job_file, answers = files
        with _told(answers):
            os.setsid()
            job = json.loads(os.pread(job_file, os.fstat(job_file).st_size, 0))
            _close_all_but(answers)
            os.chdir(home)
            os.environ.update({"HOME": home, "TMPDIR": home, "IPYTHONDIR": f"{home}/.ipython"})
            tempfile.tempdir = home
            confine.become_unprivileged(uid, limits, paths, home)
            syscalls.die_with_parent()
            emit = partial(_emit, answers)
            emit(frame("started", True))
        code = 15
        run({**job, "cell_seconds": limits.cell_seconds}, emit)
        code = 0
    finally:
        os._exit(code)


def _close_all_but(answers: int) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.closerange(3, answers)
    os.closerange(answers + 1, 4096)


def _emit(answers: int, data: bytes) -> None:
    while data:
        data = data[os.write(answers, data) :]


@contextlib.contextmanager
def _told(answers: int) -> Iterator[None]:
    """Tell the grader why a process could not be confined."""
    try:
        yield
    except BaseException as error:
        _emit(answers, frame("refused", f"{type(error).__name__}: {error}"))
        raise


def _until_done(first: int, uid: int, own: int | None, limits: Limits, home: str | None) -> int:
    end, look = time.monotonic() + limits.seconds, time.monotonic() + _LOOK
    pause = 0.002
    while True:
        ended, status = os.waitpid(first, os.WNOHANG)
        if ended == first:
            return _code(status)
        reason = 0
        now = time.monotonic()
        if now > end:
            reason = 10
        elif now > look:
            look = now + _LOOK
            if confine.memory_of(confine.members(uid, own)) > limits.memory:
                reason = 11
            elif home is not None and _size(home) > limits.disk * 9 // 8:  # one file may be whole
                reason = 12
        if reason:
            os.kill(first, signal.SIGKILL)
            os.waitpid(first, 0)
            return reason
        time.sleep(pause)
        pause = min(pause * 1.5, _TICK * 2)


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code in (0, 13) else 14


def _size(home: str) -> int:
    total = 0
    for folder, _, names in os.walk(home):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(f"{folder}/{name}").st_blocks * 512 + 256
    return total


def _end_all(uid: int) -> None:
    """End what a submission left running, where no namespace ends it.

    As root: the processes of its user id, which nothing else has. Else: this process's children,
    among them every orphan, since this process adopts them.
    """
    for _ in range(500):
        left = confine.members(uid, None)
        if os.geteuid() != 0:
            left = [process for process in left if _parent(process) == os.getpid()]
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(OSError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        time.sleep(0.005)


def _parent(process: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return None
