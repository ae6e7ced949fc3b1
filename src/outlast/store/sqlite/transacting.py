"""Run a user's function on the writer's own cursor, in the transaction that commits what came of it.

A savepoint keeps what it did apart from its neighbours in the transaction: if it raises, only that is rolled back. It
cannot reach Outlast's tables, end the transaction or change the connection: SQLite itself asks `Guard` when it prepares
a statement. And it is stopped after a while, since everybody who writes waits for it.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import apsw

from outlast.errors import StatementRefused, StoreError, TransactionUnsupported, WrongPlace
from outlast.machine.changes import Changes
from outlast.store.port import Body, Points, Transacted
from outlast.store.sqlite.commit import Commit
from outlast.store.sqlite.connection import Transaction

PREFIX = "outlast_"
STEPS_BETWEEN_LOOKS = 1_000
"""So many instructions of SQLite between two looks at the clock: well below a millisecond."""

_NEVER = {
    apsw.SQLITE_TRANSACTION: "BEGIN, COMMIT and ROLLBACK belong to Outlast: raise an exception to roll back",
    apsw.SQLITE_SAVEPOINT: "SAVEPOINT, RELEASE and ROLLBACK TO belong to Outlast: raise an exception to roll back",
    apsw.SQLITE_ATTACH: "ATTACH is not possible in a transaction",
    apsw.SQLITE_DETACH: "DETACH is not possible in a transaction",
    apsw.SQLITE_PRAGMA: "a PRAGMA would change the connection that Outlast writes with",
}
_SECOND_IS_A_TABLE = frozenset(
    {
        apsw.SQLITE_ALTER_TABLE,
        apsw.SQLITE_CREATE_INDEX,
        apsw.SQLITE_CREATE_TEMP_INDEX,
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_CREATE_TEMP_TRIGGER,
        apsw.SQLITE_DROP_INDEX,
        apsw.SQLITE_DROP_TEMP_INDEX,
        apsw.SQLITE_DROP_TRIGGER,
        apsw.SQLITE_DROP_TEMP_TRIGGER,
    }
)


class Guard:
    """Asked by SQLite for every statement that it prepares; lets Outlast's own pass."""

    def __init__(self) -> None:
        self.active = False
        self.why = ""

    def __call__(
        self, op: int, first: str | None, second: str | None, database: str | None, trigger: str | None
    ) -> int:
        if not self.active:
            return apsw.SQLITE_OK
        why = _NEVER.get(op)
        if why is None:
            names = (first, second) if op in _SECOND_IS_A_TABLE else (first,)
            touched = next((name for name in names if name is not None and name.lower().startswith(PREFIX)), None)
            why = None if touched is None else f"{touched} is a table of Outlast's own"
        if why is None:
            return apsw.SQLITE_OK
        self.why = why
        return apsw.SQLITE_DENY


class Rows:
    """What a statement gave."""

    def __init__(self, rows: list[tuple[Any, ...]], changes: int, rowid: int) -> None:
        self._rows = rows
        self._left = iter(rows)
        self.rowcount = changes
        """How many rows it changed."""
        self.lastrowid = rowid

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._left

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(self._left, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._left)


class SqlConnection:
    """What `outlast.connection()` gives: SQL on the store's own database, in the step's own transaction."""

    def __init__(self, connection: apsw.Connection, guard: Guard, limit_ms: int, points: Points | None) -> None:
        self._connection: apsw.Connection | None = connection
        self._guard = guard
        self._points = points
        self._thread = threading.get_ident()
        self._limit_ms = limit_ms
        self._ends_at = time.monotonic() + limit_ms / 1_000
        self.crash: BaseException | None = None
        """A test's crash point: not the user's to catch."""

    def execute(self, sql: str, values: Sequence[Any] | dict[str, Any] = ()) -> Rows:
        """Run SQL with its values bound: `execute("UPDATE stock SET n = n - 1 WHERE id = ?", (item,))`."""
        connection = self._usable()
        before = connection.total_changes()
        with self._refusing():
            self._pass("statement")
            # Not from the cache: a statement of Outlast's own, prepared before, would not be asked about again.
            cursor = connection.cursor().execute(sql, values, can_cache=False)
            rows = cast("list[tuple[Any, ...]]", cursor.fetchall())
            self._pass("statement done")
        return Rows(rows, connection.total_changes() - before, connection.last_insert_rowid())

    def executemany(self, sql: str, many: Iterable[Sequence[Any] | dict[str, Any]]) -> None:
        for values in many:
            self.execute(sql, values)

    def check_time(self) -> None:
        if self.is_late():
            raise TimeoutError(f"the transaction took longer than {self._limit_ms / 1_000:g} s: everybody waits for it")

    def is_late(self) -> bool:
        return time.monotonic() > self._ends_at

    def close(self) -> None:
        self._connection = None

    def _usable(self) -> apsw.Connection:
        if self._connection is None:
            raise WrongPlace("this connection was of a transaction that is over")
        if threading.get_ident() != self._thread:
            raise WrongPlace("a transaction's connection belongs to its own thread")
        if self._connection.get_autocommit():
            raise StatementRefused("a statement before has rolled the whole transaction back: nothing of it counts")
        self.check_time()
        return self._connection

    @contextmanager
    def _refusing(self) -> Generator[None]:
        try:
            yield
        except apsw.AuthError as error:
            raise StatementRefused(f"{self._guard.why or error}") from error
        except apsw.InterruptError:
            self.check_time()
            raise

    def _pass(self, point: str) -> None:
        if self._points is not None:
            try:
                self._points(point)
            except BaseException as crash:
                self.crash = crash
                raise


def transact(tx: Transaction, check: Changes, body: Body, limit_ms: int) -> Transacted:
    commit = Commit(tx.cursor, tx.now, tx.points, tx.fences, singly=True)
    verdict = commit.rehearse(check)
    if verdict is not None:
        return Transacted(tx.now, verdict)
    connection = tx.cursor.connection
    tx.cursor.execute("SAVEPOINT outlast")
    try:
        changes = _called(connection, body, limit_ms, tx.points)
    except _Crashed as crashed:
        raise crashed.crash from None
    except BaseException as raised:
        if connection.get_autocommit():  # the neighbours' work is gone, too: they are done anew, without this one
            raise
        tx.cursor.execute("ROLLBACK TO outlast")
        tx.cursor.execute("RELEASE outlast")
        return Transacted(tx.now, raised=raised)
    [verdict] = commit.apply([changes])
    if not verdict.applied:
        tx.cursor.execute("ROLLBACK TO outlast")
    tx.cursor.execute("RELEASE outlast")
    tx.rings |= commit.rings
    return Transacted(tx.now, verdict)


class _Crashed(BaseException):
    def __init__(self, crash: BaseException) -> None:
        self.crash = crash


def _called(connection: apsw.Connection, body: Body, limit_ms: int, points: Points | None) -> Changes:
    guard: object = connection.authorizer
    if not isinstance(guard, Guard):
        raise StoreError("this connection has an authorizer of somebody else: transactions cannot be kept apart")
    mine = SqlConnection(connection, guard, limit_ms, points)
    connection.set_progress_handler(mine.is_late, STEPS_BETWEEN_LOOKS)
    guard.active = True
    try:
        changes = body(mine)
        if inspect.isawaitable(changes):
            if inspect.iscoroutine(changes):
                changes.close()
            raise TransactionUnsupported("SQLite runs a transaction in its writer's thread: write it as def")
        mine.check_time()
        if connection.get_autocommit():
            raise StatementRefused("a statement has rolled the whole transaction back (OR ROLLBACK): use OR ABORT")
        return changes
    finally:
        guard.active = False
        connection.set_progress_handler(None)
        mine.close()
        if mine.crash is not None:
            raise _Crashed(mine.crash)
