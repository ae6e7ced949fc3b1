"""Doorbells are hints: they ring across processes, they coalesce, and losing them loses no work."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from outlast.machine import facts
from outlast.machine.changes import Matches, ends_channel, lane_channel, partition_channel
from outlast.model.execution import execution_key
from outlast.store.port import RESCAN, Store
from outlast.testing.conformance.actors import (
    LANE,
    NAMESPACE,
    cancels,
    changing,
    claim_one,
    claimed_ids,
    commit,
    commit_one,
    completes,
    decided,
    loses_lease,
    partition,
    resolves,
    running,
    sends,
    start,
    start_changes,
    start_fact,
    suspended,
    tell,
)
from outlast.testing.conformance.harness import Conformance, World

PATIENCE_S = 10.0


class Ear:
    """A subscription, and what it has heard."""

    def __init__(self, store: Store) -> None:
        self.subscription = store.listen()
        self._channels = aiter(self.subscription)

    async def next(self) -> frozenset[str]:
        return await asyncio.wait_for(anext(self._channels), PATIENCE_S)

    async def hears(self, channel: str) -> None:
        """Until it hears that channel; what is never rung runs into the time limit."""
        while channel not in await self.next():
            pass

    async def hears_nothing_before(self, store: Store, channel: str) -> None:
        """Ring a channel by hand: it must be the first thing heard."""
        store.ring(frozenset({channel}))
        assert await self.next() - {RESCAN} == {channel}


async def ear(store: Store) -> Ear:
    """Somebody who listens, and has looked at everything once."""
    listener = Ear(store)
    assert RESCAN in await listener.next()
    return listener


LANE_BELL = lane_channel(NAMESPACE, LANE)


class DoorbellConformance(Conformance):
    @pytest.fixture(autouse=True)
    def native(self, store: Store) -> None:
        if not store.capabilities.native_doorbell:
            pytest.skip("this store declares that it has no doorbell")

    async def test_the_first_thing_heard_is_to_look_at_everything(self, store: Store) -> None:
        listener = Ear(store)
        assert RESCAN in await listener.next()
        await listener.subscription.close()

    async def test_a_start_rings_its_lane_in_another_process(self, world: World, store: Store) -> None:
        listener = await ear(await world.store())
        await start(store, lane="fast")
        await listener.hears(lane_channel(NAMESPACE, "fast"))
        await listener.subscription.close()

    async def test_a_start_that_must_wait_rings_nothing(self, world: World, store: Store) -> None:
        listener = await ear(await world.store())
        await start(store, delay_ms=1_000)
        await listener.hears_nothing_before(store, "by hand")
        await listener.subscription.close()

    async def test_a_refused_change_rings_nothing(self, world: World, store: Store) -> None:
        await start(store)
        listener = await ear(await world.store())
        never = Matches(execution_key(NAMESPACE, "a"), {"epoch": 9})
        assert not (await commit_one(store, changing(store, "a", guards=[never], rings=(LANE_BELL,)))).applied
        await listener.hears_nothing_before(store, "by hand")
        await listener.subscription.close()

    async def test_whatever_makes_work_ready_rings_its_lane(self, world: World, store: Store) -> None:
        listener = await ear(await world.store())
        await suspended(store, "a")
        await tell(store, "a", sends())
        await listener.hears(LANE_BELL)
        held = await claim_one(store)
        await tell(store, "a", facts.HandBack(change_id="b", epoch=held.epoch))
        await listener.hears(LANE_BELL)
        held = await claim_one(store)
        world.clock.advance("11s")
        await tell(store, "a", loses_lease(held))
        await listener.hears(LANE_BELL)
        await tell(store, "a", facts.Hold(change_id="h"))
        await tell(store, "a", facts.Release(change_id="r"))
        await listener.hears(LANE_BELL)
        await listener.subscription.close()

    async def test_what_its_holder_ends_rings_for_those_who_wait_for_ends_there(
        self, world: World, store: Store
    ) -> None:
        held = await running(store)
        listener = await ear(await world.store())
        await commit_one(store, decided(store, held, completes(held)))
        await listener.hears(ends_channel(partition(store, "a")))
        await listener.subscription.close()

    async def test_what_somebody_else_ends_rings_home(self, world: World, store: Store) -> None:
        await suspended(store, "a")
        listener = await ear(await world.store())
        await tell(store, "a", cancels())
        await listener.hears(partition_channel(partition(store, "a")))
        await listener.subscription.close()

    async def test_an_outside_write_to_a_running_execution_rings_home(self, world: World, store: Store) -> None:
        await running(store)
        listener = await ear(await world.store())
        for fact in (sends(), resolves(), cancels(), facts.Hold(change_id="h")):
            await tell(store, "a", fact)
            await listener.hears(partition_channel(partition(store, "a")))
        await listener.subscription.close()

    async def test_a_process_hears_its_own_rings(self, store: Store) -> None:
        listener = await ear(store)
        await start(store)
        await listener.hears(LANE_BELL)
        await listener.subscription.close()

    async def test_many_listeners_each_hear(self, world: World, store: Store) -> None:
        listeners = [await ear(other) for other in await world.stores(3)]
        listeners.append(await ear(store))
        store.ring(frozenset({"x", "y"}))
        for listener in listeners:
            while not await listener.next() >= {"x", "y"}:
                pass  # somebody else who came to listen may make it look at everything
            await listener.subscription.close()

    async def test_rings_coalesce_until_somebody_looks(self, world: World, store: Store) -> None:
        listener = await ear(await world.store())
        for number in range(1_000):
            store.ring(frozenset({f"c{number % 5}"}))
        heard: set[str] = set()
        looks = 0
        while not ({f"c{n}" for n in range(5)} <= heard or RESCAN in heard):
            heard |= await listener.next()
            looks += 1
        assert looks < 1_000
        await listener.subscription.close()

    async def test_a_flood_that_drops_rings_says_rescan(self, world: World, store: Store) -> None:
        listener = await ear(await world.store())
        for number in range(5_000):
            store.ring(frozenset({f"channel-{number}"}))
        store.ring(frozenset({"last"}))
        heard: set[str] = set()
        while not ("last" in heard or RESCAN in heard):
            heard |= await listener.next()
        assert RESCAN in heard or {f"channel-{n}" for n in range(5_000)} <= heard
        await listener.subscription.close()

    async def test_ringing_when_nobody_listens_is_harmless(self, store: Store) -> None:
        store.ring(frozenset({"x"}))
        listener = await ear(store)
        await listener.subscription.close()
        store.ring(frozenset({"x"}))
        store.ring(frozenset())

    async def test_closing_ends_the_loop_of_who_listens(self, store: Store) -> None:
        listener = await ear(store)

        async def listen() -> int:
            return len([heard async for heard in listener.subscription])

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0)
        await listener.subscription.close()
        await listener.subscription.close()
        assert await asyncio.wait_for(listening, PATIENCE_S) <= 1


class DoorbellLossConformance(Conformance):
    async def test_work_is_found_by_polling_without_any_ring(self, world: World, store: Store) -> None:
        silent = [msgspec.structs.replace(start_changes(store, start_fact(f"x{n}")), rings=()) for n in range(20)]
        await commit(store, *silent)
        other = await world.store()
        assert sorted(await claimed_ids(other, limit=100)) == sorted(f"x{n}" for n in range(20))

    async def test_a_ring_for_work_that_is_gone_harms_nobody(self, store: Store) -> None:
        store.ring(frozenset({lane_channel(NAMESPACE, LANE)}))
        assert await claimed_ids(store) == []
