"""A namespace beside another one that has much more in front of it: its own is found, in calls that are short."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec import structs

from outlast.machine.changes import Changes, Insert
from outlast.store.port import DueKind, Filter, Query
from outlast.store.valkey import ValkeyStore
from outlast.testing.clock import ManualClock
from outlast.testing.conformance.actors import NAMESPACE, commit, ended, new_id, start
from outlast.testing.valkey_server import ValkeyServer
from tests.conformance.valkey_audit import leaks

LOOKS = 1_000
"""So many a call looks at."""
THEIRS = 10_500
OURS = Filter(namespace=NAMESPACE)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture
async def store(server: ValkeyServer, clock: ManualClock) -> AsyncIterator[ValkeyStore]:
    store = ValkeyStore(f"{server.url}?partitions=1", clock=clock)
    await store.migrate()
    await store.open()
    yield store
    await store.close()


async def ended_before_ours(store: ValkeyStore, number: int) -> None:
    """So many of another namespace: copies of one, of which some ended at the same time."""
    one = await ended(store, "copy", namespace="theirs", retention_ms=1_000)
    assert isinstance(one.purge_at, int)
    for first in range(0, number, 1_000):
        copies = [
            structs.replace(one, id=f"{n % 7}-{n}", purge_at=one.purge_at + n // 3_000, change_id=new_id())
            for n in range(first, min(first + 1_000, number))
        ]
        await commit(
            store,
            *[Changes(id=copy.change_id, partition=0, anchors=(copy.key,), writes=(Insert(copy),)) for copy in copies],
        )


def calls(server: ValkeyServer) -> int:
    lines = server.ask("INFO", "commandstats").decode().splitlines()
    return int(next(line for line in lines if line.startswith("cmdstat_fcall:")).partition("calls=")[2].split(",")[0])


@pytest.mark.parametrize("by_age", [True, False])
async def test_a_purge_finds_its_own_behind_many_ends_of_others(
    server: ValkeyServer, store: ValkeyStore, clock: ManualClock, by_age: bool
):
    await ended_before_ours(store, THEIRS)
    clock.advance("1s")
    for number in range(3):
        await ended(store, f"ours{number}", retention_ms=1_000)
    clock.advance("2s")
    before = calls(server)
    finished_before = clock.now_ms() if by_age else None
    assert await store.purge(finished_before=finished_before, filter=OURS) == 3
    assert calls(server) - before > THEIRS // LOOKS, "one call does not look at all of them"
    assert await store.count(Query(namespace=NAMESPACE)) == 0
    assert await store.count(Query(namespace="theirs")) == THEIRS + 1
    assert await store.purge(finished_before=finished_before, limit=10) == 10
    assert leaks(server) == []


async def test_what_is_due_is_found_behind_what_is_due_to_others(
    server: ValkeyServer, store: ValkeyStore, clock: ManualClock
):
    await ended_before_ours(store, 2 * LOOKS + 1)
    clock.advance("1s")
    for number in range(3):
        await ended(store, f"ours{number}", retention_ms=1_000)
    await start(store, "open")
    clock.advance("2s")
    before = calls(server)
    due = await store.due(DueKind.RETENTION, limit=2, filter=OURS)
    assert calls(server) - before == 3, "one call does not look at all of them"
    assert [item.record.key.values for item in due.items] == [(NAMESPACE, "ours0"), (NAMESPACE, "ours1")]
    assert due.depth == 3
    theirs = await store.due(DueKind.RETENTION, limit=10, filter=Filter(namespace="theirs"))
    assert (len(theirs.items), theirs.depth) == (10, 2 * LOOKS + 2)
    assert theirs.items[0].due_at <= theirs.items[-1].due_at


async def test_completions_are_read_behind_those_of_others(server: ValkeyServer, store: ValkeyStore):
    one = await ended(store, "copy", namespace="theirs")
    [theirs] = (await store.completions()).completions
    for first in range(0, 2 * LOOKS, 1_000):
        copies = [structs.replace(theirs, execution=f"{n}", change_id=new_id()) for n in range(first, first + 1_000)]
        await commit(
            store,
            *[Changes(id=copy.change_id, partition=0, anchors=(one.key,), writes=(Insert(copy),)) for copy in copies],
        )
    for number in range(3):
        await ended(store, f"ours{number}")
    before = calls(server)
    feed = await store.completions(filter=OURS)
    assert calls(server) - before == 3, "one call does not look at all of them"
    assert [one.execution for one in feed.completions] == ["ours0", "ours1", "ours2"]
    await ended(store, "ours3")
    before = calls(server)
    feed = await store.completions(after=feed.cursor, filter=OURS)
    assert calls(server) - before == 1, "what was left out is behind the cursor"
    assert [one.execution for one in feed.completions] == ["ours3"]
    assert [one.execution for one in (await store.completions(limit=2, filter=OURS)).completions] == ["ours0", "ours1"]
    before = calls(server)
    found = await store.scan("completion", (NAMESPACE,), limit=3)
    assert calls(server) - before == 3
    assert [one.key.values[1] for one in found] == ["ours0", "ours1", "ours2"]
    assert len((await store.completions(limit=10_000)).completions) == 2 * LOOKS + 5
