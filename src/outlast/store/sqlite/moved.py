"""Is the file that a connection has open still the one at its path?

A file that is moved, deleted or replaced goes on to exist for whoever has it open. What is written there then is lost
to everybody else, and to this process too once it ends. So SQLite, which knows the file that it has open, is asked
after each commit: none is answered that went to a file that is gone. And it is asked before a transaction, unless that
was done just now: most are refused before anything is written.

The file is never opened here: closing it again would drop every lock that SQLite has on it in this process.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import apsw

from outlast.errors import StoreMoved, StoreUnavailable

_HAS_MOVED = apsw.SQLITE_FCNTL_HAS_MOVED
FRESH_S = 0.1
"""So long an answer counts for those who have written nothing yet: asking takes as long as a tenth of a read."""


class Whereabouts:
    """Of the file of one connection, at `path`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._asked_at = -FRESH_S
        self._moved = ctypes.c_int()
        self._answer = ctypes.addressof(self._moved)

    def check_now_and_then(self, connection: apsw.Connection) -> None:
        if time.monotonic() - self._asked_at >= FRESH_S:
            self.check(connection)

    def check(self, connection: apsw.Connection) -> None:
        connection.file_control("main", _HAS_MOVED, self._answer)
        if self._moved.value:
            _refuse(Path(self._path))
        self._asked_at = time.monotonic()


def _refuse(file: Path) -> None:
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise StoreMoved(
            f"{file} was moved or deleted while it was open here, so nothing more is written: stop every process that "
            f"uses it, put it back with its {file.name}-wal, or restore a backup, and start them again"
        ) from None
    except OSError as error:
        raise StoreUnavailable(f"{file} cannot be looked at now ({error}): try again") from error
    raise StoreMoved(
        f"another file was put at {file} while the one before was open here, so nothing more is written: stop every "
        f"process that uses it, and move {file.name}-wal away, which belongs to the one before and would spoil this one"
    )
