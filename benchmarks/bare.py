"""The yardstick: what the same disk, driver, threads and batches give when nothing is decided, checked or answered.

A prototype as one would write it by hand for speed: WAL with `synchronous=FULL`, one writer thread, asyncio group
commit in the shape of Outlast's. It writes as many rows and about as many bytes per execution as Outlast does, in as
many commits: the execution with its policy, its input, an attempt, ten journal entries (column for column), a
completion, its output. What it leaves out is the engine: no guards, no verdicts, no machine, no clock, no lock between
processes, no doorbell, and no index but the primary keys, so nothing could claim or find anything. All of that counts
against Outlast.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import apsw
import uuid_utils

from benchmarks.load import DIGEST, INPUT, LANE, NAMESPACE, OUTPUT, VALUE, VERSION, WORKER, WORKFLOW

BATCH_MAX = 500

SCHEMA = """
CREATE TABLE execution (
  namespace TEXT NOT NULL, id TEXT NOT NULL, workflow TEXT NOT NULL, version TEXT NOT NULL, lane TEXT NOT NULL,
  route TEXT NOT NULL, tags TEXT NOT NULL, input_digest TEXT NOT NULL, policy TEXT NOT NULL,
  status TEXT NOT NULL, epoch INTEGER NOT NULL, worker TEXT, claim_id TEXT,
  created_at INTEGER NOT NULL, ready_at INTEGER, claimed_at INTEGER, finished_at INTEGER, change_id TEXT NOT NULL,
  PRIMARY KEY (namespace, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE payload (
  namespace TEXT NOT NULL, execution TEXT NOT NULL, generation INTEGER NOT NULL, role TEXT NOT NULL,
  value BLOB NOT NULL, change_id TEXT NOT NULL,
  PRIMARY KEY (namespace, execution, generation, role)
) STRICT, WITHOUT ROWID;
CREATE TABLE attempt (
  namespace TEXT NOT NULL, execution TEXT NOT NULL, generation INTEGER NOT NULL, number INTEGER NOT NULL,
  epoch INTEGER NOT NULL, worker TEXT NOT NULL, started_at INTEGER NOT NULL, ended_at INTEGER,
  outcome TEXT, failure BLOB, change_id TEXT NOT NULL,
  PRIMARY KEY (namespace, execution, generation, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE journal (
  namespace TEXT NOT NULL, execution TEXT NOT NULL, generation INTEGER NOT NULL,
  scope TEXT NOT NULL, name TEXT NOT NULL, occurrence INTEGER NOT NULL,
  op TEXT NOT NULL, outcome TEXT NOT NULL, value BLOB, tries INTEGER NOT NULL, epoch INTEGER NOT NULL,
  recorded_at INTEGER NOT NULL, change_id TEXT NOT NULL,
  PRIMARY KEY (namespace, execution, generation, scope, name, occurrence)
) STRICT, WITHOUT ROWID;
CREATE TABLE completion (
  seq INTEGER PRIMARY KEY,
  namespace TEXT NOT NULL, execution TEXT NOT NULL, generation INTEGER NOT NULL,
  status TEXT NOT NULL, cause TEXT, workflow TEXT NOT NULL, tags TEXT NOT NULL,
  finished_at INTEGER NOT NULL, change_id TEXT NOT NULL
) STRICT;
"""
POLICY = '{"max_attempts":1,"initial_ms":1000,"backoff":2.0,"max_delay_ms":60000,"jitter":0.25}'
ROUTE = f"{WORKFLOW}|{VERSION}||"

BEGIN = """
INSERT INTO execution VALUES (?, ?, ?, ?, ?, ?, '{}', ?, ?, 'active', 1, ?, ?, ?, NULL, ?, NULL, ?)
"""
START = """
INSERT INTO execution VALUES (?, ?, ?, ?, ?, ?, '{}', ?, ?, 'ready', 0, NULL, NULL, ?, ?, NULL, NULL, ?)
"""
PAYLOAD = "INSERT INTO payload VALUES (?, ?, 1, ?, ?, ?)"
CLAIM = """
UPDATE execution SET status = 'active', epoch = 1, worker = ?, claim_id = ?, claimed_at = ?, ready_at = NULL
WHERE namespace = ? AND id = ?
"""
ATTEMPT = "INSERT INTO attempt VALUES (?, ?, 1, 1, 1, ?, ?, NULL, NULL, NULL, ?)"
STEP = "INSERT INTO journal VALUES (?, ?, 1, '', ?, ?, 'step', 'ok', ?, 1, 1, ?, ?)"
COMPLETE = "INSERT INTO completion VALUES (NULL, ?, ?, 1, 'succeeded', NULL, ?, '{}', ?, ?)"
END = """
UPDATE execution SET status = 'succeeded', worker = NULL, claim_id = NULL, claimed_at = NULL, finished_at = ?,
  change_id = ?
WHERE namespace = ? AND id = ?
"""
ATTEMPT_END = """
UPDATE attempt SET ended_at = ?, outcome = 'succeeded', change_id = ?
WHERE namespace = ? AND execution = ? AND generation = 1 AND number = 1
"""

Statement = tuple[str, tuple[Any, ...]]


class Writer:
    """One connection on one thread: a batch in, one transaction, a reply once it is durable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._batches: SimpleQueue[tuple[list[Statement], asyncio.Future[None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="bare", daemon=True)

    def open(self) -> None:
        connection = self._connect()
        connection.execute(SCHEMA)
        connection.close()
        self._thread.start()

    def close(self) -> None:
        self._batches.put(None)
        self._thread.join()

    def commit(self, statements: list[Statement]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._batches.put((statements, future))
        return future

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self._path))
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def _serve(self) -> None:
        connection = self._connect()
        cursor = connection.cursor()
        while (batch := self._batches.get()) is not None:
            statements, future = batch
            cursor.execute("BEGIN IMMEDIATE")
            for sql, values in statements:
                cursor.execute(sql, values)
            cursor.execute("COMMIT")
            future.get_loop().call_soon_threadsafe(future.set_result, None)
        connection.close()


class Bare:
    """Group commit over the writer: what comes while a batch is in flight shares the next one."""

    name = "bare"

    def __init__(self, path: Path) -> None:
        self._writer = Writer(path)
        self._waiting: list[tuple[tuple[Statement, ...], asyncio.Future[None]]] = []
        self._pump: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await asyncio.to_thread(self._writer.open)

    async def close(self) -> None:
        await asyncio.to_thread(self._writer.close)

    async def begin(self, execution_id: str) -> BareExecution:
        """Started by the worker that runs it: the execution, its input and its attempt, in one commit."""
        now, change = _now(), _new_id()
        row = (
            NAMESPACE,
            execution_id,
            WORKFLOW,
            VERSION,
            LANE,
            ROUTE,
            DIGEST,
            POLICY,
            WORKER,
            change,
            now,
            now,
            change,
        )
        await self.commit(
            (BEGIN, row),
            (PAYLOAD, (NAMESPACE, execution_id, "input", INPUT, change)),
            (ATTEMPT, (NAMESPACE, execution_id, WORKER, now, change)),
        )
        return BareExecution(self, execution_id)

    async def start(self, execution_id: str) -> None:
        now, change = _now(), _new_id()
        await self.commit(
            (START, (NAMESPACE, execution_id, WORKFLOW, VERSION, LANE, ROUTE, DIGEST, POLICY, now, now, change)),
            (PAYLOAD, (NAMESPACE, execution_id, "input", INPUT, change)),
        )

    async def claim(self, execution_id: str) -> BareExecution:
        now, claim = _now(), _new_id()
        await self.commit(
            (CLAIM, (WORKER, claim, now, NAMESPACE, execution_id)),
            (ATTEMPT, (NAMESPACE, execution_id, WORKER, now, claim)),
        )
        return BareExecution(self, execution_id)

    async def commit(self, *statements: Statement) -> None:
        if self._pump is None:
            self._loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((statements, future))
        if self._pump is None:
            self._pump = self._loop.create_task(self._drain())
        await future

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            await self._writer.commit([statement for statements, _ in batch for statement in statements])
            for _, future in batch:
                future.set_result(None)
        self._pump = None


class BareExecution:
    def __init__(self, bare: Bare, execution_id: str) -> None:
        self._commit = bare.commit
        self._id = execution_id

    async def step(self, name: str, occurrence: int) -> None:
        await self._commit((STEP, (NAMESPACE, self._id, name, occurrence, VALUE, _now(), _new_id())))

    async def complete(self) -> None:
        now, change = _now(), _new_id()
        await self._commit(
            (END, (now, change, NAMESPACE, self._id)),
            (COMPLETE, (NAMESPACE, self._id, WORKFLOW, now, change)),
            (ATTEMPT_END, (now, change, NAMESPACE, self._id)),
            (PAYLOAD, (NAMESPACE, self._id, "output", OUTPUT, change)),
        )


def _now() -> int:
    return time.time_ns() // 1_000_000


def _new_id() -> str:
    return uuid_utils.uuid7().hex
