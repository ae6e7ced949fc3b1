"""Connections: a small pool, made on demand, and the one way in which the store's operations use it.

An operation is tried again, verbatim, when the server undid it for another's sake, when its connection was cut, or when
the server is away: every one is safe to repeat. After `patience_s` the caller is told that the store is unavailable.
Whatever ends an operation in the middle (an error, a cancelled caller) ends its connection too: none goes back to the
pool in an unknown state.

Connections may be few: the server, the database and the role each have a limit. So a pool gives back what nobody uses,
who meets the limit waits for one that the pool has, and a pool that has none is lent one by the pool beside it.
"""

# asyncpg has no stubs: its connections are Any here, and nowhere else.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportArgumentType=false

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import asyncpg

from outlast.errors import InvalidConfig, ReplyLost, StoreClosed
from outlast.store.port import Points
from outlast.store.postgres.errors import (
    CROWDED,
    LOCKED,
    LOST,
    KeyHeld,
    KeyTaken,
    is_away,
    is_held,
    is_refused,
    sqlstate,
    translated,
    was_undone,
)
from outlast.store.postgres.statements import bound
from outlast.store.postgres.url import Address

_log = logging.getLogger(__name__)

T = TypeVar("T")
Row = Any
"""A row of asyncpg: a tuple with names."""

CONNECT_TIMEOUT_S = 10.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.005, 0.5
IDLE_S = 10.0
"""A connection that nobody used for so long is closed, but for one. What a worker uses as it looks around stays."""
WARM_S = 0.1
"""Connections that were used within so short a time are in use all of them; of any others one will do for all."""
LONG_S = 1.0
"""Who waits for a connection for so long says so."""

SETTINGS = {
    # Statements that were prepared on an empty table serve a full one: plans for any value, by index.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # Every row of a call has a key of its own: what was looked up is not looked up again.
    "enable_memoize": "off",
    "jit": "off",
    # Each statement sees what was committed before it: behind the locks that it waited for, too.
    "default_transaction_isolation": "read committed",
    "search_path": "outlast",
    "application_name": "outlast",
    # In milliseconds. Somebody else's transaction may hold what is written here for as long as they like; among
    # ourselves nobody holds a lock so long, and who met a long line asks again.
    "lock_timeout": "500",
}

UNHURRIED = {**SETTINGS, "lock_timeout": "0"}
"""For a migration, which waits for its turn."""

PLAIN = {"application_name": SETTINGS["application_name"]}
"""For statements that are not ours: all else as the role has it."""


class Session:
    """One connection in the hands of one operation: statements with values by name, between their crash points."""

    def __init__(self, connection: Any, points: Points | None, name: str) -> None:
        self.connection = connection
        self._points = points
        self._name = name

    def point(self, stage: str) -> None:
        if self._points is not None:
            self._points(f"{self._name}:{stage}")

    async def rows(self, sql: str, values: Mapping[str, Any] | None = None) -> list[Row]:
        text, arguments = bound(sql, values or {})
        self.point("statement")
        rows = await self.connection.fetch(text, *arguments)
        self.point("statement done")
        return rows

    def is_closed(self) -> bool:
        return bool(self.connection.is_closed())

    async def script(self, sql: str) -> None:
        """Any number of statements, without values."""
        self.point("statement")
        await self.connection.execute(sql)
        self.point("statement done")


Operation = Callable[[Session], Awaitable[T]]


class Pool:
    """At most `size` connections, the one used last first. Operations that find none free wait in line.

    Each process of a server compiles and plans for itself what it is asked: milliseconds, for a claim or a commit. So,
    while several are in use, each kind of operation goes back to where it was done before."""

    def __init__(
        self,
        address: Address,
        *,
        points: Points | None,
        on_crash: Callable[[BaseException], None],
        on_away: Callable[[BaseException], None] = lambda error: None,
        settings: Mapping[str, str] = SETTINGS,
        beside: Pool | None = None,
    ) -> None:
        """`beside` is the pool that calls of this one use too: it lends all connections but one."""
        self._address = address
        self._settings = settings_for(address, settings)
        self._points = points
        self._on_crash = on_crash
        self._on_away = on_away
        self._pid = os.getpid()
        self._free: list[tuple[Any, float]] = []
        """With the loop's time when they became free: the one used last is the last one."""
        self._busy: set[Any] = set()
        self._trades: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
        """By connection: what it was used for."""
        self._line: deque[asyncio.Future[Any]] = deque()
        """Who waits for one of these, because the server gives no more."""
        self._refused_s, self._waits_since_s = -PAUSE_MAX_S, 0.0
        self._said = False
        self._beside = beside
        self._least = 1 if beside is None else 0
        if beside is not None:
            beside._beside = self
        self._owes = False
        self._closing: set[asyncio.Task[None]] = set()
        self._trimming: asyncio.TimerHandle | None = None
        self._turn = asyncio.Semaphore(address.pool_size)
        self._closed = False
        self._idle = asyncio.Event()
        self._running = 0

    # ---- operations -----------------------------------------------------------------------------------------------

    async def call(
        self, name: str, operation: Operation[T], *, transaction: bool | None = False, writes: bool = True
    ) -> T:
        """The operation's answer: once it is durable, if it writes.

        With `transaction` it is one, without it a single statement; None: it begins and ends one itself."""
        if self._closed or self._pid != os.getpid():
            raise StoreClosed(f"the store {self._address.shown} is closed, or was opened in another process")
        points = self._points if writes else None
        if points is not None:
            self._pass(points, f"{name}:begin")
        self._running += 1
        self._idle.clear()
        try:
            answer = await self._until_answered(name, operation, transaction, points)
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()
        if points is not None:
            self._pass(points, f"{name}:reply")
        return answer

    def _pass(self, points: Points, point: str) -> None:
        try:
            points(point)
        except Exception:
            raise
        except BaseException as crash:
            self._on_crash(crash)
            raise

    async def _until_answered(
        self, name: str, operation: Operation[T], transaction: bool | None, points: Points | None
    ) -> T:
        began, pause_s, lost = time.monotonic(), PAUSE_MIN_S, False
        whole = transaction is not None and (transaction or self._address.pgbouncer)
        while True:
            try:
                return await self._once(name, operation, whole, points)
            except (ReplyLost, KeyTaken):
                raise
            except Exception as error:
                if is_refused(error):
                    raise KeyTaken from error
                if is_held(error):
                    raise KeyHeld from error
                again = was_undone(error) or is_away(error)
                if not again or self._closed or time.monotonic() - began > self._address.patience_s:
                    ours = translated(self._address.shown, error)
                    if ours is error:
                        raise
                    raise ours from error
                if lost and isinstance(error, LOST):
                    # Not at the first time: a connection that was cut while nobody used it says little.
                    self._on_away(translated(self._address.shown, error))
                lost = lost or isinstance(error, LOST)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    async def _once(self, name: str, operation: Operation[T], transaction: bool, points: Points | None) -> T:
        async with self._turn:
            connection = await self._take(name)
            self._busy.add(connection)
            whole = False
            try:
                session = Session(connection, points, name)
                if transaction:
                    await connection.execute(self.begin())
                answer = await operation(session)
                if transaction:
                    session.point("commit")
                    await connection.execute("COMMIT")
                whole = True
                return answer
            except asyncpg.PostgresError as error:
                # A statement by itself that the server refused leaves nothing behind.
                whole = not transaction and (sqlstate(error) == LOCKED or not is_away(error))
                raise
            except Exception:
                raise
            except BaseException as stopped:
                if not isinstance(stopped, asyncio.CancelledError | GeneratorExit):
                    self._on_crash(stopped)
                raise
            finally:
                self._busy.discard(connection)
                if whole and not self._closed and not connection.is_closed():
                    self._keep(connection)
                else:
                    connection.terminate()

    @property
    def is_shared(self) -> bool:
        """Whether a server connection is another's from one transaction to the next."""
        return self._address.pgbouncer

    def begin(self) -> str:
        if not self.is_shared:
            return "BEGIN"
        # Settings go with the transaction; the default of its isolation comes too late for it.
        isolation = self._settings.get("default_transaction_isolation")
        begin = "BEGIN" if isolation is None else f"BEGIN ISOLATION LEVEL {isolation}"
        return "; ".join((begin, *(f"SET LOCAL {name} = '{value}'" for name, value in self._settings.items())))

    # ---- connections ----------------------------------------------------------------------------------------------

    async def _take(self, name: str) -> Any:
        while True:
            connection = self._unused(name) or await self._made(name)
            if connection is None and self._busy:
                connection = await self._handed()
            if connection is not None:
                self._has_one(name)
                self._trades.setdefault(connection, set()).add(name)
                return connection

    def _unused(self, name: str) -> Any | None:
        """One that has done this before, or else as little as possible: it will be asked the same again."""
        free = self._free = [one for one in self._free if not one[0].is_closed()]
        if not free:
            return None
        warm_since_s = free[-1][1] - WARM_S
        chosen, best = len(free) - 1, (False, -math.inf)
        for place, (connection, since_s) in enumerate(free):
            trades = self._trades[connection]
            fitness = name in trades, -len(trades)
            if since_s >= warm_since_s and fitness >= best:
                chosen, best = place, fitness
        return free.pop(chosen)[0]

    async def _made(self, name: str) -> Any | None:
        """A new one; None if the server gives no more, and one of those that there are will do."""
        if self._busy and time.monotonic() - self._refused_s < PAUSE_MAX_S:
            return None
        try:
            return await connect(self._address, self._settings)
        except asyncpg.PostgresError as error:
            if sqlstate(error) != CROWDED:
                raise
            self._waits(name, error)
            if self._busy or self._free:
                return None
            if self._beside is not None:
                self._beside.lend()
            raise

    async def _handed(self) -> Any | None:
        """The next one that somebody has used; None if that takes long: the server may give one by now."""
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._line.append(waiting)
        try:
            await asyncio.wait((waiting,), timeout=PAUSE_MAX_S)
        except asyncio.CancelledError:
            if waiting.done():
                self._keep(waiting.result())
            raise
        finally:
            waiting.cancel()
        return None if waiting.cancelled() else waiting.result()

    def _keep(self, connection: Any) -> None:
        """It is free: for who waits for it here, or beside; else for who comes next."""
        while self._line:
            waiting = self._line.popleft()
            if not waiting.done():
                waiting.set_result(connection)
                return
        if self._owes and len(self._free) + len(self._busy) >= self._least:
            self._owes = False
            self._let_go(connection)
            return
        loop = asyncio.get_running_loop()
        self._free.append((connection, loop.time()))
        if self._trimming is None and len(self._free) > 1:
            self._trimming = loop.call_later(IDLE_S, self._trim, loop)

    def lend(self) -> None:
        """The pool beside has none, and the server gives no more: close one, now or as soon as it is free."""
        if len(self._free) + len(self._busy) > self._least:
            self._owes = not self._free
            if self._free:
                self._let_go(self._free.pop(0)[0])

    def _trim(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what nobody has used for a while."""
        self._trimming = None
        while len(self._free) > 1 and self._free[0][1] + IDLE_S <= loop.time():
            self._let_go(self._free.pop(0)[0])
        if len(self._free) > 1:
            self._trimming = loop.call_at(self._free[0][1] + IDLE_S, self._trim, loop)

    def _let_go(self, connection: Any) -> None:
        closing = asyncio.get_running_loop().create_task(_ended(connection), name="outlast connection")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _waits(self, name: str, error: asyncpg.PostgresError) -> None:
        """Said once, if it takes long."""
        self._refused_s = time.monotonic()
        self._waits_since_s = self._waits_since_s or self._refused_s
        waited_s = self._refused_s - self._waits_since_s
        if waited_s > LONG_S and not self._said:
            self._said = True
            _log.warning(
                "%s: %s waits for a connection, for %.1f s now: the server gives this process no more than %d (%s)",
                self._address.shown, name, waited_s, self._number(), error,
            )  # fmt: skip

    def _has_one(self, name: str) -> None:
        if self._said:
            waited_s = time.monotonic() - self._waits_since_s
            _log.warning("%s: %s has a connection, after %.1f s", self._address.shown, name, waited_s)
        self._waits_since_s, self._said = 0.0, False

    def _number(self) -> int:
        beside = self._beside
        return len(self._busy) + len(self._free) + (0 if beside is None else len(beside._busy) + len(beside._free))

    async def close(self) -> None:
        """Let what was begun finish, then end the connections."""
        if self._closed:
            return
        self._closed = True
        if self._running:
            await self._idle.wait()
        if self._trimming is not None:
            self._trimming.cancel()
        for connection, _ in self._free:
            await _ended(connection)
        self._free.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    def terminate(self) -> None:
        """As when the process dies: every connection is cut where it is."""
        self._closed = True
        if self._trimming is not None:
            self._trimming.cancel()
        for connection in (*(connection for connection, _ in self._free), *self._busy):
            connection.terminate()
        self._free.clear()


async def _ended(connection: Any) -> None:
    try:
        await connection.close(timeout=5)
    except Exception:
        connection.terminate()


def settings_for(address: Address, settings: Mapping[str, str]) -> dict[str, str]:
    """These, but for a name of one's own: the driver takes what it is told here before what the URL says."""
    return {name: value for name, value in settings.items() if not (address.named and name == "application_name")}


async def connect(address: Address, settings: Mapping[str, str] = SETTINGS) -> Any:
    try:
        return await asyncpg.connect(
            address.dsn,
            timeout=CONNECT_TIMEOUT_S,
            server_settings={} if address.pgbouncer else settings_for(address, settings),
            statement_cache_size=0 if address.pgbouncer else 200,
            max_cached_statement_lifetime=0,
        )
    except asyncpg.ProtocolViolationError as error:
        if "startup parameter" not in str(error):
            raise
        raise InvalidConfig(f"{address.shown} is behind a pool ({error}): write ?pgbouncer=on in the URL") from error
    except OSError:
        raise  # a certificate that is not good is a ValueError, too
    except (ValueError, OverflowError) as error:  # what the driver cannot read will be no better the next time
        raise InvalidConfig(f"{address.shown} cannot be used: {error}") from error
