"""Query plans at a million finished and a hundred thousand ready executions: nothing reads more than it needs.

Statements are prepared while the tables are empty, as in a new installation: the plans that were made then must serve
the full ones. What the server did is read from its own `auto_explain`, nested statements included.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.model.status import OPEN
from outlast.store.port import DueKind, Filter, Query
from outlast.store.postgres import PostgresStore
from outlast.testing.conformance import actors
from outlast.testing.conformance.samples import ended_execution, ready_execution
from outlast.testing.postgres_server import PostgresServer

# One process for all of them: the tables take half a minute to fill.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("postgres plans"),
]

FINISHED, READY = 1_000_000, 100_000
EXPLAIN = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_format": "json",
    "autovacuum": "off",
}
HOME = "get_byte(sha256(convert_to('4:shop:{prefix}-' || n, 'UTF8')), 7) & 63"
"""`partition_of`, for the default of 64 partitions."""
LOOKED_AT_MAX = 3_000
"""Rows that any one node may read, filtered ones included: far from the size of the table."""


class Place:
    def __init__(self, server: PostgresServer, store: PostgresStore, connection: Any) -> None:
        self.server, self.store, self.connection = server, store, connection
        self.empty_ms = 0.0

    async def claim_ms(self) -> float:
        """How long a claim of ten takes, at best: others use the machine, too."""
        took: list[float] = []
        for _ in range(15):
            began = time.perf_counter()
            assert len((await actors.claim(self.store, limit=10)).executions) == 10
            took.append(time.perf_counter() - began)
        return min(took) * 1_000

    async def plans(self, work: Any) -> list[dict[str, Any]]:
        """The plans of all statements that the work ran."""
        await self.connection.execute("ALTER SYSTEM SET auto_explain.log_min_duration = 0")
        await self.connection.execute("SELECT pg_reload_conf()")
        log = self.server.folder / "log"  # type: ignore[operator]
        await self._settings_reached()
        size = log.stat().st_size
        try:
            await work
        finally:
            await self.connection.execute("ALTER SYSTEM SET auto_explain.log_min_duration = -1")
            await self.connection.execute("SELECT pg_reload_conf()")
        with log.open() as file:
            file.seek(size)
            return list(_plans(file.read()))

    async def _settings_reached(self) -> None:
        """The store's own connection has read the new settings: it does so before a statement."""
        pool = self.store._opened()[0]

        async def shown(session: Any) -> str:
            return (await session.rows("SHOW auto_explain.log_min_duration"))[0][0]

        async with asyncio.timeout(10):
            while await pool.call("test", shown, writes=False) != "0":
                pass


def _plans(log: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    for piece in log.split("plan:\n")[1:]:
        yield decoder.raw_decode(piece.replace("\n\t", "\n").lstrip())[0]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from nodes(inner)


def judge(plans: list[dict[str, Any]], *, most: int = LOOKED_AT_MAX) -> None:
    assert plans, "nothing was explained"
    for plan in plans:
        for node in nodes(plan["Plan"]):
            where = f"{node.get('Relation Name')} by {node.get('Index Name')}"
            what = f"{node['Node Type']} of {where} in\n{plan['Query Text']}"
            if node["Node Type"] == "Seq Scan":
                small = node["Relation Name"] in ("session", "clock", "meta", "lane", "flow")
                assert small, what
            if "Relation Name" in node:
                read = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
                assert read <= most, f"{read:,} rows: {what}"
                searches = node.get("Index Searches", 0)
                assert searches <= 2 * node["Actual Loops"] + 100, f"{searches:,} searches: {what}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[Place]:
    with PostgresServer.launch(settings={**EXPLAIN, "log_min_messages": "log"}) as server:
        store = PostgresStore(f"{server.url}&pool_size=1&doorbell=off")
        await store.migrate()
        await store.open()
        connection = await asyncpg.connect(server.url)
        place = Place(server, store, connection)
        await everything(store, "prepared")
        await actors.start_many(store, [actors.start_fact(f"few{n}") for n in range(300)])
        await place.claim_ms()
        place.empty_ms = await place.claim_ms()
        await fill(connection)
        yield place
        await connection.close()
        await store.close()


async def everything(store: PostgresStore, name: str) -> None:
    """Each operation of a worker, once."""
    await actors.start(store, name, tags={"site": name}, priority=5, retention_ms=10**9)
    held = await actors.claim_one(store, lease_ttl_ms=3_600_000)
    await actors.commit_one(store, actors.decided(store, held, actors.steps(held)))
    await actors.tell(store, name, actors.sends())
    await store.renew("w1", lease_ttl_ms=3_600_000)
    await store.held("w1", frozenset(range(store.partitions)))
    await store.append(actors.NAMESPACE, name, epoch=held.epoch, change_id=name, frames=[b"x"])
    await store.frames(actors.NAMESPACE, name)
    await store.scan(JournalEntry.KIND, (actors.NAMESPACE, name))
    await store.scan(Event.KIND, (actors.NAMESPACE, name))
    for prefix in ((), (actors.NAMESPACE,)):
        [first, *_] = await store.scan(Execution.KIND, prefix, limit=10)
        await store.scan(Execution.KIND, prefix, after=first.key, limit=10)
    held = await actors.look(store, name)
    suspending = actors.decided(store, held, actors.suspends(held, waits=("event:none",)))
    assert (await actors.commit_one(store, suspending)).applied
    await actors.tell(store, name, actors.sends("none"))
    held = await actors.claim_one(store, lease_ttl_ms=3_600_000)
    assert held.id == name
    assert (await actors.commit_one(store, actors.decided(store, held, actors.completes(held)))).applied
    for kind in DueKind:
        await store.due(kind, limit=50)
        await store.due(kind, limit=50, filter=Filter(namespace=actors.NAMESPACE))
    page = Query(namespace=actors.NAMESPACE, limit=50)
    await store.find(page)
    await store.find(Query(namespace=actors.NAMESPACE, limit=50, status=frozenset({held.status})))
    await store.find(Query(namespace=actors.NAMESPACE, limit=50, workflow=actors.WORKFLOW))
    await store.find(Query(namespace=actors.NAMESPACE, limit=50, status=OPEN))
    await store.find(Query(namespace=actors.NAMESPACE, limit=50, status=OPEN, workflow=actors.WORKFLOW))
    await store.find(Query(namespace=actors.NAMESPACE, limit=50, tags={"site": name}))
    await store.completions(limit=50)
    assert await store.purge(limit=10) == 0


async def fill(connection: Any) -> None:
    """Rows made by the server itself: indexes after the rows, no WAL."""
    indexes = await connection.fetch(
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'outlast' AND tablename = 'execution' "
        "AND indexname <> 'execution_pkey'"
    )
    await connection.execute("SET maintenance_work_mem = '512MB'; SET synchronous_commit = off")
    await connection.execute(";".join(f"DROP INDEX outlast.{row['indexname']}" for row in indexes))
    for sample, number, prefix in ((ended_execution(), FINISHED, "old"), (ready_execution(), READY, "new")):
        columns = {name: getattr(sample, name) for name in sample.__struct_fields__}
        columns |= {"namespace": actors.NAMESPACE, "workflow": actors.WORKFLOW, "version": "1"}
        columns |= {"route": "checkout|1|", "lane": actors.LANE, "purge_at": None, "change_id": ""}
        names = [name for name in columns if name not in ("id", "created_at", "finished_at", "ready_at")]
        times = {
            "id": f"'{prefix}-' || n",
            "created_at": "1700000000000 + n",
            "finished_at": "1700000000001 + n" if prefix == "old" else "NULL",
            "ready_at": "NULL" if prefix == "old" else "1700000000000 + n",
        }
        values = ", ".join((*(_literal(columns[name]) for name in names), *times.values()))
        await connection.execute(
            f"INSERT INTO outlast.execution (partition, {', '.join((*names, *times))}) "
            f"SELECT {HOME.format(prefix=prefix)}, {values} FROM generate_series(1, {number}) AS n"
        )
    await connection.execute(
        "INSERT INTO outlast.payload SELECT partition, namespace, id, 1, 'input', 'x', 'c' FROM outlast.execution "
        "WHERE ready_at IS NOT NULL"
    )
    # A hundred thousand: what a plan that was made for a few rows may take for a table to read as a whole.
    await connection.execute(
        "INSERT INTO outlast.attempt SELECT partition, namespace, id, 1, 1, 1, 'w0', 1, 2, 'succeeded', NULL, 'c' "
        "FROM outlast.execution WHERE finished_at IS NOT NULL AND id LIKE 'old-%0'"
    )
    await connection.execute(";".join(row["indexdef"] for row in indexes))


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, bool | int) else f"'{value}'"


async def test_what_was_prepared_on_empty_tables_reads_little_on_full_ones(place: Place):
    judge(await place.plans(everything(place.store, "before-analyze")))


async def test_a_claim_of_a_full_table_takes_no_longer_than_of_an_empty_one(place: Place):
    await place.claim_ms()
    full_ms = min([await place.claim_ms() for _ in range(3)])
    # Half a millisecond of grace: on a busy machine that is noise.
    assert full_ms <= 1.5 * place.empty_ms + 0.5, f"{full_ms:.2f} ms, and {place.empty_ms:.2f} ms when it was empty"


async def test_batches_of_hundreds_look_rows_up_by_key(place: Place):
    async def work() -> None:
        held = [one.execution for one in (await actors.claim(place.store, limit=200)).executions]
        for said in (actors.steps, actors.completes):
            batch = [actors.decided(place.store, one, said(one)) for one in held]
            assert all(verdict.applied for verdict in await actors.commit(place.store, *batch))
        await actors.start_many(place.store, [actors.start_fact(f"more{n}", tags={"t": "1"}) for n in range(200)])

    judge(await place.plans(work()))


async def test_plans_that_know_the_tables_read_little_too(place: Place):
    await place.connection.execute("ANALYZE outlast.execution, outlast.payload, outlast.journal, outlast.attempt")
    again = PostgresStore(f"{place.server.url}&pool_size=1&doorbell=off")
    await again.open()
    first, place.store = place.store, again
    try:
        judge(await place.plans(everything(again, "after-analyze")))
    finally:
        place.store = first
        await again.close()
