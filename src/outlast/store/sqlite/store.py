"""The store port on one SQLite file: checks what it is given, hands it to the writer or the reader, awaits the answer.

    writer thread   commit, claim, renew, append, purge, migrate   one transaction at a time, in a fair queue
    reader thread   load, scan, find, count, due, frames, …        a snapshot of its own, never waits for writers

Durable by default: WAL with `synchronous=FULL`, so a commit that was answered survives a power cut.
`?synchronous=NORMAL` in the URL trades the last commits before a power cut (not before a crash of the process) for
speed.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import apsw

from outlast import limits
from outlast.errors import InvalidConfig, SchemaMissing, StoreClosed, StoreError, StoreReadOnly
from outlast.machine.changes import Changes
from outlast.model.frame import Frame
from outlast.model.lease import Claimed, ClaimRequest, Leases, Renewed
from outlast.model.record import Key, Record
from outlast.store.checks import check_batch, check_claim, check_frames, check_lease, check_limit
from outlast.store.port import (
    EVERYTHING,
    Appended,
    Body,
    Capabilities,
    Clock,
    Committed,
    Due,
    DueKind,
    Feed,
    Filter,
    Health,
    Page,
    Points,
    Query,
    Transacted,
)
from outlast.store.sqlite import claim, health, reading, transacting, writing
from outlast.store.sqlite.commit import Commit
from outlast.store.sqlite.connection import Connection, Transaction
from outlast.store.sqlite.doorbell import Doorbell, Listener
from outlast.store.sqlite.lock import FairLock
from outlast.store.sqlite.migrate import check_schema, migrate, schema_of

T = TypeVar("T")

CACHE_KIB = 32 * 1024
"""Enough for the tables' inner pages and the work under way; SQLite's own default is 2 MiB."""
BUSY_TIMEOUT_MS = 10_000
"""Only strangers on the file (a backup, a shell) can make a writer wait here: Outlast's own queue on the lock file."""


class SystemClock:
    """The machine's clock. The store keeps it from going back."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class OnwardClock:
    """A clock that stands still where another is turned back. The writer's thread and the readers' share it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._newest = 0
        self._guard = threading.Lock()

    def now_ms(self) -> int:
        with self._guard:
            self._newest = max(self._newest, self._clock.now_ms())
            return self._newest

    def shown_ms(self) -> int:
        """What the other one shows, turned back or not."""
        return self._clock.now_ms()


class SqliteStore:
    """`SqliteStore("orders.db")`, or a URL: `sqlite:///orders.db`, `sqlite:////var/lib/orders.db?synchronous=NORMAL`."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        points: Points | None = None,
        on_connect: Callable[[apsw.Connection], None] | None = None,
        inline: bool = False,
    ) -> None:
        """`on_connect` is called with each new SQLite connection: for a PRAGMA of one's own, a limit, a trace.
        `inline` is for tests: without threads, in the event loop, which waits meanwhile."""
        self._shown, self._synchronous, self._read_only = parse_url(url)
        # One name for one file, whatever a process calls it and wherever it goes: locks and doorbells hang on it.
        self._file = Path(self._shown).resolve()
        self._path = str(self._file)
        self._clock = OnwardClock(clock or SystemClock())
        self._points = points
        self._on_connect = on_connect
        self._inline = inline
        self._parts: _Parts | None = None

    @property
    def url(self) -> str:
        return f"sqlite:///{self._shown}"

    @property
    def partitions(self) -> int:
        return 1

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(native_doorbell=True, exact_order=True, transactions="def")

    # ---- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        parts = self._parts or await self._connect(create=False)
        try:
            await parts.reader.call("open", lambda tx: check_schema(tx.cursor))
        except BaseException:
            if parts is not self._parts:
                await parts.close()
            raise
        if self._parts is None:
            self._parts = parts
        elif self._parts is not parts:
            await parts.close()  # somebody else opened it meanwhile

    async def migrate(self) -> int:
        if self._read_only:
            raise self._is_read_only()
        parts = self._parts or await self._connect(create=True)
        assert parts.writer is not None
        try:
            return await parts.writer.call("migrate", lambda tx: migrate(tx.cursor))
        finally:
            if parts is not self._parts:
                await parts.close()

    async def close(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.close()

    async def _connect(self, *, create: bool) -> _Parts:
        """New connections; if nobody waits for them any more, they are let go."""
        made: list[_Parts] = []
        guard = threading.Lock()
        wanted = True

        def connect() -> None:
            parts = self._new_parts(create=create)
            with guard:
                if wanted:
                    made.append(parts)
                    return
            parts.let_go()

        try:
            await asyncio.to_thread(connect)
        except asyncio.CancelledError:
            with guard:
                wanted = False
            for parts in made:
                parts.let_go()
            raise
        return made[0]

    def _new_parts(self, *, create: bool) -> _Parts:
        self._check_path(create=create)
        turn, bell = FairLock(self._path), Doorbell(self._path)
        reader = Connection(
            self._path,
            begin="BEGIN",
            connect=lambda: self._new_connection(None, create=False),
            turn=None,
            clock=self._clock,
            points=None,
            bell=None,
            inline=self._inline,
        )
        writer = None
        if not self._read_only:
            writer = Connection(
                self._path,
                begin="BEGIN IMMEDIATE",
                connect=lambda: self._new_connection(turn, create=create),
                turn=turn,
                clock=self._clock,
                points=self._points,
                bell=bell,
                inline=self._inline,
            )
        parts = _Parts(writer, reader, turn, bell)
        try:
            if writer is not None:
                writer.open()
            reader.open()
        except BaseException:
            parts.let_go()
            raise
        return parts

    def _check_path(self, *, create: bool) -> None:
        """What SQLite would only call "unable to open database file"."""
        try:
            is_folder, has_folder, exists = self._file.is_dir(), self._file.parent.is_dir(), self._file.exists()
        except OSError as error:
            raise StoreError(f"{self._file} cannot be opened ({error}): check the permissions of its folder") from error
        if is_folder:
            raise StoreError(f"{self._file} is a folder: name a file in it")
        if not has_folder:
            raise StoreError(f"{self._file} cannot be opened: there is no folder {self._file.parent}")
        if not create and not exists:
            raise SchemaMissing(f"there is no file {self._file} yet: run migrate() first")

    def _new_connection(self, turn: FairLock | None, *, create: bool) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY if self._read_only else apsw.SQLITE_OPEN_READWRITE
        if create:
            flags |= apsw.SQLITE_OPEN_CREATE
        connection = apsw.Connection(self._path, flags=flags, statementcachesize=256)
        try:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("PRAGMA foreign_keys = OFF")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            if not self._read_only and connection.readonly("main"):
                raise StoreReadOnly(f"{self._path} may not be written: check its permissions, or open it with ?mode=ro")
            connection.pragma("schema_version")  # not an SQLite file? Then everything stays as it is
            if turn is not None and (create or schema_of(connection.cursor())):
                self._use_wal(connection, turn)  # a stranger's database stays as it is
            if self._on_connect is not None:
                self._on_connect(connection)
            if turn is not None and connection.authorizer is None:
                connection.authorizer = transacting.Guard()
        except BaseException as error:
            connection.close(True)
            if self._read_only and isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError):
                raise StoreReadOnly(
                    f"{self._path} cannot even be read ({error}): while no writer has it open, SQLite must make its "
                    "-shm file first; that takes the right to write the folder"
                ) from error
            raise
        return connection

    def _use_wal(self, connection: apsw.Connection, turn: FairLock) -> None:
        """In turn: when two switch at once, SQLite answers "locked" to one of them without waiting."""
        if connection.pragma("journal_mode") == "wal":
            return
        with turn:
            mode = connection.pragma("journal_mode", "wal")
        if mode != "wal":
            raise StoreError(f"{self._path} is on a filesystem without shared memory: SQLite can't use a WAL there")

    def _opened(self) -> _Parts:
        if self._parts is None:
            raise StoreClosed(f"the store {self.url} is not open")
        return self._parts

    def _is_read_only(self) -> StoreReadOnly:
        return StoreReadOnly(f"the store {self.url} was opened with ?mode=ro: it can be read, not written")

    def _write(self, name: str, operation: Callable[[Transaction], T]) -> asyncio.Future[T]:
        writer = self._opened().writer
        if writer is None:
            raise self._is_read_only()
        return writer.call(name, operation)

    def _read(self, name: str, operation: Callable[[Transaction], T]) -> asyncio.Future[T]:
        return self._opened().reader.call(name, operation)

    # ---- writes ---------------------------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Changes]) -> Committed:
        check_batch(batch)

        def operation(tx: Transaction) -> Committed:
            commit = Commit(tx.cursor, tx.now, tx.points, tx.fences, singly=tx.singly)
            verdicts = commit.apply(batch)
            tx.rings |= commit.rings
            return Committed(tx.now, verdicts)

        return await self._write("commit", operation)

    async def claim(self, request: ClaimRequest) -> Claimed:
        check_claim(request)
        return await self._write("claim", lambda tx: claim.claim(tx, request))

    async def renew(self, worker: str, *, lease_ttl_ms: int) -> Renewed:
        check_lease(worker, lease_ttl_ms)
        return await self._write("renew", lambda tx: claim.renew(tx, worker, lease_ttl_ms))

    async def append(
        self, namespace: str, execution_id: str, *, epoch: int, change_id: str, frames: Sequence[bytes]
    ) -> Appended:
        check_frames(frames)
        return await self._write(
            "append", lambda tx: writing.append(tx, namespace, execution_id, epoch, change_id, frames)
        )

    async def transact(self, check: Changes, body: Body, *, limit_ms: int) -> Transacted:
        check_batch([check])
        return await self._write("transact", lambda tx: transacting.transact(tx, check, body, limit_ms))

    async def purge(
        self, *, finished_before: int | None = None, limit: int = 1_000, filter: Filter = EVERYTHING
    ) -> int:
        check_limit("purge", limit, limits.PURGE_MAX)
        return await self._write("purge", lambda tx: writing.purge(tx, finished_before, limit, filter))

    # ---- reads ----------------------------------------------------------------------------------------------------

    async def now(self) -> int:
        return await self._read("now", lambda tx: tx.now)

    async def load(self, keys: Sequence[Key]) -> list[Record | None]:
        check_limit("load", max(1, len(keys)), limits.LOAD_MAX_KEYS)
        return await self._read("load", lambda tx: reading.load(tx, keys))

    async def scan(
        self, kind: str, prefix: tuple[str | int, ...], *, after: Key | None = None, limit: int = 1_000
    ) -> list[Record]:
        check_limit("scan", limit, limits.SCAN_MAX_RECORDS)
        return await self._read("scan", lambda tx: reading.scan(tx, kind, prefix, after, limit))

    async def find(self, query: Query) -> Page:
        check_limit("find", query.limit, limits.FIND_MAX)
        return await self._read("find", lambda tx: reading.find(tx, query))

    async def count(self, query: Query) -> int:
        return await self._read("count", lambda tx: reading.count(tx, query))

    async def due(self, kind: DueKind, *, limit: int, filter: Filter = EVERYTHING) -> Due:
        check_limit("due", limit, limits.DUE_MAX)
        return await self._read("due", lambda tx: reading.due(tx, kind, limit, filter))

    async def held(self, worker: str, partitions: frozenset[int]) -> Leases:
        return Leases(held=await self._read("held", lambda tx: claim.held(tx, worker)))

    async def frames(self, namespace: str, execution_id: str, *, after: int = 0, limit: int = 1_000) -> list[Frame]:
        check_limit("frames", limit, limits.SCAN_MAX_RECORDS)
        return await self._read("frames", lambda tx: reading.frames(tx, namespace, execution_id, after, limit))

    async def completions(self, *, after: str | None = None, limit: int = 1_000, filter: Filter = EVERYTHING) -> Feed:
        check_limit("completions", limit, limits.SCAN_MAX_RECORDS)
        return await self._read("completions", lambda tx: reading.completions(tx, after, limit, filter))

    async def health(self, *, deep: bool = False) -> Health:
        def operation(tx: Transaction) -> Health:
            stands_still_ms = tx.now - self._clock.shown_ms()
            return health.health(tx, self._file, self._synchronous, stands_still_ms, deep=deep)

        return await self._read("health", operation)

    # ---- doorbell -------------------------------------------------------------------------------------------------

    def ring(self, channels: frozenset[str]) -> None:
        self._opened().bell.ring(channels)

    def listen(self) -> Listener:
        return self._opened().bell.listen()


class _Parts:
    """What an open store holds, let go together."""

    def __init__(self, writer: Connection | None, reader: Connection, turn: FairLock, bell: Doorbell) -> None:
        self.writer, self.reader, self.turn, self.bell = writer, reader, turn, bell

    async def close(self) -> None:
        # A thread that has started is not cancelled with its caller: everything is let go in any case.
        closing = threading.Thread(target=self.let_go, name="outlast-sqlite close")
        try:
            for listener in list(self.bell.listeners.values()):
                await listener.close()
        finally:
            closing.start()
        await asyncio.to_thread(closing.join)

    def let_go(self) -> None:
        for part in (self.writer, self.reader, self.turn, self.bell):
            if part is not None:
                part.close()


def parse_url(url: str) -> tuple[str, str, bool]:
    """(path, synchronous, read only) of a URL or a plain path."""
    path, options = (url, {}) if "://" not in url else _split_url(url)
    if not path.isprintable():
        raise InvalidConfig(f"{url!r} has characters that cannot be in a path")
    if not path or path == ":memory:" or path.startswith("file:"):
        raise InvalidConfig(f"{url!r}: an Outlast store needs a plain file; what is in memory outlasts nothing")
    synchronous = options.pop("synchronous", "FULL").upper()
    if synchronous not in ("FULL", "NORMAL"):
        raise InvalidConfig(f"synchronous must be FULL or NORMAL, not {synchronous!r}")
    mode = options.pop("mode", "rw")
    if mode not in ("rw", "ro"):
        raise InvalidConfig(f"mode must be rw or ro, not {mode!r}")
    if options:
        raise InvalidConfig(f"unknown option in {url!r}: {next(iter(options))} (known: synchronous, mode)")
    return path, synchronous, mode == "ro"


def _split_url(url: str) -> tuple[str, dict[str, str]]:
    """(path, options); nothing of a URL is dropped in silence."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidConfig(f"{url!r} is not a URL ({error})") from error
    if parts.scheme != "sqlite" or parts.netloc:
        raise InvalidConfig(f"{url!r} is not an SQLite URL: write sqlite:///file.db or sqlite:////absolute/file.db")
    if parts.fragment or not url.isprintable():
        raise InvalidConfig(f"{url!r} is not an SQLite URL: write %23 for a # in a path")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) < len(pairs):
        raise InvalidConfig(f"{url!r} gives an option twice")
    return unquote(parts.path.removeprefix("/")), options
