"""A store's life: migrate, open, close, and what may not be done before and after."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from outlast.errors import SchemaMissing, StoreClosed
from outlast.model.execution import execution_key
from outlast.model.journal import JournalEntry
from outlast.model.status import Status
from outlast.store.port import Capabilities, Committed, DueKind, Query, Store
from outlast.testing.conformance.actors import (
    NAMESPACE,
    TTL_MS,
    claim_request,
    commit_one,
    decided,
    look,
    running,
    start,
    start_changes,
    start_fact,
    start_many,
    state,
    steps,
)
from outlast.testing.conformance.harness import Conformance, World, refused


class LifeConformance(Conformance):
    async def test_a_database_without_a_schema_is_not_opened(self, world: World) -> None:
        store = world.harness.new(clock=world.clock)
        await refused(store.open(), SchemaMissing)
        await store.close()

    async def test_migrating_makes_it_usable_and_answers_the_version(self, world: World) -> None:
        store = world.harness.new(clock=world.clock)
        version = await store.migrate()
        assert version >= 1
        await store.open()
        await start(store)
        await store.close()

    async def test_migrating_again_changes_nothing(self, world: World, store: Store) -> None:
        await running(store)
        before = await state(store, "a")
        versions = {await store.migrate(), await store.migrate(), await (await world.store()).migrate()}
        assert len(versions) == 1
        assert await state(store, "a") == before

    async def test_ten_processes_may_migrate_at_once(self, world: World) -> None:
        stores = [world.harness.new(clock=world.clock) for _ in range(10)]
        versions = await asyncio.gather(*[store.migrate() for store in stores])
        assert len(set(versions)) == 1
        for store in stores:
            await store.open()
        await start(stores[0])
        assert (await look(stores[9], "a")).status is Status.READY
        for store in stores:
            await store.close()

    async def test_what_was_committed_is_there_after_reopening(self, world: World, store: Store) -> None:
        held = await running(store, tags={"a": "b"})
        await commit_one(store, decided(store, held, steps(held)))
        await store.append(NAMESPACE, "a", epoch=held.epoch, change_id="f", frames=[b"frame"])
        before = await state(store, "a")
        await store.close()
        assert await state(await world.store(), "a") == before

    async def test_a_closed_store_can_be_opened_again(self, store: Store) -> None:
        await start(store)
        await store.close()
        await store.open()
        assert (await look(store, "a")).id == "a"

    async def test_closing_twice_is_harmless(self, store: Store) -> None:
        await store.close()
        await store.close()

    async def test_closing_what_was_never_opened_is_harmless(self, world: World) -> None:
        await world.harness.new(clock=world.clock).close()

    async def test_closing_finishes_what_is_in_flight(self, world: World, store: Store) -> None:
        in_flight = [store.commit([start_changes(store, start_fact(f"x{n}"))]) for n in range(20)]
        commits = [asyncio.ensure_future(call) for call in in_flight]
        await asyncio.sleep(0)
        await store.close()
        answers = await asyncio.gather(*commits, return_exceptions=True)
        applied = sum(isinstance(answer, Committed) for answer in answers)
        assert all(isinstance(answer, Committed | StoreClosed) for answer in answers)
        other = await world.store()
        assert await other.count(Query(namespace=NAMESPACE)) == applied

    async def test_every_call_after_closing_says_so(self, store: Store) -> None:
        await store.close()
        calls: list[Callable[[], Awaitable[object]]] = [
            store.now,
            lambda: store.commit([]),
            lambda: store.claim(claim_request()),
            lambda: store.renew("w1", lease_ttl_ms=TTL_MS),
            lambda: store.load([execution_key(NAMESPACE, "a")]),
            lambda: store.scan(JournalEntry.KIND, (NAMESPACE, "a")),
            lambda: store.find(Query(namespace=NAMESPACE)),
            lambda: store.count(Query(namespace=NAMESPACE)),
            lambda: store.due(DueKind.TIMER, limit=1),
            lambda: store.append(NAMESPACE, "a", epoch=1, change_id="c", frames=[b"x"]),
            lambda: store.frames(NAMESPACE, "a"),
            store.completions,
            store.purge,
        ]
        for call in calls:
            await refused(call(), StoreClosed)
        with pytest.raises(StoreClosed):
            store.ring(frozenset({"x"}))
        with pytest.raises(StoreClosed):
            store.listen()

    async def test_a_store_describes_itself(self, store: Store) -> None:
        assert "://" in store.url
        assert store.partitions >= 1
        assert isinstance(store.capabilities, Capabilities)

    async def test_every_process_sees_the_same_partitions(self, world: World, store: Store) -> None:
        assert {other.partitions for other in await world.stores(3)} == {store.partitions}

    async def test_answers_come_to_who_asked_when_many_ask_at_once(self, store: Store) -> None:
        names = [f"x{n}" for n in range(200)]
        await start_many(store, [start_fact(name, input=name.encode()) for name in names])
        found = await asyncio.gather(*[look(store, name) for name in names])
        assert [execution.id for execution in found] == names

    async def test_a_caller_that_gives_up_harms_nobody(self, store: Store) -> None:
        commits = [asyncio.ensure_future(store.commit([start_changes(store, start_fact(f"x{n}"))])) for n in range(20)]
        await asyncio.sleep(0)
        for number in range(0, 20, 2):
            commits[number].cancel()
        answers = await asyncio.gather(*commits, return_exceptions=True)
        for number in range(1, 20, 2):
            answer = answers[number]
            assert isinstance(answer, Committed)
            assert answer.verdicts[0].applied
        assert (await start(store, "after")).id == "after"
