"""What a process holds: resident memory, threads, open files. Standard library only: the peers import this, too."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Holding(NamedTuple):
    resident_bytes: int
    threads: int
    files: int


def holding() -> Holding:
    """After a collection, and after free memory was given back: what is held is held for a reason."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
    return Holding(resident, threading.active_count(), len(list(Path("/proc/self/fd").iterdir())))


def percentile(samples: list[float], percent: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
