"""Purge: ended executions with all that belongs to them, by an age that counts from their end."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import limits
from outlast.errors import InvalidInput
from outlast.machine import facts
from outlast.machine.changes import Insert, Patch
from outlast.model.event import Event
from outlast.model.execution import execution_key
from outlast.model.flow import Edge, EdgeAnswer, Member
from outlast.model.journal import JournalEntry
from outlast.model.kinds import OF_EXECUTION
from outlast.model.outbox import Delivery
from outlast.model.record import Now
from outlast.store.port import DueKind, Filter, Query, Store
from outlast.testing.conformance.actors import (
    NAMESPACE,
    ROOT,
    TTL_MS,
    cancels,
    changing,
    claimed_ids,
    commit_one,
    completes,
    decided,
    ended,
    fails,
    look,
    new_id,
    records,
    resolves,
    running,
    same_but,
    sends,
    start,
    state,
    steps,
    suspended,
    tell,
)
from outlast.testing.conformance.harness import Conformance, World, refused


async def full_life(store: Store, id: str, **options: Any) -> None:
    """An ended execution with a record of every kind that can belong to one."""
    held = await running(store, id, tags={"site": "paris"}, **options)
    await commit_one(store, decided(store, held, steps(held)))
    await tell(store, id, sends(dedup="k"))
    await tell(store, id, resolves())
    await store.append(NAMESPACE, id, epoch=held.epoch, change_id=new_id(), frames=[b"frame"])
    edge = EdgeAnswer(
        namespace=NAMESPACE, execution=id, upstream="u", answer="satisfied", answered_at=Now(), change_id=new_id()
    )
    member = Member(namespace=NAMESPACE, execution=id, flow="f", name=id, change_id=new_id())
    dependency = Edge(namespace=NAMESPACE, execution=id, downstream="d", change_id=new_id())
    await commit_one(store, changing(store, id, Insert(edge), Insert(member), Insert(dependency)))
    await commit_one(store, decided(store, held, completes(held)))
    for kind in OF_EXECUTION:
        assert await store.scan(kind.KIND, (NAMESPACE, id)), f"{kind.KIND} is missing in this test"


async def left(store: Store) -> set[str]:
    return {execution.id for execution in (await store.find(Query(namespace=NAMESPACE, limit=1_000))).executions}


class PurgeConformance(Conformance):
    async def test_all_that_belongs_to_an_execution_goes_with_it(self, world: World, store: Store) -> None:
        await full_life(store, "a", retention_ms=1_000)
        await full_life(store, "ab", retention_ms=None)
        kept = await state(store, "ab")
        world.clock.advance("1s")
        assert await store.purge() == 1
        after = await state(store, "a")
        assert {name for name, found in after.items() if name.startswith("a ") and found} == set()
        assert await state(store, "ab") == kept
        assert [c.execution for c in (await store.completions()).completions] == ["ab"]
        assert await store.count(Query(namespace=NAMESPACE, tags={"site": "paris"})) == 1

    @pytest.mark.parametrize("offset_ms, purged", [(-1, 0), (0, 1), (1, 1)])
    async def test_retention_counts_from_the_end_to_the_millisecond(
        self, world: World, store: Store, offset_ms: int, purged: int
    ) -> None:
        held = await running(store, retention_ms=5_000)
        world.clock.advance("9s")
        await store.renew("w1", lease_ttl_ms=TTL_MS)
        await commit_one(store, decided(store, held, completes(held)))
        world.clock.advance((5_000 + offset_ms) / 1_000)
        assert await store.purge() == purged

    async def test_what_has_no_retention_stays(self, world: World, store: Store) -> None:
        await ended(store)
        world.clock.advance("3650d")
        assert await store.purge() == 0

    async def test_finished_before_takes_what_ended_before_whatever_its_retention(
        self, world: World, store: Store
    ) -> None:
        for name in ("a", "b", "c"):
            await ended(store, name, retention_ms=None if name == "a" else 10**9)
            world.clock.advance("1s")
        second = (await look(store, "b")).finished_at
        assert isinstance(second, int)
        assert await store.purge(finished_before=second) == 1
        assert await left(store) == {"b", "c"}
        assert await store.purge(finished_before=second + 1) == 1
        assert await left(store) == {"c"}

    async def test_finished_before_counts_from_the_end_of_a_long_execution(self, world: World, store: Store) -> None:
        held = await running(store)
        world.clock.advance("365d")
        begun_long_ago = world.clock.now_ms() - 1_000
        await commit_one(store, decided(store, held, completes(held)))
        assert await store.purge(finished_before=begun_long_ago) == 0
        assert await store.purge(finished_before=world.clock.now_ms() + 1) == 1

    async def test_members_of_flows_go_by_their_retention_only(self, world: World, store: Store) -> None:
        """Others of the flow may need them, however long ago they ended. Their flow says when they go."""
        await ended(store, "f/a", flow="f")
        await ended(store, "b")
        world.clock.advance("365d")
        assert await store.purge() == 0
        assert await store.purge(finished_before=world.clock.now_ms()) == 1
        assert await left(store) == {"f/a"}
        let_go = Patch(execution_key(NAMESPACE, "f/a"), {"purge_at": Now()})
        await commit_one(store, changing(store, "f/a", let_go))
        assert await store.purge(finished_before=world.clock.now_ms()) == 0
        assert await store.purge() == 1
        assert await left(store) == set()

    async def test_only_what_has_ended(self, world: World, store: Store) -> None:
        await suspended(store, "suspended", retention_ms=1)
        await running(store, "active", retention_ms=1)
        await start(store, "ready", retention_ms=1)
        await start(store, "blocked", retention_ms=1, delay_ms=1)
        before = await state(store, "suspended", "active", "ready", "blocked")
        world.clock.advance("365d")
        assert await store.purge() == 0
        assert await store.purge(finished_before=world.clock.now_ms()) == 0
        assert await state(store, "suspended", "active", "ready", "blocked") == before

    async def test_every_way_to_end_can_be_purged(self, world: World, store: Store) -> None:
        kept: dict[str, Any] = {"retention_ms": 1_000}
        await ended(store, "succeeded", **kept)
        held = await running(store, "failed", **kept)
        await commit_one(store, decided(store, held, fails(held)))
        await start(store, "cancelled", **kept)
        await tell(store, "cancelled", cancels())
        await start(store, "expired", deadline_ms=0, **kept)
        await tell(store, "expired", facts.DeadlinePassed(change_id="d"))
        await start(store, "skipped", after_dependencies=True, **kept)
        await tell(store, "skipped", facts.Skip(change_id="s"))
        world.clock.advance("1s")
        assert await store.purge() == 5

    async def test_the_journal_of_a_long_execution_outlives_the_retention_of_others(
        self, world: World, store: Store
    ) -> None:
        long = await running(store, "long", retention_ms=1_000)
        await commit_one(store, decided(store, long, steps(long, "years-ago")))
        await tell(store, "long", sends(dedup="k"))
        for _ in range(3):
            world.clock.advance("365d")
            await store.renew("w1", lease_ttl_ms=TTL_MS)
            await ended(store, "short", retention_ms=1_000)
            world.clock.advance("1s")
            assert await store.purge() == 1
        assert [e.name for e in await records(store, JournalEntry, "long")] == ["years-ago"]
        assert len(await records(store, Event, "long")) == 1
        assert (await look(store, "long")) == same_but(long, inbox=1)

    async def test_a_retry_before_the_purge_saves_it(self, world: World, store: Store) -> None:
        held = await running(store, retention_ms=1_000)
        await commit_one(store, decided(store, held, fails(held)))
        await tell(store, "a", facts.Retry(change_id="retry"))
        world.clock.advance("1d")
        assert await store.purge() == 0
        assert await store.purge(finished_before=world.clock.now_ms()) == 0

    async def test_a_call_is_bounded_and_the_next_goes_on(self, world: World, store: Store) -> None:
        for number in range(7):
            await ended(store, f"x{number}", retention_ms=1_000)
        world.clock.advance("1s")
        purged: list[int] = []
        while number := await store.purge(limit=3):
            assert number <= 3
            purged.append(number)
        assert sum(purged) == 7
        assert await left(store) == set()

    async def test_a_filter_keeps_what_is_outside_of_it(self, world: World, store: Store) -> None:
        await ended(store, "a", retention_ms=1_000, tags={"site": "paris"})
        await ended(store, "b", retention_ms=1_000, tags={"site": "oslo"})
        await ended(store, "c", retention_ms=1_000, tags={"site": "paris"}, namespace="other")
        world.clock.advance("1s")
        assert await store.purge(filter=Filter(namespace=NAMESPACE, tag=("site", "paris"))) == 1
        assert await left(store) == {"b"}
        soon = world.clock.now_ms() + 1
        assert await store.purge(finished_before=soon, filter=Filter(namespace="other")) == 1
        assert await left(store) == {"b"}
        assert await store.purge(filter=Filter(tag=("site", "paris"))) == 0
        assert await store.purge() == 1

    async def test_the_id_of_a_purged_execution_can_be_used_again(self, world: World, store: Store) -> None:
        await full_life(store, "a", retention_ms=1_000)
        world.clock.advance("1s")
        await store.purge()
        assert (await start(store, "a")).generation == 1
        assert await claimed_ids(store) == ["a"]

    async def test_what_is_owed_to_a_parent_survives_the_purge_of_the_child(self, world: World, store: Store) -> None:
        await ended(store, f"{ROOT}/child", parent=ROOT, retention_ms=1_000)
        world.clock.advance("1s")
        assert await store.purge() == 1
        [owed] = (await store.due(DueKind.OUTBOX, limit=10)).items
        assert isinstance(owed.record, Delivery)
        assert owed.record.target == ROOT

    @pytest.mark.parametrize("limit", [0, -1, limits.PURGE_MAX + 1])
    async def test_a_purge_past_its_limit_is_refused(self, store: Store, limit: int) -> None:
        await refused(store.purge(limit=limit), InvalidInput)
