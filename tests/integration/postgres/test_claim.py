"""What a claim hands over on PostgreSQL, so that its holder need not ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from msgspec import structs

from outlast.model.lease import EARLY_EVENTS, ClaimedExecution
from outlast.store.postgres import PostgresStore
from outlast.store.postgres.functions import SHORT, SHORT_BYTES
from outlast.testing.conformance.actors import (
    NAMESPACE,
    claim,
    claim_request,
    commit_one,
    decided,
    look,
    running,
    sends,
    start,
    steps,
    suspends,
    tell,
)
from tests import postgres


@pytest_asyncio.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = PostgresStore(f"{await postgres.empty()}&doorbell=off")
    await store.open()
    yield store
    await store.close()


async def woken(store: PostgresStore, *, entries: int, value: bytes = b"1", events: int = 1) -> ClaimedExecution:
    """Suspended with such a journal, sent so many events, and claimed again."""
    held = await running(store)
    for number in range(entries):
        step = structs.replace(steps(held, occurrence=number, entries=number), value=value)
        await commit_one(store, decided(store, held, step))
    await commit_one(store, decided(store, held, suspends(held, waits=("event:plan",))))
    for _ in range(events):
        await tell(store, "a", sends())
    [taken] = (await claim(store)).executions
    return taken


@pytest.mark.parametrize("entries, comes_along", [(0, True), (SHORT, True), (SHORT + 1, False)])
async def test_a_short_journal_comes_along_and_a_long_one_does_not(
    store: PostgresStore, entries: int, comes_along: bool
):
    taken = await woken(store, entries=entries)
    assert (taken.journal is not None) == comes_along
    if taken.journal is not None:
        assert sorted(entry.position for entry in taken.journal) == list(range(entries))
        assert [event.name for event in taken.events] == ["plan"]


async def test_large_values_do_not_come_along(store: PostgresStore):
    taken = await woken(store, entries=2, value=b"x" * (SHORT_BYTES // 2 + 1))
    assert (taken.journal, taken.events) == (None, [])


async def test_many_events_do_not_come_along(store: PostgresStore):
    taken = await woken(store, entries=1, events=EARLY_EVENTS + 1)
    assert (taken.journal, taken.events) == (None, [])


async def test_what_never_ran_has_nothing_to_come_along(store: PostgresStore):
    await start(store)
    [taken] = (await claim(store)).executions
    assert (taken.journal, taken.events, taken.began_at) == (None, [], None)


@pytest.mark.parametrize("again", [False, True])
async def test_what_was_taken_by_a_claim_whose_answer_was_lost_is_found_though_it_was_the_first(again: bool):
    cut: list[str] = []

    def cuts(point: str) -> None:
        if point == "claim:statement done" and not cut:
            cut.append(point)
            raise ConnectionResetError(point)

    store = PostgresStore(f"{await postgres.empty()}&doorbell=off", points=cuts)
    await store.open()
    await start(store)
    asked = claim_request("w1", first=True)
    [taken] = (await store.claim(asked)).executions
    assert cut
    assert taken.execution.id == "a"
    if again:
        [found] = (await store.claim(structs.replace(asked, first=False))).executions
        assert found == taken
    assert (await claim(store, "w2", first=True)).executions == []
    await store.close()


async def test_what_moves_between_a_look_and_its_lock_is_seen_by_the_next_look(store: PostgresStore):
    await start(store, quota="few")
    other: Any = await asyncpg.connect(postgres.server().url_of(postgres.RECYCLED))
    await other.execute(
        "INSERT INTO outlast.quota SELECT n, $1, 'few', 1 FROM generate_series(0, $2 - 1) AS n",
        NAMESPACE,
        store.partitions,
    )
    before = await look(store, "a")
    async with other.transaction():
        await other.execute("SELECT 1 FROM outlast.quota FOR UPDATE")
        claiming = asyncio.create_task(claim(store))
        while not await other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        moving: Any = await asyncpg.connect(postgres.server().url_of(postgres.RECYCLED))
        await moving.execute("UPDATE outlast.execution SET priority = priority + 1")
        await moving.close()
    [taken] = (await claiming).executions
    assert (taken.execution.id, taken.execution.priority) == ("a", before.priority + 1)
    await other.close()
