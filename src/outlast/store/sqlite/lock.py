"""A fair queue of writing processes, on two lock files.

SQLite lets writers busy-wait, and the one that just wrote wins again and again: one process was starved to a sixtieth
of its share. Here a writer first takes the queue, then waits for the turn, then lets the queue go. So at most one
process waits for the turn, the one that has it can't take it again past that one, and everybody else sleeps in the
kernel. A process that dies lets go of its locks.
"""

from __future__ import annotations

import fcntl
import os
from weakref import WeakSet

from outlast.errors import StoreError, StoreReadOnly, StoreUnavailable


class FairLock:
    """Used by one thread of one process at a time. Its files are made when it is first taken."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: tuple[int, int] | None = None
        _all.add(self)

    def __enter__(self) -> None:
        if self._files is None:
            self._files = _open_both(self._path)
        queue, turn = self._files
        try:
            fcntl.flock(queue, fcntl.LOCK_EX)
            try:
                fcntl.flock(turn, fcntl.LOCK_EX)
            finally:
                fcntl.flock(queue, fcntl.LOCK_UN)
        except OSError as error:
            raise StoreUnavailable(
                f"the lock files beside {self._path} do not answer now ({error}): try again"
            ) from error

    def __exit__(self, *exc: object) -> None:
        if self._files is not None:
            fcntl.flock(self._files[1], fcntl.LOCK_UN)

    def close(self) -> None:
        files, self._files = self._files, None
        for file in files or ():
            os.close(file)


def _open_both(path: str) -> tuple[int, int]:
    queue = _open(f"{path}-queue")
    try:
        return queue, _open(f"{path}-turn")
    except BaseException:
        os.close(queue)
        raise


def _open(path: str) -> int:
    try:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except PermissionError:
            # Made by another user: whoever may write the store's file may queue with it, and a lock needs no writing.
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (PermissionError, FileNotFoundError) as error:
        raise StoreReadOnly(
            f"{path} cannot be made or opened ({error}): writers need a folder that they may write"
        ) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be opened ({error})") from error


_all: WeakSet[FairLock] = WeakSet()


def _let_go_after_fork() -> None:
    """A forked child shares its parent's locks: kept open, they would outlive a parent that dies while it writes."""
    for lock in list(_all):
        lock.close()


os.register_at_fork(after_in_child=_let_go_after_fork)
