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
import time
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import apsw

from outlast import limits
from outlast.errors import InvalidConfig, StoreClosed
from outlast.machine.changes import Changes
from outlast.model.frame import Frame
from outlast.model.record import Key, Record
from outlast.store.checks import check_batch, check_claim, check_frames, check_lease, check_limit
from outlast.store.port import (
    EVERYTHING,
    Appended,
    Capabilities,
    Claimed,
    ClaimRequest,
    Clock,
    Committed,
    Due,
    DueKind,
    Feed,
    Filter,
    Page,
    Points,
    Query,
    Renewed,
)
from outlast.store.sqlite import claim, reading, writing
from outlast.store.sqlite.commit import Commit
from outlast.store.sqlite.connection import Connection, Transaction
from outlast.store.sqlite.doorbell import Doorbell, Listener
from outlast.store.sqlite.lock import FairLock
from outlast.store.sqlite.migrate import check_schema, migrate

T = TypeVar("T")

BUSY_TIMEOUT_MS = 10_000
"""Only strangers on the file (a backup, a shell) can make a writer wait here: Outlast's own queue on the lock file."""


class SystemClock:
    """The machine's clock. The store keeps it from going back."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SqliteStore:
    """`SqliteStore("orders.db")`, or a URL: `sqlite:///orders.db`, `sqlite:////var/lib/orders.db?synchronous=NORMAL`."""

    def __init__(self, url: str, *, clock: Clock | None = None, points: Points | None = None) -> None:
        self._path, self._synchronous, self._read_only = parse_url(url)
        self._clock = clock or SystemClock()
        self._points = points
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._turn: FairLock | None = None
        self._bell: Doorbell | None = None

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    @property
    def partitions(self) -> int:
        return 1

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(native_doorbell=True, exact_order=True)

    # ---- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._connect()
        try:
            await self._read("open", lambda tx: check_schema(tx.cursor))
        except BaseException:
            await self.close()
            raise

    async def migrate(self) -> int:
        opened_here = self._writer is None
        await self._connect()
        try:
            return await self._write("migrate", lambda tx: migrate(tx.cursor))
        finally:
            if opened_here:
                await self.close()

    async def close(self) -> None:
        parts = (self._writer, self._reader, self._turn, self._bell)
        self._writer = self._reader = self._turn = self._bell = None
        for part in parts:
            if part is not None:
                await asyncio.to_thread(part.close)

    async def _connect(self) -> None:
        if self._writer is None:
            await asyncio.to_thread(self._open_connections)

    def _open_connections(self) -> None:
        turn = None if self._read_only else FairLock(self._path)
        bell = Doorbell(self._path)
        begin = "BEGIN" if self._read_only else "BEGIN IMMEDIATE"
        writer = Connection(
            self._path,
            begin=begin,
            connect=self._new_connection,
            turn=turn,
            clock=self._clock,
            points=self._points,
            ring=bell.ring,
        )
        reader = Connection(
            self._path,
            begin="BEGIN",
            connect=self._new_connection,
            turn=None,
            clock=self._clock,
            points=None,
            ring=None,
        )
        try:
            writer.open()
            reader.open()
        except BaseException:
            for part in (writer, bell, turn):
                if part is not None:
                    part.close()
            raise
        self._writer, self._reader, self._turn, self._bell = writer, reader, turn, bell

    def _new_connection(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY
        if not self._read_only:
            flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        connection = apsw.Connection(self._path, flags=flags, statementcachesize=256)
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        if not self._read_only:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute("PRAGMA foreign_keys = OFF")
        return connection

    def _write(self, name: str, operation: Callable[[Transaction], T]) -> asyncio.Future[T]:
        if self._writer is None:
            raise StoreClosed(f"the store {self.url} is not open")
        return self._writer.call(name, operation)

    def _read(self, name: str, operation: Callable[[Transaction], T]) -> asyncio.Future[T]:
        if self._reader is None:
            raise StoreClosed(f"the store {self.url} is not open")
        return self._reader.call(name, operation)

    # ---- writes ---------------------------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Changes]) -> Committed:
        check_batch(batch)

        def operation(tx: Transaction) -> Committed:
            commit = Commit(tx.cursor, tx.now, tx.points)
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

    async def purge(
        self, *, finished_before: int | None = None, limit: int = 1_000, filter: Filter = EVERYTHING
    ) -> int:
        check_limit("purge", limit, limits.PURGE_MAX)
        return await self._write("purge", lambda tx: writing.purge(tx, finished_before, limit, filter))

    # ---- reads ----------------------------------------------------------------------------------------------------

    async def now(self) -> int:
        return await self._read("now", lambda tx: tx.now)

    async def load(self, keys: Sequence[Key]) -> list[Record | None]:
        check_limit("load", len(keys), limits.LOAD_MAX_KEYS)
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

    async def frames(self, namespace: str, execution_id: str, *, after: int = 0, limit: int = 1_000) -> list[Frame]:
        check_limit("frames", limit, limits.SCAN_MAX_RECORDS)
        return await self._read("frames", lambda tx: reading.frames(tx, namespace, execution_id, after, limit))

    async def completions(self, *, after: str | None = None, limit: int = 1_000, filter: Filter = EVERYTHING) -> Feed:
        check_limit("completions", limit, limits.SCAN_MAX_RECORDS)
        return await self._read("completions", lambda tx: reading.completions(tx, after, limit, filter))

    # ---- doorbell -------------------------------------------------------------------------------------------------

    def ring(self, channels: frozenset[str]) -> None:
        if self._bell is None:
            raise StoreClosed(f"the store {self.url} is not open")
        self._bell.ring(channels)

    def listen(self) -> Listener:
        if self._bell is None:
            raise StoreClosed(f"the store {self.url} is not open")
        return self._bell.listen()


def parse_url(url: str) -> tuple[str, str, bool]:
    """(path, synchronous, read only) of a URL or a plain path."""
    if "://" not in url:
        path, options = url, {}
    else:
        parts = urlsplit(url)
        if parts.scheme != "sqlite" or parts.netloc:
            raise InvalidConfig(f"{url!r} is not an SQLite URL: write sqlite:///file.db or sqlite:////absolute/file.db")
        path, options = unquote(parts.path.removeprefix("/")), dict(parse_qsl(parts.query, keep_blank_values=True))
    if not path or path == ":memory:":
        raise InvalidConfig("an Outlast store needs a file: what is only in memory does not outlast its process")
    synchronous = options.pop("synchronous", "FULL").upper()
    if synchronous not in ("FULL", "NORMAL"):
        raise InvalidConfig(f"synchronous must be FULL or NORMAL, not {synchronous!r}")
    mode = options.pop("mode", "rw")
    if mode not in ("rw", "ro"):
        raise InvalidConfig(f"mode must be rw or ro, not {mode!r}")
    if options:
        raise InvalidConfig(f"unknown option in {url!r}: {next(iter(options))} (known: synchronous, mode)")
    return path, synchronous, mode == "ro"
