"""Processor time, the peak of extra memory, and a try in a process whose memory is capped.

One thread: what several spend waiting for each other on a busy machine is processor time, too.
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

torch.set_num_threads(1)

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_CAP = """
import resource, sys
from pathlib import Path
held = next(row for row in Path("/proc/self/status").read_text().splitlines() if "VmSize" in row)
limit = int(held.split()[1]) * 1024 + int(float(sys.argv[1]) * 2**30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""


class Measured(NamedTuple):
    """Fastest time in seconds of the processor, least peak of extra MiB (nan off Linux), result."""

    seconds: float
    mebibytes: float
    result: torch.Tensor


def kib(field: str, file: Path = _STATUS) -> int:
    """Return a field of the kernel's account of this process (or of the machine's memory)."""
    line = next(row for row in file.read_text().splitlines() if row.startswith(field))
    return int(line.split()[1])


def available_gib() -> float:
    """Return the memory that is free for use, in GiB; infinite where the kernel does not say."""
    file = Path("/proc/meminfo")
    return kib("MemAvailable", file) / 2**20 if file.exists() else float("inf")


def measured(run: Callable[[], torch.Tensor], repeats: int) -> Measured:
    """Run once to warm up (if repeated), then ``repeats`` times; keep the least of each."""
    if repeats > 1:
        run()
    best, peak = float("inf"), float("nan")
    for _ in range(repeats):
        gc.collect()
        if _CLEAR.exists():
            ctypes.CDLL(None).malloc_trim(0)  # so that freed memory is not reused unseen
            _CLEAR.write_text("5")  # resets the peak
            before = kib("VmRSS")
        start = time.process_time()
        result = run()
        best = min(best, time.process_time() - start)
        if _CLEAR.exists():
            extra = (kib("VmHWM") - before) / 1024
            peak = extra if peak != peak else min(peak, extra)
    return Measured(best, peak, result)


def capped(code: str, gib: float, *arguments: str) -> Sequence[str]:
    """Run Python code in a process of its own and return its output, or its error, by lines.

    Args:
        code: It must call ``cap()`` when what it needs has been loaded: from there on it may take
            ``gib`` more. ``sys.argv[2:]`` are the arguments.
        gib: The cap. The process fails there, and not the machine.
        arguments: For the code.
    """
    head = "def cap():\n" + textwrap.indent(_CAP.strip(), "    ") + "\n"
    run = subprocess.run(
        [sys.executable, "-c", head + code, str(gib), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return (run.stdout if run.returncode == 0 else run.stderr).strip().splitlines() or ["killed"]
