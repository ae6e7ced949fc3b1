"""Claim, due and find on a database with a long history beside one with hardly any: the same within a factor.

One server, two databases, asked in turns; what a claim took is completed and replaced by as many new executions before
the next one. The rows are what the machine makes of a start, a claim and an end, multiplied by the server itself.
`--finished 10000000` is what a large installation keeps; that takes some minutes to fill, and 12 GB of a disk.

A short call takes twice as long if the scheduler has left who asks and who answers on two cores, and it leaves them
where they are for a second or more: so all of them share one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import asyncpg

from benchmarks.history import YEAR_MS, life, waiting
from benchmarks.load import NAMESPACE, OUTPUT, WORKFLOW
from benchmarks.real import Real, start
from benchmarks.report import Report, Scene, heading
from benchmarks.scale import BAR, CLAIM_LIMIT, READY_FEW, WARM_UP, claim_request, medians, new_id
from benchmarks.settings import Settings
from benchmarks.stage import DURABLE, ROOM
from outlast.machine import facts
from outlast.machine.changes import Changes, View
from outlast.machine.decide import decide
from outlast.model.execution import Execution
from outlast.model.partition import partition_of
from outlast.model.record import Record
from outlast.model.status import Status
from outlast.store.port import DueKind, Query
from outlast.store.postgres import PostgresStore
from outlast.store.postgres.statements import TABLES
from outlast.testing.postgres_server import PostgresServer

PART = 500_000
"""So many rows with one statement: progress is said in between."""
ROUNDS = 300
CORES = hasattr(os, "sched_setaffinity")
"""Whether this system lets us say where a process runs."""
SERVER = {"shared_buffers": "2GB", "max_wal_size": "16GB", "maintenance_work_mem": "1GB"}
KEYS = """
SELECT c.conrelid::regclass::text AS table, c.conname AS name, pg_get_constraintdef(c.oid) AS text
FROM pg_constraint AS c JOIN pg_namespace AS n ON n.oid = c.connamespace
WHERE n.nspname = 'outlast' AND c.contype IN ('p', 'u')
"""
SERVING = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
INDEXES = "SELECT indexname AS name, indexdef AS text FROM pg_indexes WHERE schemaname = 'outlast'"
DUES = (DueKind.LEASE, DueKind.TIMER, DueKind.DEADLINE, DueKind.RETENTION)
FINDS = {
    "find-newest": Query(namespace=NAMESPACE, limit=50),
    "find-failed": Query(namespace=NAMESPACE, limit=50, status=frozenset({Status.FAILED})),
    "find-workflow": Query(namespace=NAMESPACE, limit=50, workflow=WORKFLOW),
}


def measure(settings: Settings, report: Report) -> None:
    label = f"{settings.finished:,} finished and {settings.ready:,} ready executions"
    heading(f"scale: {label} beside none and {READY_FEW:,}")
    with PostgresServer.launch(settings={**DURABLE, **SERVER}, room=ROOM) as server, _one_core():
        timings = asyncio.run(_measured(server, settings))
    for name, (few_ms, many_ms) in timings.items():
        for size, samples in (("few", few_ms), (str(settings.finished), many_ms)):
            scene = Scene(system=Real.name, version=settings.version, store=settings.store, scenario=f"{name}-{size}")
            report.add(scene, "p50_ms", medians(samples, settings.repeats), "ms")
        ratio = median(many_ms) / median(few_ms)
        report.bar(f"{name}: {ratio:.2f}× of an empty database (at most {BAR}×)", met=ratio <= BAR)


@contextmanager
def _one_core() -> Iterator[None]:
    """This process on one core; what comes after it in the same run has all of them again."""
    if not CORES:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


async def _measured(server: PostgresServer, settings: Settings) -> dict[str, tuple[list[float], list[float]]]:
    pair = [await _Asked.made(server), await _Asked.made(server)]
    for asked, finished, ready in zip(pair, (0, settings.finished), (READY_FEW, settings.ready), strict=True):
        await asked.fill(finished, ready)
    for asked in pair:
        await asked.share_a_core()
    calls: dict[str, Callable[[_Asked], Awaitable[float]]] = {"claim": _Asked.claim}
    calls |= {f"due-{kind}": partial(_Asked.due, kind=kind) for kind in DUES}
    calls |= {name: partial(_Asked.find, query=query) for name, query in FINDS.items()}
    timings: dict[str, tuple[list[float], list[float]]] = {}
    for name, call in calls.items():
        timings[name] = ([], [])
        for round_ in range(-WARM_UP, min(settings.rounds, ROUNDS)):
            for asked, samples in zip(pair, timings[name], strict=True):
                took_ms = await call(asked)
                if round_ >= 0:
                    samples.append(took_ms)
    for asked in pair:
        await asked.store.close()
    return timings


class _Asked:
    """One database, and the time of its answers."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.store = PostgresStore(f"{url}&doorbell=off")

    @classmethod
    async def made(cls, server: PostgresServer) -> _Asked:
        name = server.new_name()
        connection: Any = await asyncpg.connect(server.url)
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()
        asked = cls(server.url_of(name))
        await asked.store.migrate()
        await asked.store.open()
        return asked

    # ---- filling --------------------------------------------------------------------------------------------------

    async def fill(self, finished: int, ready: int) -> None:
        """Rows first, keys and indexes after them; then what an hour of autovacuum would have done."""
        began = time.perf_counter()
        connection: Any = await asyncpg.connect(self._url)
        await connection.execute("SET synchronous_commit = off; SET search_path = outlast")
        keys = await connection.fetch(KEYS)
        for row in keys:
            await connection.execute(f"ALTER TABLE outlast.{row['table']} DROP CONSTRAINT {row['name']}")
        indexes = await connection.fetch(INDEXES)
        for row in indexes:
            await connection.execute(f"DROP INDEX outlast.{row['name']}")
        now = time.time_ns() // 1_000_000
        long_ago, later = now - YEAR_MS, now + 10 * YEAR_MS
        for records, count, prefix in (
            (life(long_ago, later), finished, "old"),
            (waiting(long_ago, later), ready, "new"),
        ):
            for record in records:
                for first in range(1, count + 1, PART):
                    await connection.execute(self._many(record, prefix, first, min(first + PART - 1, count)))
            if count:
                print(f"  {count:,} {prefix} after {time.perf_counter() - began:.0f} s", flush=True)
        for row in keys:
            await connection.execute(f"ALTER TABLE outlast.{row['table']} ADD CONSTRAINT {row['name']} {row['text']}")
        for row in indexes:
            await connection.execute(row["text"])
        await connection.execute("VACUUM (ANALYZE)")
        [size] = await connection.fetch("SELECT pg_size_pretty(pg_database_size(current_database())) AS text")
        await connection.close()
        took_s = time.perf_counter() - began
        print(f"  {finished:,} finished and {ready:,} ready: {size['text']}, {took_s:.0f} s", flush=True)

    def _many(self, record: Record, prefix: str, first: int, last: int) -> str:
        """Only ids, places and times differ; the ids are scattered, the worst case for a cache."""
        table = TABLES[record.KIND]
        owner = f"'{prefix}-' || lpad(to_hex((n * 2654435761) & 4294967295), 8, '0')"
        named = "id" if record.KIND == Execution.KIND else "execution"
        root = f"'{len(NAMESPACE)}:{NAMESPACE}:' || q.owner"
        # `partition_of`, for the default of 64 partitions
        values = {"partition": f"get_byte(sha256(convert_to({root}, 'UTF8')), 7) & 63"}
        for name in table.written:
            if name == named:
                values[name] = "q.owner"
            elif name in ("created_at", "finished_at", "ready_at") and getattr(record, name) is not None:
                values[name] = f"{getattr(record, name)} + n"
            elif name != "partition":
                values[name] = _literal(getattr(record, name))
        return (
            f"INSERT INTO outlast.{record.KIND} ({', '.join(values)}) SELECT {', '.join(values.values())} "
            f"FROM (SELECT n, {owner} AS owner FROM generate_series({first}::bigint, {last}) AS n) AS q"
        )

    async def share_a_core(self) -> None:
        """What answers here moves to the core of who asks."""
        if not CORES:
            return
        connection: Any = await asyncpg.connect(self._url)
        for row in await connection.fetch(SERVING):
            os.sched_setaffinity(row["pid"], os.sched_getaffinity(0))
        await connection.close()

    # ---- asking ---------------------------------------------------------------------------------------------------

    async def claim(self) -> float:
        request = claim_request()
        asked = time.perf_counter()
        claimed = await self.store.claim(request)
        took_ms = (time.perf_counter() - asked) * 1_000
        assert len(claimed.executions) == CLAIM_LIMIT
        batch: list[Changes] = []
        for held in (each.execution for each in claimed.executions):
            ended = facts.Complete(change_id=new_id(), epoch=held.epoch, output=OUTPUT)
            new = start(new_id(), new_id())
            for view, fact in ((View(self._home(held.id), held), ended), (View(self._home(new.id), None), new)):
                answer = decide(view, fact, claimed.now)
                assert isinstance(answer, Changes)
                batch.append(answer)
        committed = await self.store.commit(batch)
        assert all(verdict.applied for verdict in committed.verdicts)
        return took_ms

    def _home(self, execution_id: str) -> int:
        return partition_of(NAMESPACE, execution_id, self.store.partitions)

    async def due(self, kind: DueKind) -> float:
        asked = time.perf_counter()
        await self.store.due(kind, limit=100)
        return (time.perf_counter() - asked) * 1_000

    async def find(self, query: Query) -> float:
        asked = time.perf_counter()
        await self.store.find(query)
        return (time.perf_counter() - asked) * 1_000


def _literal(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case bool() | int():
            return str(value)
        case bytes():
            return f"'\\x{value.hex()}'::bytea"
        case _:
            return "'" + str(value).replace("'", "''") + "'"
