"""Due: what time made true, each kind in an index of its own. Not before, exactly at, oldest first, bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from outlast import limits
from outlast.errors import InvalidInput
from outlast.machine import facts
from outlast.machine.changes import Changes, Delete, Insert
from outlast.model.execution import Execution
from outlast.model.flow import Flow, FlowState, Member, Summary
from outlast.model.outbox import Delivery
from outlast.model.record import Now, Record
from outlast.model.session import Session, session_key
from outlast.runtime.engine import Engine
from outlast.store.port import EVERYTHING, OWED, DueKind, Filter, Store
from outlast.testing.conformance.actors import (
    NAMESPACE,
    TTL_MS,
    cancels,
    claim_one,
    commit_one,
    ended,
    look,
    loses_lease,
    new_id,
    partition,
    running,
    sends,
    start,
    suspends,
    tell,
)
from outlast.testing.conformance.harness import Conformance, World, refused

Arrange: TypeAlias = Callable[[Store, str, dict[str, Any]], Awaitable[None]]
"""Make one thing that is due `DUE_MS` from now, belonging to the execution of that name."""

DUE_MS = 20_000


async def _lease(store: Store, name: str, options: dict[str, Any]) -> None:
    await start(store, name, **options)
    await claim_one(store, f"worker of {name}", lease_ttl_ms=DUE_MS, namespace=options.get("namespace", NAMESPACE))


async def _timeout(store: Store, name: str, options: dict[str, Any]) -> None:
    await start(store, name, timeout_ms=DUE_MS, **options)
    await claim_one(store, "w1", namespace=options.get("namespace", NAMESPACE))


async def _deadline(store: Store, name: str, options: dict[str, Any]) -> None:
    await start(store, name, deadline_ms=DUE_MS, **options)


async def _timer(store: Store, name: str, options: dict[str, Any]) -> None:
    await start(store, name, delay_ms=DUE_MS, **options)


async def _outbox(store: Store, name: str, options: dict[str, Any]) -> None:
    await start(store, name, **options)
    home = partition(store, name, options.get("namespace", NAMESPACE))
    delivery = Delivery(
        partition=home,
        id=f"to {name}",
        namespace=options.get("namespace", NAMESPACE),
        target=name,
        fact=facts.encode_fact(sends()),
        due_at=Now(DUE_MS),
        created_at=Now(),
        change_id=new_id(),
    )
    changes = Changes(id=delivery.change_id, partition=home, anchors=(delivery.key,), writes=(Insert(delivery),))
    assert (await commit_one(store, changes)).applied


async def _retention(store: Store, name: str, options: dict[str, Any]) -> None:
    await ended(store, name, retention_ms=DUE_MS, **options)


async def _session(store: Store, name: str, options: dict[str, Any]) -> None:
    await store.renew(f"worker of {name}", lease_ttl_ms=DUE_MS)


def _record(made: Callable[[str, str], Record]) -> Arrange:
    async def arrange(store: Store, name: str, options: dict[str, Any]) -> None:
        await start(store, name, **options)
        record = made(options.get("namespace", NAMESPACE), name)
        home = partition(store, name, options.get("namespace", NAMESPACE))
        changes = Changes(id=new_id(), partition=home, anchors=(record.key,), writes=(Insert(record),))
        assert (await commit_one(store, changes)).applied

    return arrange


def _flow(namespace: str, name: str, **times: Any) -> Flow:
    return Flow(namespace=namespace, id=name, state=FlowState.OPEN, created_at=Now(), change_id=new_id(), **times)


def _summary(namespace: str, name: str, **times: Any) -> Summary:
    return Summary(namespace=namespace, id=name, change_id=new_id(), **times)


def _member(namespace: str, name: str) -> Member:
    siblings_at = Now(DUE_MS)
    return Member(namespace=namespace, execution=name, flow="f", name=name, siblings_at=siblings_at, change_id=new_id())


ARRANGE: dict[DueKind, Arrange] = {
    DueKind.LEASE: _lease,
    DueKind.TIMEOUT: _timeout,
    DueKind.DEADLINE: _deadline,
    DueKind.TIMER: _timer,
    DueKind.OUTBOX: _outbox,
    DueKind.RETENTION: _retention,
    DueKind.SESSION: _session,
    DueKind.FLOW: _record(lambda namespace, name: _flow(namespace, name, purge_at=Now(DUE_MS))),
    DueKind.CANCEL: _record(lambda namespace, name: _flow(namespace, name, cancel_at=Now(DUE_MS))),
    DueKind.SUMMARY: _record(lambda namespace, name: _summary(namespace, name, check_at=Now(DUE_MS))),
    DueKind.DEPENDENCY: _record(lambda namespace, name: _summary(namespace, name, depend_at=Now(DUE_MS))),
    DueKind.SIBLING: _record(_member),
}
OF_NAMESPACES = [kind for kind in DueKind if kind is not DueKind.SESSION]
OF_FLOWS = [DueKind.FLOW, DueKind.CANCEL, DueKind.SUMMARY, DueKind.DEPENDENCY]
OF_EXECUTIONS = [kind for kind in OF_NAMESPACES if kind not in OF_FLOWS]


def owner(record: Record) -> str:
    match record:
        case Execution():
            return record.id
        case Delivery():
            return record.target
        case Session():
            return record.worker.removeprefix("worker of ")
        case Flow() | Summary():
            return record.id
        case Member():
            return record.execution
        case _:
            raise AssertionError(record)


async def due_names(store: Store, kind: DueKind, limit: int = limits.DUE_MAX, filter: Filter = EVERYTHING) -> list[str]:
    names = [owner(item.record) for item in (await store.due(kind, limit=limit, filter=filter)).items]
    # A store of several partitions has a session per partition and worker.
    return list(dict.fromkeys(names))


class DueConformance(Conformance):
    @pytest.mark.parametrize("kind", DueKind)
    async def test_not_before_its_millisecond_and_exactly_at_it(
        self, world: World, store: Store, kind: DueKind
    ) -> None:
        await ARRANGE[kind](store, "a", {})
        at = world.clock.now_ms() + DUE_MS
        world.clock.advance((DUE_MS - 1) / 1_000)
        early = await store.due(kind, limit=10)
        assert (early.items, early.depth, early.now) == ([], 0, at - 1)
        world.clock.advance("1ms")
        found = await store.due(kind, limit=10)
        assert found.now == at
        assert {owner(item.record) for item in found.items} == {"a"}
        assert {item.due_at for item in found.items} == {at}

    @pytest.mark.parametrize("kind", DueKind)
    async def test_oldest_first(self, world: World, store: Store, kind: DueKind) -> None:
        for name in ("c", "a", "b"):
            await ARRANGE[kind](store, name, {})
            world.clock.advance("10ms")
        world.clock.advance(DUE_MS / 1_000)
        assert await due_names(store, kind) == ["c", "a", "b"]
        times = [item.due_at for item in (await store.due(kind, limit=limits.DUE_MAX)).items]
        assert times == sorted(times)

    @pytest.mark.parametrize("kind", DueKind)
    async def test_a_page_is_bounded_and_the_depth_tells_the_rest(
        self, world: World, store: Store, kind: DueKind
    ) -> None:
        for number in range(5):
            await ARRANGE[kind](store, f"x{number}", {})
            world.clock.advance("1ms")
        world.clock.advance(DUE_MS / 1_000)
        whole = await store.due(kind, limit=limits.DUE_MAX)
        assert whole.depth == len(whole.items) >= 5
        page = await store.due(kind, limit=2)
        assert page.items == whole.items[:2]
        assert page.depth == whole.depth

    @pytest.mark.parametrize("kind", sorted(OWED))
    async def test_what_is_owed_counts_before_it_is_due(self, world: World, store: Store, kind: DueKind) -> None:
        for number in range(3):
            await ARRANGE[kind](store, f"x{number}", {"namespace": "two" if number else "one"})
        for applies, owed in ((EVERYTHING, 3), (Filter(namespace="two"), 2), (Filter(namespace="nowhere"), 0)):
            early = await store.due(kind, limit=1, filter=applies)
            assert (early.depth, early.owed) == (0, owed)
        world.clock.advance(DUE_MS / 1_000)
        for applies, owed in ((EVERYTHING, 3), (Filter(namespace="two"), 2)):
            late = await store.due(kind, limit=1, filter=applies)
            assert (late.depth, late.owed) == (owed, owed)

    @pytest.mark.parametrize("kind", OF_NAMESPACES)
    async def test_filtered_by_namespace(self, world: World, store: Store, kind: DueKind) -> None:
        for namespace, name in [("one", "a"), ("two", "b")]:
            await ARRANGE[kind](store, name, {"namespace": namespace})
        world.clock.advance(DUE_MS / 1_000)
        assert await due_names(store, kind, filter=Filter(namespace="two")) == ["b"]
        assert (await store.due(kind, limit=1, filter=Filter(namespace="two"))).depth == 1
        assert sorted(await due_names(store, kind)) == ["a", "b"]

    @pytest.mark.parametrize("kind", OF_EXECUTIONS)
    async def test_filtered_by_tag(self, world: World, store: Store, kind: DueKind) -> None:
        for name, tags in [("a", {"site": "paris"}), ("b", {"site": "oslo"}), ("c", {"other": "paris"}), ("d", {})]:
            await ARRANGE[kind](store, name, {"tags": tags})
        world.clock.advance(DUE_MS / 1_000)
        assert await due_names(store, kind, filter=Filter(tag=("site", "paris"))) == ["a"]
        assert await due_names(store, kind, filter=Filter(namespace="nowhere", tag=("site", "paris"))) == []
        assert await due_names(store, kind, filter=Filter(namespace=NAMESPACE, tag=("site", "oslo"))) == ["b"]

    @pytest.mark.parametrize("kind", OF_FLOWS)
    async def test_a_flow_has_no_tags_so_no_filter_by_tag_hides_it(
        self, world: World, store: Store, kind: DueKind
    ) -> None:
        for name, tags in [("a", {"site": "paris"}), ("b", {})]:
            await ARRANGE[kind](store, name, {"tags": tags})
            world.clock.advance("1ms")
        world.clock.advance(DUE_MS / 1_000)
        assert await due_names(store, kind, filter=Filter(tag=("site", "paris"))) == ["a", "b"]

    async def test_finished_work_is_in_none_but_retention(self, world: World, store: Store) -> None:
        await ended(store, "a", deadline_ms=1_000, timeout_ms=1_000, retention_ms=1_000)
        await start(store, "b", deadline_ms=1_000, delay_ms=1_000)
        await tell(store, "b", cancels())
        world.clock.advance("365d")
        for kind in (DueKind.LEASE, DueKind.TIMEOUT, DueKind.DEADLINE, DueKind.TIMER, DueKind.OUTBOX):
            assert (await store.due(kind, limit=10)).depth == 0
        assert await due_names(store, DueKind.RETENTION) == ["a"]

    async def test_open_work_is_never_due_for_retention(self, world: World, store: Store) -> None:
        await start(store, "a", retention_ms=1)
        world.clock.advance("365d")
        assert (await store.due(DueKind.RETENTION, limit=10)).depth == 0

    async def test_a_suspended_execution_has_a_timer_but_no_lease_and_no_timeout(
        self, world: World, store: Store
    ) -> None:
        held = await running(store, timeout_ms=1_000)
        wake_at = world.clock.now_ms() + 5_000
        await tell(store, "a", suspends(held, wake_at=wake_at))
        world.clock.advance("1h")
        assert await due_names(store, DueKind.LEASE) == []
        assert await due_names(store, DueKind.TIMEOUT) == []
        [item] = (await store.due(DueKind.TIMER, limit=10)).items
        assert (item.due_at, item.record) == (wake_at, await look(store, "a"))

    async def test_a_lease_whose_session_is_gone_is_due(self, store: Store) -> None:
        held = await running(store)
        home = partition(store, "a")
        key = session_key(home, "w1")
        await commit_one(store, Changes(id=new_id(), partition=home, anchors=(key,), writes=(Delete(key),)))
        [item] = (await store.due(DueKind.LEASE, limit=10)).items
        assert item.record == held

    async def test_a_renewed_lease_is_not_due(self, world: World, store: Store) -> None:
        await running(store)
        world.clock.advance("11s")
        assert await due_names(store, DueKind.LEASE) == ["a"]
        await store.renew("w1", lease_ttl_ms=TTL_MS)
        assert await due_names(store, DueKind.LEASE) == []

    async def test_a_session_that_still_holds_leases_is_not_due(self, world: World, store: Store) -> None:
        held = await running(store, worker="worker of a")
        world.clock.advance("1h")
        assert partition(store, "a") not in [
            item.record.partition
            for item in (await store.due(DueKind.SESSION, limit=100)).items
            if isinstance(item.record, Session)
        ]
        await tell(store, "a", loses_lease(held))
        assert await due_names(store, DueKind.SESSION) == ["a"]

    async def test_a_postponed_delivery_is_due_later(self, world: World, store: Store) -> None:
        await _outbox(store, "a", {})
        world.clock.advance(DUE_MS / 1_000)
        [item] = (await store.due(DueKind.OUTBOX, limit=10)).items
        assert isinstance(item.record, Delivery)
        engine = Engine(store)
        await engine.postpone(item.record, error="no answer", delay_ms=5_000)
        assert await due_names(store, DueKind.OUTBOX) == []
        world.clock.advance("5s")
        [later] = (await store.due(DueKind.OUTBOX, limit=10)).items
        assert isinstance(later.record, Delivery)
        assert (later.record.tries, later.record.error) == (1, "no answer")
        told = await engine.deliver(later.record)
        assert told is not None
        assert told.applied
        assert await due_names(store, DueKind.OUTBOX) == []
        await engine.close()

    @pytest.mark.parametrize("limit", [0, -1, limits.DUE_MAX + 1])
    async def test_a_page_past_its_limit_is_refused(self, store: Store, limit: int) -> None:
        await refused(store.due(DueKind.TIMER, limit=limit), InvalidInput)
