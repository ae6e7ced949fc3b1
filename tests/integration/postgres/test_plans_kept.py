"""Plans are made once and kept: what was planned when a table was small must not read all of it when it is large.

At a million rows, with every operation, that is `test_query_plans.py`; here it is the case that went wrong, which needs
some hundred rows at the time of planning: fewer, and the planner takes the table for larger than it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest_asyncio

from outlast.machine.changes import Insert
from outlast.model.flow import EdgeAnswer
from outlast.store.postgres import PostgresStore
from outlast.testing.conformance import actors
from tests import postgres

SOME, MANY, BATCH = 300, 5_000, 100
ROWS_MAX = 10 * BATCH
"""That a batch may read by a key, in each table: it looks at each row a few times."""


@pytest_asyncio.fixture
async def url() -> str:
    return await postgres.empty()


@pytest_asyncio.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(f"{url}&pool_size=1&doorbell=off")
    await store.open()
    yield store
    await store.close()


async def claimed_and_ended(store: PostgresStore) -> None:
    held = [one.execution for one in (await actors.claim(store, limit=BATCH)).executions]
    assert len(held) == BATCH
    for said in (actors.steps, actors.completes):
        batch = [actors.decided(store, one, said(one)) for one in held]
        assert all(verdict.applied for verdict in await actors.commit(store, *batch))


async def read_by_key(store: PostgresStore, connection: Any) -> dict[str, int]:
    async def told(session: Any) -> None:
        await session.rows("SELECT pg_stat_force_next_flush()")

    await store._opened()[0].call("test", told, writes=False)
    await connection.execute("SELECT pg_stat_force_next_flush()")
    rows = await connection.fetch("SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes")
    return {row["indexrelname"]: row["idx_tup_read"] for row in rows}


async def test_what_was_planned_on_a_small_table_reads_little_of_a_large_one(store: PostgresStore, url: str):
    connection: Any = await asyncpg.connect(url)
    await actors.start_many(store, [actors.start_fact(f"some{n}") for n in range(SOME)])
    await claimed_and_ended(store)
    for table, name, ended in (("execution", "id", "finished_at"), ("attempt", "execution", "ended_at")):
        await connection.execute(
            f"INSERT INTO outlast.{table} SELECT r.* FROM generate_series(1, {MANY}) AS n, "
            f"(SELECT to_jsonb(y) AS row FROM outlast.{table} AS y WHERE {ended} IS NOT NULL LIMIT 1) AS x, "
            f"jsonb_populate_record(NULL::outlast.{table}, x.row || jsonb_build_object('{name}', 'old' || n)) AS r"
        )
    before = await read_by_key(store, connection)
    await claimed_and_ended(store)
    after = await read_by_key(store, connection)
    await connection.close()
    read = {name: number - before.get(name, 0) for name, number in after.items()}
    assert read["execution_pkey"] >= BATCH, "what was read is not told"
    assert {name: number for name, number in read.items() if number > ROWS_MAX} == {}


async def test_answers_of_thousands_are_looked_up_by_their_keys(store: PostgresStore, url: str):
    """They also stand in the order in which they came: there each would be searched for among all of one member."""
    connection: Any = await asyncpg.connect(url)
    await actors.start(store, "joins")

    def answer(n: int) -> EdgeAnswer:
        return EdgeAnswer(
            namespace=actors.NAMESPACE,
            execution="joins",
            upstream=f"u{n}",
            answer="succeeded",
            answered_at=1,
            change_id=f"c{n}",
        )

    assert await store.load([answer(0).key]) == [None]
    for first in range(0, MANY, 500):
        answers = [Insert(answer(n)) for n in range(first, first + 500)]
        assert (await actors.commit(store, actors.changing(store, "joins", *answers)))[0].applied
    before = await read_by_key(store, connection)
    found = await store.load([answer(n).key for n in range(500)])
    after = await read_by_key(store, connection)
    assert None not in found
    in_order = await store.scan(EdgeAnswer.KIND, (actors.NAMESPACE, "joins"), limit=10)
    again = await read_by_key(store, connection)
    await connection.close()
    assert after["edge_pkey"] - before["edge_pkey"] == 500
    assert after["edge_order"] == before["edge_order"]
    assert [one.upstream for one in in_order if isinstance(one, EdgeAnswer)] == [f"u{n}" for n in range(10)]
    assert again["edge_order"] - after["edge_order"] == 10, "a page in order reads no more than itself"
