"""One connection on one thread, fed by any number of event loops.

SQLite calls block, so they run on threads of their own: one writer and one reader per process. Operations that gather
while the writer is busy share its next transaction, and so its fsync; replies go out after the commit. If one of them
fails, the transaction is rolled back and each is done alone, so that no operation fails for its neighbour's sake:
an operation may run more than once, and keeps nothing of the run before.

A process that was forked has the object but not the thread: it must open a store of its own, and is told so.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import os
import threading
from asyncio import events
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

import apsw

from outlast.errors import ReplyLost, StoreClosed, StoreError
from outlast.model.record import NOW, Now
from outlast.store.port import Clock, Points
from outlast.store.sqlite.doorbell import Doorbell, Listener
from outlast.store.sqlite.errors import Translated
from outlast.store.sqlite.fences import Fences
from outlast.store.sqlite.moved import Whereabouts
from outlast.store.sqlite.statements import statement

T = TypeVar("T")

SHARED_MAX = 256
"""How many operations may share a transaction."""

LEASES = frozenset({"claim", "renew"})
"""What only says who holds what. A power cut that takes such a commit along takes its holder along too: every process
that has the file open runs on this machine. So nobody waits for the disk, unless something else shares the transaction;
and whatever its holder writes next is durable together with it."""

_NORMAL, _FULL = 1, 2
"""SQLite's words for `synchronous`."""
_CLOCK_READ, _CLOCK_WRITE = statement("clock_read"), statement("clock_write")


def rows_of(cursor: apsw.Cursor, sql: str, values: Any = ()) -> list[tuple[Any, ...]]:
    """Every row of a statement."""
    return cast("list[tuple[Any, ...]]", cursor.execute(sql, values).fetchall())


class Met(Exception):
    """An operation wrote several records at once, and one of them was there: it must do one thing after the other."""


class Transaction:
    """What an operation gets: a cursor, the time of the commit, and the crash points."""

    __slots__ = ("cursor", "fences", "now", "points", "rings", "singly")

    def __init__(
        self, cursor: apsw.Cursor, now: int, points: Points | None, fences: Fences, *, singly: bool = False
    ) -> None:
        self.cursor = cursor
        self.now = now
        self.points = points
        self.fences = fences
        self.singly = singly
        self.rings: set[str] = set()

    def rows(self, sql: str, values: Any = ()) -> list[tuple[Any, ...]]:
        """Run one statement. Whatever it writes, nothing is known of fences afterwards."""
        self.fences.clear()
        return self.rows_beside(sql, values)

    def rows_beside(self, sql: str, values: Any = ()) -> list[tuple[Any, ...]]:
        """Run one statement between its two crash points. It writes no execution, or its caller tells the fences."""
        if self.points is None:
            return rows_of(self.cursor, sql, values)
        self.points("statement")
        rows = rows_of(self.cursor, sql, values)
        self.points("statement done")
        return rows

    def few_rows_beside(
        self, sql: str, values: Any, *, most: int, weighed: int, bytes_max: int
    ) -> tuple[list[tuple[Any, ...]], int] | None:
        """The same, for what must not take long: the rows, and the bytes of the column that is `weighed`; None if there
        are more, or more bytes."""
        if self.points is not None:
            self.points("statement")
        found: tuple[list[tuple[Any, ...]], int] | None = None
        rows: list[tuple[Any, ...]] = []
        weight = 0
        for row in cast("Iterable[tuple[Any, ...]]", self.cursor.execute(sql, values)):
            weight += len(row[weighed] or b"")
            if weight > bytes_max or len(rows) == most:
                break
            rows.append(row)
        else:
            found = rows, weight
        if self.points is not None:
            self.points("statement done")
        return found

    def many(self, sql: str, values: list[Any]) -> None:
        """Run one statement for many sets of values."""
        self.fences.clear()
        if self.points is not None:
            self.points("statement")
        self.cursor.executemany(sql, values)
        if self.points is not None:
            self.points("statement done")


Operation = Callable[[Transaction], Any]


class _Call:
    __slots__ = ("error", "future", "loop", "name", "operation", "result")

    def __init__(self, name: str, operation: Operation, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.operation = operation
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None


class Connection:
    """A thread that owns an SQLite connection and runs operations in transactions."""

    def __init__(
        self,
        path: str,
        *,
        begin: str,
        connect: Callable[[], apsw.Connection],
        turn: AbstractContextManager[None] | None,
        clock: Clock,
        points: Points | None,
        bell: Doorbell | None,
        inline: bool = False,
    ) -> None:
        """`bell`: rung by what is written; None for what only reads. `inline`: without a thread of its own, in the
        event loop of whoever calls; for tests, where nobody waits."""
        self._pid = os.getpid()
        self._inline = inline
        self._at_hand: tuple[apsw.Connection, apsw.Cursor] | None = None
        self._path = path
        self._begin = begin
        self._writes = bell is not None
        self._connect = connect
        self._turn = turn or nullcontext()
        self._clock = clock
        self._points = points
        self._bell = bell
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._closed = False
        self._dead: BaseException | None = None
        self._guard = threading.Lock()
        self._translated = Translated(path)
        self._fences = Fences()
        self._now = 0
        """The time of the transaction under way."""
        self._whereabouts = Whereabouts(path)
        self._thread = threading.Thread(target=self._serve, name=f"outlast-sqlite {begin}", daemon=True)
        self._opened: SimpleQueue[BaseException | None] = SimpleQueue()

    def open(self) -> None:
        """Start the thread and its connection; raises what opening raised."""
        if self._inline:
            connection = self._connected()
            self._at_hand = connection, self._cursor(connection)
            return
        self._thread.start()
        error = self._opened.get()
        if error is not None:
            self._thread.join()
            raise error

    def close(self) -> None:
        """Let what was accepted finish, then end the thread. Blocks for as long as that takes."""
        if self._pid != os.getpid():
            return  # the thread and its connection are the parent's
        with self._guard:
            if not self._closed:
                self._closed = True
                self._calls.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._let_go_inline()

    def call(self, name: str, operation: Callable[[Transaction], T]) -> asyncio.Future[T]:
        """Run the operation in a transaction; the future has its result once the transaction is durable."""
        if self._pid != os.getpid():
            raise StoreClosed(f"the store {self._path} was opened before a fork: open one in each process")
        with self._guard:
            if self._closed and self._dead is None:
                raise StoreClosed(f"the store {self._path} is closed")
            if self._dead is not None:
                raise StoreClosed(f"the store {self._path} has stopped") from self._dead
            call = _Call(name, operation, asyncio.get_running_loop())
            if not self._inline:
                self._calls.put(call)
        if self._at_hand is not None:
            self._do_inline(self._at_hand[1], call)
        return call.future

    def _do_inline(self, cursor: apsw.Cursor, call: _Call) -> None:
        outer = events._get_running_loop()
        events._set_running_loop(None)  # what it calls finds no loop, as in a thread
        try:
            self._run_shared(cursor, [call])
        except BaseException as error:
            self._dead = error  # a test's crash point, and its caller knows: as the thread would end
            self._let_go_inline()
        finally:
            events._set_running_loop(outer)

    def _let_go_inline(self) -> None:
        if self._at_hand is not None:
            self._at_hand[0].close(True)
            self._at_hand = None

    # ---- the thread -----------------------------------------------------------------------------------------------

    def _connected(self) -> apsw.Connection:
        with self._translated:
            connection = self._connect()
            # Plans that do not depend on bound values: else SQLite prepares the statements of claim and due anew at
            # every call, which takes twenty times as long as running them.
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            if self._writes and connection.pragma("synchronous") == _FULL:
                self._level = _FULL
            return connection

    def _cursor(self, connection: apsw.Connection) -> apsw.Cursor:
        """The one that everything here goes through. A time that is relative to the commit is bound as the time that it
        is: few values of a record are one, and none of the others is looked at for it."""

        def bound(cursor: apsw.Cursor, number: int, value: object) -> int:
            if value is NOW:  # nearly all of them
                return self._now
            if type(value) is not Now:
                raise TypeError(f"value {number} is of type {type(value).__name__}")
            return self._now + value.plus_ms

        cursor = connection.cursor()
        cursor.convert_binding = bound
        return cursor

    def _serve(self) -> None:
        try:
            connection = self._connected()
        except BaseException as error:
            self._opened.put(error)
            return
        self._opened.put(None)
        try:
            cursor = self._cursor(connection)
            while (calls := self._gather()) is not None:
                self._run_shared(cursor, calls)
        except BaseException as error:
            # Callers are told from now on; nobody else is there to tell.
            self._dead = error
        finally:
            # Nobody may be left waiting for an answer, whatever closing says.
            try:
                connection.close(True)
            finally:
                self._refuse_the_rest()

    def _gather(self) -> list[_Call] | None:
        """All that waits, up to the bound; None when the store is closing and nothing is left."""
        first = self._calls.get()
        if first is None:
            return None
        calls = [first]
        while len(calls) < SHARED_MAX:
            try:
                call = self._calls.get_nowait()
            except Empty:
                break
            if call is None:
                self._calls.put(None)
                break
            calls.append(call)
        return calls

    def _run_shared(self, cursor: apsw.Cursor, calls: list[_Call]) -> None:
        rings: set[str] = set()
        try:
            try:
                rings = self._run(cursor, calls)
            except Met:
                rings = self._run(cursor, calls, singly=True)
        except Exception as error:
            if len(calls) > 1:
                self._run_alone(cursor, calls)
                return
            calls[0].error = error
        except BaseException as crash:
            self._crashed(calls, crash)
            raise
        bell = self._bell
        if bell is None or not rings:
            self._deliver(calls)
            return
        others = bell.others()  # before the answers: a look behind them would be in the way of those who go on
        self._deliver(calls, bell.tell(rings))
        bell.send(others, rings)  # behind the answers: whoever waits here does not wait for that

    def _run_alone(self, cursor: apsw.Cursor, calls: list[_Call]) -> None:
        for done, call in enumerate(calls, start=1):
            try:
                self._run_shared(cursor, [call])
            except BaseException as crash:
                self._crashed(calls[done:], crash)
                raise

    def _crashed(self, calls: list[_Call], crash: BaseException) -> None:
        """A test's crash point: from here on this store is a dead process."""
        self._dead = crash
        for call in calls:
            call.error = crash
        self._deliver(calls)

    def _run(self, cursor: apsw.Cursor, calls: list[_Call], *, singly: bool = False) -> set[str]:
        """Whom to ring for it."""
        names = {call.name: None for call in calls}
        rings: set[str] = set()
        connection = cursor.connection
        with self._translated, self._turn:
            self._pass(names, "begin")
            self._whereabouts.check_now_and_then(connection)
            self._sync(cursor, _NORMAL if LEASES.issuperset(names) else _FULL)
            cursor.execute(self._begin)
            try:
                stored, now = self._look_at_the_clock(cursor)
                for call in calls:
                    transaction = Transaction(cursor, now, self._named_points(call.name), self._fences, singly=singly)
                    call.result = call.operation(transaction)
                    if transaction.rings:
                        rings |= transaction.rings
                has_clock = self._has_clock(cursor)
                if self._writes and now > stored and has_clock:
                    cursor.execute(_CLOCK_WRITE, (now,))
                self._pass(names, "commit")
                cursor.execute("COMMIT")
                if self._writes:
                    self._fences.committed(connection)
            except BaseException:
                self._fences.undone()
                if not connection.get_autocommit():
                    cursor.execute("ROLLBACK")
                raise
        self._clock_seen = has_clock
        self._stored = now if has_clock else 0
        if self._points is not None:
            self._reply(names, calls)
        if self._writes:
            self._refuse_moved(connection, calls)
        return rings

    def _look_at_the_clock(self, cursor: apsw.Cursor) -> tuple[int, int]:
        """The newest time that any commit used, and the time of this one. The writer knows what it wrote last, and
        reads it again only if somebody else has written meanwhile."""
        stored = self._stored
        if not (self._writes and self._fences.begin(cursor.connection)):
            stored = rows_of(cursor, _CLOCK_READ)[0][0] if self._has_clock(cursor) else 0
        self._now = now = max(self._clock.now_ms(), stored)
        return stored, now

    _stored = 0
    """The clock in the file, as the last transaction left it."""

    def _refuse_moved(self, connection: apsw.Connection, calls: list[_Call]) -> None:
        """What was written to a file that is gone is not answered; nor is it done again."""
        try:
            self._whereabouts.check(connection)
        except StoreError as error:
            for call in calls:
                call.error = error

    def _sync(self, cursor: apsw.Cursor, level: int) -> None:
        """Whether the next commit waits for the disk; only if commits do that at all on this connection."""
        if self._level is not None and level != self._level:
            cursor.execute(f"PRAGMA synchronous = {level}")
            self._level = level

    _level: int | None = None

    def _has_clock(self, cursor: apsw.Cursor) -> bool:
        """Before the first migration is committed there is no clock to read."""
        return self._clock_seen or rows_of(cursor, statement("has_schema"))[0][0] == 1

    _clock_seen = False

    # ---- crash points ---------------------------------------------------------------------------------------------

    def _pass(self, names: Iterable[str], stage: str) -> None:
        if self._points is not None:
            for name in names:
                self._points(f"{name}:{stage}")

    def _named_points(self, name: str) -> Points | None:
        points = self._points
        return None if points is None else lambda stage: points(f"{name}:{stage}")

    def _reply(self, names: Iterable[str], calls: list[_Call]) -> None:
        """Only the answers of the operation that lost its reply are lost."""
        for name in names:
            try:
                self._pass((name,), "reply")
            except ReplyLost as lost:
                for call in calls:
                    if call.name == name:
                        call.error = lost

    # ---- answers --------------------------------------------------------------------------------------------------

    def _refuse_the_rest(self) -> None:
        with self._guard:
            self._closed = True
        leftover: list[_Call] = []
        while True:
            try:
                call = self._calls.get_nowait()
            except Empty:
                break
            if call is not None:
                call.error = StoreClosed(f"the store {self._path} was closed")
                call.error.__cause__ = self._dead
                leftover.append(call)
        self._deliver(leftover)

    def _deliver(self, calls: list[_Call], listeners: Sequence[Listener] = ()) -> None:
        """The answers; and behind them, in the same turn of the loop, wake those who listen there."""
        loops = {call.loop for call in calls}
        for loop in loops:
            its_calls = calls if len(loops) == 1 else [call for call in calls if call.loop is loop]
            soon = loop.call_soon if self._inline else loop.call_soon_threadsafe
            try:
                soon(_settle, its_calls, [listener for listener in listeners if listener.loop is loop])
            except RuntimeError:
                continue  # it is closed: nobody is left to hear it
        for listener in listeners:
            if listener.loop not in loops:
                listener.wake_soon()


def _settle(calls: list[_Call], listeners: list[Listener]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.result)
    for listener in listeners:
        listener.wake()
