"""Find and count: every condition, newest first, with cursors that stay true while rows are added."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import limits
from outlast.errors import InvalidInput
from outlast.machine.changes import Insert
from outlast.model.flow import Flow, FlowState
from outlast.model.record import settled
from outlast.model.status import Status
from outlast.store.port import Query, Store, cursor_of
from outlast.testing.conformance.actors import (
    LANE,
    NAMESPACE,
    WORKFLOW,
    changing,
    commit_one,
    completes,
    decided,
    ended,
    partition,
    put,
    running,
    same_but,
    start,
    start_fact,
    start_many,
    tell,
)
from outlast.testing.conformance.harness import Conformance, World, refused
from outlast.testing.conformance.samples import ready_execution

PEOPLE: dict[str, dict[str, Any]] = {
    "order-1": {"tags": {"site": "paris", "size": "xl"}},
    "order-2": {"tags": {"site": "oslo"}, "lane": "fast"},
    "order-10": {"tags": {"site": "paris"}, "workflow": "refund"},
    "cart-1": {"delay_ms": 60_000},
    "cart-2": {"workflow": "refund", "lane": "fast", "tags": {"size": "xl"}},
}


async def populate(world: World, store: Store) -> None:
    """One a second, so that `created_at` tells them apart; and one of another namespace."""
    for name, options in PEOPLE.items():
        await start(store, name, **options)
        world.clock.advance("1s")
    await start(store, "order-1", namespace="other", tags={"site": "paris"})


async def found(store: Store, **conditions: Any) -> list[str]:
    """The ids that a query finds, and that `count` agrees."""
    query = Query(namespace=NAMESPACE, **conditions)
    ids = [execution.id for execution in (await store.find(query)).executions]
    assert await store.count(query) == len(ids)
    return ids


class FindConformance(Conformance):
    async def test_members_of_a_flow_are_listed_once_it_is_staged_completely(self, store: Store) -> None:
        flow = Flow(namespace=NAMESPACE, id="f", state=FlowState.STAGING, staged_at=0, created_at=0, change_id="f")
        await put(store, partition(store, "f"), flow)
        await start(store, "f/a", flow="f", tags={"site": "paris"})
        await start(store, "b", tags={"site": "paris"})
        for conditions in ({}, {"tags": {"site": "paris"}}, {"status": frozenset({Status.READY})}, {"id_prefix": ""}):
            assert await found(store, **conditions) == ["b"]
        assert await found(store, id_prefix="f") == []
        await put(store, partition(store, "f"), same_but(flow, state=FlowState.OPEN, staged_at=None))
        assert sorted(await found(store)) == ["b", "f/a"]
        assert sorted(await found(store, tags={"site": "paris"})) == ["b", "f/a"]

    async def test_without_conditions_all_of_the_namespace_newest_first(self, world: World, store: Store) -> None:
        await populate(world, store)
        assert await found(store) == list(PEOPLE)[::-1]
        assert await store.count(Query(namespace="other")) == 1
        assert await store.count(Query(namespace="nowhere")) == 0

    @pytest.mark.parametrize(
        "conditions, expected",
        [
            ({"status": frozenset({Status.READY})}, ["cart-2", "order-10", "order-2", "order-1"]),
            ({"status": frozenset({Status.BLOCKED, Status.FAILED})}, ["cart-1"]),
            ({"status": frozenset({Status.FAILED})}, []),
            ({"workflow": "refund"}, ["cart-2", "order-10"]),
            ({"lane": "fast"}, ["cart-2", "order-2"]),
            ({"tags": {"site": "paris"}}, ["order-10", "order-1"]),
            ({"tags": {"site": "paris", "size": "xl"}}, ["order-1"]),
            ({"tags": {"site": "xl"}}, []),
            ({"id_prefix": "order-1"}, ["order-10", "order-1"]),
            ({"id_prefix": "cart"}, ["cart-2", "cart-1"]),
            ({"id_prefix": ""}, list(PEOPLE)[::-1]),
            ({"id_prefix": "%"}, []),
            ({"workflow": "refund", "lane": "fast"}, ["cart-2"]),
            ({"reason": "delay"}, ["cart-1"]),
            ({"workflow": "refund", "tags": {"site": "paris"}, "id_prefix": "order"}, ["order-10"]),
            ({"status": frozenset({Status.READY}), "workflow": WORKFLOW, "lane": LANE}, ["order-1"]),
        ],
        ids=range(16),
    )
    async def test_all_conditions_must_hold(
        self, world: World, store: Store, conditions: dict[str, Any], expected: list[str]
    ) -> None:
        await populate(world, store)
        assert await found(store, **conditions) == expected

    async def test_created_from_includes_its_millisecond_and_created_before_does_not(
        self, world: World, store: Store
    ) -> None:
        begin = world.clock.now_ms()
        await populate(world, store)
        second, third = begin + 1_000, begin + 2_000
        assert await found(store, created_from=third) == ["cart-2", "cart-1", "order-10"]
        assert await found(store, created_before=third) == ["order-2", "order-1"]
        assert await found(store, created_from=second, created_before=third) == ["order-2"]
        assert await found(store, created_from=second + 1, created_before=third) == []

    async def test_a_status_follows_the_execution(self, store: Store) -> None:
        held = await running(store)
        assert await found(store, status=frozenset({Status.ACTIVE})) == ["a"]
        await commit_one(store, decided(store, held, completes(held)))
        assert await found(store, status=frozenset({Status.ACTIVE})) == []
        assert await found(store, status=frozenset({Status.SUCCEEDED, Status.FAILED})) == ["a"]

    async def test_tags_of_a_restart_replace_the_old_ones(self, store: Store) -> None:
        await ended(store, tags={"old": "1", "both": "1"})
        await tell(store, "a", start_fact("a", if_exists="restart", tags={"both": "2", "new": "1"}))
        assert await found(store, tags={"new": "1", "both": "2"}) == ["a"]
        assert await found(store, tags={"old": "1"}) == []
        assert await found(store, tags={"both": "1"}) == []

    async def test_values_are_data_not_language(self, store: Store) -> None:
        odd = "x' OR '1'='1 -- \" % _ * ? [a] \\ \x7f日本"[:60].replace("\x7f", "")
        await start(store, "odd", tags={"t": odd})
        await start(store, "plain", tags={"t": "x"})
        assert await found(store, tags={"t": odd}) == ["odd"]
        assert await found(store, workflow="' OR 1=1 --") == []

    @pytest.mark.parametrize("last", ["\U0010ffff", "\ud7ff", "\x7f", "é", "z"])
    async def test_a_prefix_may_end_in_any_character(self, store: Store, last: str) -> None:
        await start(store, "plain")
        execution = same_but(ready_execution(), id=f"p{last}q")
        await commit_one(store, changing(store, f"p{last}q", Insert(execution)))
        assert await found(store, id_prefix=f"p{last}") == [f"p{last}q"]


class FindPagingConformance(Conformance):
    async def pages(self, store: Store, limit: int, **conditions: Any) -> list[str]:
        ids: list[str] = []
        cursor: str | None = None
        while True:
            page = await store.find(Query(namespace=NAMESPACE, limit=limit, after=cursor, **conditions))
            assert len(page.executions) <= limit
            ids += [execution.id for execution in page.executions]
            if page.cursor is None:
                return ids
            cursor = page.cursor

    @pytest.mark.parametrize("limit", [1, 7, 100])
    async def test_pages_join_without_gap_or_repetition(self, world: World, store: Store, limit: int) -> None:
        for number in range(5):
            # Several of the same millisecond: the id decides.
            await start_many(store, [start_fact(f"x{number}-{n}") for n in range(4)])
            world.clock.advance("1ms")
        whole = [e.id for e in (await store.find(Query(namespace=NAMESPACE))).executions]
        assert whole == sorted(whole, reverse=True)
        assert await self.pages(store, limit) == whole

    async def test_the_cursor_of_a_page_is_that_of_its_last_execution(self, store: Store) -> None:
        await start_many(store, [start_fact(f"x{n}") for n in range(3)])
        page = await store.find(Query(namespace=NAMESPACE, limit=2))
        last = page.executions[-1]
        assert page.cursor == cursor_of(settled(last.created_at) or 0, last.id)

    async def test_a_cursor_stays_true_while_rows_are_added(self, world: World, store: Store) -> None:
        for number in range(10):
            await start(store, f"old-{number}")
            world.clock.advance("1ms")
        first = await store.find(Query(namespace=NAMESPACE, limit=4))
        for number in range(10):
            await start(store, f"new-{number}")
            world.clock.advance("1ms")
        rest = await store.find(Query(namespace=NAMESPACE, limit=100, after=first.cursor))
        ids = [e.id for e in (*first.executions, *rest.executions)]
        assert ids == [f"old-{number}" for number in range(9, -1, -1)]

    async def test_a_cursor_stays_true_when_its_row_is_purged(self, world: World, store: Store) -> None:
        for number in range(6):
            await ended(store, f"x{number}", retention_ms=10_000 if number == 3 else None)
            world.clock.advance("1ms")
        first = await store.find(Query(namespace=NAMESPACE, limit=3))
        assert first.executions[-1].id == "x3"
        world.clock.advance("11s")
        assert await store.purge() == 1
        rest = await store.find(Query(namespace=NAMESPACE, after=first.cursor))
        assert [e.id for e in rest.executions] == ["x2", "x1", "x0"]

    async def test_pages_of_a_filtered_query_join_too(self, world: World, store: Store) -> None:
        for number in range(20):
            await start(store, f"x{number:02}", tags={"odd": str(number % 2)}, workflow=f"w{number % 4 // 2}")
            world.clock.advance("1ms")
        expected = [f"x{n:02}" for n in range(19, -1, -1) if n % 2 and n % 4 // 2]
        assert await self.pages(store, 2, tags={"odd": "1"}, workflow="w1") == expected

    @pytest.mark.parametrize(
        "cursor", ["", ":", "x", "12", "x:y", "-1:a", "²:a", f"{'9' * 40}:a", "1.5:a", " 1:a"], ids=repr
    )
    async def test_what_is_no_cursor_is_refused(self, store: Store, cursor: str) -> None:
        await refused(store.find(Query(namespace=NAMESPACE, after=cursor)), InvalidInput)

    @pytest.mark.parametrize("limit", [0, -1, limits.FIND_MAX + 1])
    async def test_a_page_past_its_limit_is_refused(self, store: Store, limit: int) -> None:
        await refused(store.find(Query(namespace=NAMESPACE, limit=limit)), InvalidInput)
