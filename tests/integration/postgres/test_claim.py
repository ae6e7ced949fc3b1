"""What a claim hands over on PostgreSQL, so that its holder need not ask."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec import structs

from outlast.store.port import EARLY_EVENTS, ClaimedExecution
from outlast.store.postgres import PostgresStore
from outlast.store.postgres.functions import SHORT, SHORT_BYTES
from outlast.testing.conformance.actors import claim, commit_one, decided, running, sends, start, steps, suspends, tell
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
