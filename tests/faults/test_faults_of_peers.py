"""What users of other engines report, each as a test on PostgreSQL: none of it happens here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outlast.app import App
from outlast.model.completion import Completion
from outlast.model.lease import ClaimRequest
from outlast.model.status import Status
from outlast.store.postgres import PostgresStore
from outlast.testing import ManualClock
from outlast.testing.conformance import actors
from tests import postgres
from tests.acceptance.conftest import Place, until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def place(clock: ManualClock) -> Place:
    return Place(await postgres.empty(), clock)


@pytest.fixture
async def store(place: Place, clock: ManualClock) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(place.url, clock=clock)
    await store.open()
    yield store
    await store.close()


async def dies(app: App) -> None:
    """As a killed process: nothing is finished, handed back or told."""
    opened, app._opened = app._opened, None
    assert opened is not None
    await opened.abandon()


async def test_work_of_a_dead_process_is_taken_over_by_one_with_another_identity(place: Place):
    """Elsewhere: only a process with the same executor id recovers it, so a new host or container never does."""
    began, free = asyncio.Event(), asyncio.Event()

    def build(app: App, stops: bool) -> Any:
        @app.step
        async def first() -> str:
            return "recorded"

        @app.step
        async def second() -> str:
            began.set()
            if stops:
                await free.wait()
            return "done"

        @app.workflow(name="work")
        async def work() -> list[str]:
            return [await first(), await second()]

        return work

    dead, alive = place.app(), place.app()
    work = build(alive, stops=False)
    await dead.__aenter__()
    await build(dead, stops=True).options(id="it").start()
    await asyncio.wait_for(began.wait(), 20)
    await dies(dead)
    async with alive:
        await place.pass_time(alive, "2d")
        assert await work.execution("it").result(timeout=20) == ["recorded", "done"]
        workers = [attempt.worker for attempt in await work.execution("it").attempts()]
    assert len(set(workers)) == 2


async def test_a_rolling_deploy_strands_nothing(place: Place):
    """Elsewhere: work is pinned to a hash of all code, and what was begun before a deploy is never picked up again."""
    begun = 0

    def old(app: App) -> Any:
        @app.step
        async def charge() -> int:
            nonlocal begun
            begun += 1
            await asyncio.Event().wait()
            return 0

        @app.workflow(name="order")
        async def order(number: int) -> int:
            return number + await charge()

        return order

    def new(app: App) -> Any:
        @app.step
        async def charge() -> int:
            return 100

        @app.step
        async def thank() -> None: ...

        @app.workflow(name="order")
        async def order(number: int) -> int:
            total = number + await charge()
            await thank()  # the source is another: so is the signature
            return total

        return order

    before, after = place.app(), place.app()
    order, ordered = new(after), old(before)
    await before.__aenter__()
    await before.start_many(ordered.options(id=f"o{n}").bind(n) for n in range(10))
    await until(lambda: begun == 10, "they have not begun")
    await dies(before)
    async with after:
        await place.pass_time(after, "2d")
        assert [await order.execution(f"o{n}").result(timeout=20) for n in range(10)] == [n + 100 for n in range(10)]
        assert await after.count(status=["ready", "active", "suspended", "blocked"]) == 0


async def test_a_serial_lane_drains_after_its_holder_died(store: PostgresStore, clock: ManualClock):
    """Elsewhere: with concurrency 1 the dead holder's place is never given back, and everything behind it waits."""
    await actors.permits(store, "one-at-a-time", 1)
    for number in range(5):
        await actors.start(store, quota="one-at-a-time", **actors.member(number))
    held = await actors.claim_one(store, "dies")
    assert await actors.claimed_ids(store, "next", limit=10) == []
    clock.advance("11s")
    lost = actors.decided(store, held, actors.loses_lease(held), await store.now())
    assert (await actors.commit_one(store, lost)).applied
    done: list[str] = []
    while claimed := (await actors.claim(store, "next", limit=10)).executions:
        [one] = claimed
        done.append(one.execution.id)
        await actors.commit_one(store, actors.decided(store, one.execution, actors.completes(one.execution)))
    assert sorted(done) == [f"{actors.ROOT}/{number}" for number in range(5)]
    assert done[0] == held.id, "what was begun comes before what is new"


async def test_what_was_claimed_and_never_dispatched_is_recovered_if_the_worker_died(
    place: Place, store: PostgresStore
):
    """Elsewhere: a crash between dequeue and dispatch leaves it pending for ever."""
    app = place.app()

    @app.workflow
    async def work() -> str:
        return "done"

    async with app.client():
        await work.options(id="it").start()
    await store.claim(claim_of("ghost", "default"))
    async with app:
        assert (await app.execution("it").info()).status == "active"
        await place.pass_time(app, "2d")
        assert await app.execution("it").result(timeout=20) == "done"


async def test_what_was_claimed_and_never_dispatched_is_recovered_if_the_worker_lives():
    """The answer to a claim was lost, and the worker knows nothing of it: renewing its session tells it."""
    url = await postgres.empty()
    app, store = App(url, lease_ttl="300ms"), PostgresStore(url)
    await store.open()

    @app.workflow
    async def work() -> str:
        return "done"

    async with app:
        await work.options(id="it", lane="elsewhere").start()
        assert app._opened is not None
        assert app._opened.worker is not None
        claimed = await store.claim(claim_of(app._opened.worker.name, "elsewhere"))
        assert [one.execution.id for one in claimed.executions] == ["it"]

        async def is_free() -> bool:
            return (await app.execution("it").info()).status == "ready"

        await until(is_free, "it stays claimed")
        assert (await app.execution("it").info()).crashes == 0
    await store.close()


def claim_of(worker: str, lane: str) -> ClaimRequest:
    return ClaimRequest(
        namespace="default",
        lanes=(lane,),
        serves=frozenset({("work", "1")}),
        worker=worker,
        claim_id="lost",
        limit=10,
        lease_ttl_ms=60_000,
    )


async def test_a_zombies_late_write_is_refused(store: PostgresStore, clock: ManualClock):
    """Elsewhere: heartbeat and complete are not fenced, and a worker that was given up overwrites what came after."""
    zombie = await actors.running(store)
    clock.advance("11s")
    await actors.commit_one(store, actors.decided(store, zombie, actors.loses_lease(zombie), await store.now()))
    holder = await actors.claim_one(store, "w2")
    before = await actors.state(store, "a")
    for late in (actors.completes(zombie, b'"late"'), actors.fails(zombie), actors.steps(zombie, "late")):
        assert not (await actors.commit_one(store, actors.decided(store, zombie, late))).applied
    assert await actors.state(store, "a") == before
    assert (await actors.commit_one(store, actors.decided(store, holder, actors.completes(holder)))).applied


async def test_a_retried_complete_makes_one_completion(store: PostgresStore):
    """Elsewhere: complete whose answer was lost is repeated, and everybody downstream hears of it twice."""
    held = await actors.running(store)
    done = actors.decided(store, held, actors.completes(held))
    verdicts = [await actors.commit_one(store, done) for _ in range(3)]
    assert [(verdict.applied, verdict.again) for verdict in verdicts] == [(True, False), (True, True), (True, True)]
    other = actors.decided(store, held, actors.completes(held, b'"another"'))
    assert not (await actors.commit_one(store, other)).applied
    assert len(await actors.records(store, Completion)) == 1
    assert [one.execution for one in (await store.completions()).completions] == ["a"]
    assert (await actors.look(store, "a")).status is Status.SUCCEEDED
