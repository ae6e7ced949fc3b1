"""Time is the store's: it resolves relative times, carries its own in every answer, and never goes back."""

from __future__ import annotations

from outlast.machine.changes import Add, Patch, Put
from outlast.model.execution import execution_key
from outlast.model.flow import Flow, FlowState
from outlast.model.record import Now
from outlast.store.port import DueKind, Query, Store
from outlast.testing.clock import ManualClock
from outlast.testing.conformance.actors import (
    NAMESPACE,
    TTL_MS,
    changing,
    claim,
    claim_request,
    commit,
    commit_one,
    load_one,
    look,
    loses_lease,
    partition,
    running,
    session,
    start,
    start_changes,
    start_fact,
    tell,
)
from outlast.testing.conformance.harness import Conformance, World

KEY = execution_key(NAMESPACE, "a")


class Ticking(ManualClock):
    """A millisecond later, whenever somebody looks."""

    def now_ms(self) -> int:
        return self.advance("1ms")


class TimeConformance(Conformance):
    async def test_the_test_clock_is_the_stores_time(self, world: World, store: Store) -> None:
        for _ in range(3):
            assert await store.now() == world.clock.now_ms()
            world.clock.advance("1d")

    async def test_every_answer_of_a_worker_carries_the_time(self, world: World, store: Store) -> None:
        await start(store)
        for call in (
            lambda: store.commit([]),
            lambda: store.commit([changing(store, "a", Add(KEY, "inbox", 1))]),
            lambda: store.claim(claim_request()),
            lambda: store.renew("w1", lease_ttl_ms=TTL_MS),
            lambda: store.due(DueKind.TIMER, limit=10),
        ):
            world.clock.advance("1s")
            assert (await call()).now == world.clock.now_ms()

    async def test_relative_times_are_resolved_by_the_commit(self, world: World, store: Store) -> None:
        changes = start_changes(store, start_fact("a", deadline_ms=5_000))
        world.clock.advance("1h")
        await commit_one(store, changes)
        now, execution = world.clock.now_ms(), await look(store, "a")
        assert (execution.created_at, execution.ready_at, execution.deadline_at) == (now, now, now + 5_000)

    async def test_relative_times_are_resolved_in_patches_and_puts(self, world: World, store: Store) -> None:
        await start(store)
        home = partition(store, "a")
        flow = Flow(namespace=NAMESPACE, id="a", state=FlowState.OPEN, created_at=Now(-7), change_id="f")
        world.clock.advance("3s")
        await commit_one(store, changing(store, "a", Patch(KEY, {"deadline_at": Now(1_500)}), Put(flow)))
        assert (await look(store, "a")).deadline_at == world.clock.now_ms() + 1_500
        stored = await load_one(store, flow.key, Flow)
        assert stored is not None
        assert stored.created_at == world.clock.now_ms() - 7
        assert home == partition(store, "a")

    async def test_absolute_times_are_kept_as_they_are(self, store: Store) -> None:
        await start(store)
        for time in (0, 1, 2**53 + 1, None):
            await commit_one(store, changing(store, "a", Patch(KEY, {"deadline_at": time})))
            assert (await look(store, "a")).deadline_at == time

    async def test_all_changes_of_a_batch_have_one_time(self, store: Store) -> None:
        await commit(store, *[start_changes(store, start_fact(f"x{n}")) for n in range(20)])
        found = (await store.find(Query(namespace=NAMESPACE))).executions
        assert len({execution.created_at for execution in found}) == 1

    async def test_the_time_of_each_change_is_that_of_its_records(self, world: World, store: Store) -> None:
        """Wherever they live, and whatever becomes of those beside them: code is told this time now, and the recorded
        one when it is replayed."""
        await start(store, "known")
        other = await world.store(clock=Ticking(world.clock.now_ms() - 3_600_000))
        names = [f"x{n}" for n in range(20)]
        batch = [start_changes(other, start_fact(name)) for name in names]
        known, again = start_changes(other, start_fact("known")), start_changes(other, start_fact("x3"))
        committed = await other.commit([*batch, known, again])
        assert [verdict.applied for verdict in committed.verdicts] == [*[True] * 20, False, False]
        times = committed.times or [committed.now] * len(committed.verdicts)
        recorded = [(await look(other, name)).created_at for name in names]
        assert times[:20] == recorded
        assert committed.now == max(times)


class ClockConformance(Conformance):
    """A clock that is turned back is not followed."""

    async def test_by_the_store_that_saw_it(self, world: World, store: Store) -> None:
        before = (await store.commit([start_changes(store, start_fact())])).now
        world.clock.turn_back("1h")
        assert (await store.commit([])).now >= before
        assert await store.now() >= before
        assert (await store.renew("w1", lease_ttl_ms=TTL_MS)).now >= before

    async def test_by_a_store_that_only_read_the_time(self, world: World, store: Store) -> None:
        await start(store)
        world.clock.advance("1h")
        before = await store.now()
        world.clock.turn_back("30m")
        assert await store.now() >= before
        assert (await store.commit([])).now >= before

    async def test_after_reopening(self, world: World, store: Store) -> None:
        before = (await store.commit([start_changes(store, start_fact())])).now
        await store.close()
        world.clock.turn_back("1h")
        reopened = await world.store()
        assert await reopened.now() >= before
        assert (await reopened.commit([])).now >= before

    async def test_by_another_process_whose_clock_is_behind(self, world: World, store: Store) -> None:
        behind = ManualClock(world.clock.now_ms() - 3_600_000)
        before = (await store.commit([start_changes(store, start_fact())])).now
        other = await world.store(clock=behind)
        assert (await claim(other)).now >= before
        found = await session(store, "w1")
        assert found is not None
        assert found.expires_at == before + TTL_MS

    async def test_a_lease_does_not_become_young_again(self, world: World, store: Store) -> None:
        held = await running(store)
        world.clock.advance("11s")
        await store.commit([changing(store, "a", Add(KEY, "inbox", 0))])
        world.clock.turn_back("11s")
        assert (await tell(store, "a", loses_lease(held))).applied

    async def test_time_goes_on_when_the_clock_has_caught_up(self, world: World, store: Store) -> None:
        before = (await store.commit([start_changes(store, start_fact())])).now
        world.clock.turn_back("1h")
        await store.commit([])
        world.clock.advance("2h")
        assert await store.now() == before + 3_600_000
