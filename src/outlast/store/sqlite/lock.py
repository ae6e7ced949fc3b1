"""A fair queue of writing processes, on two lock files.

SQLite lets writers busy-wait, and the one that just wrote wins again and again: one process was starved to a sixtieth
of its share. Here a writer first takes the queue, then waits for the turn, then lets the queue go. So at most one
process waits for the turn, the one that has it can't take it again past that one, and everybody else sleeps in the
kernel. A process that dies lets go of its locks.
"""

from __future__ import annotations

import fcntl
import os


class FairLock:
    """Used by one thread of one process at a time."""

    def __init__(self, path: str) -> None:
        self._queue = os.open(f"{path}-queue", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._turn = os.open(f"{path}-turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def __enter__(self) -> None:
        fcntl.flock(self._queue, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._queue, fcntl.LOCK_UN)

    def __exit__(self, *exc: object) -> None:
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._queue)
        os.close(self._turn)
