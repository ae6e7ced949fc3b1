"""The harness of the crash tests: a process that died does nothing any more when another takes over."""

from __future__ import annotations

import asyncio

import pytest

from outlast.model.execution import execution_key
from outlast.model.record import Key
from outlast.model.status import Status
from outlast.store.port import DueKind
from outlast.store.postgres import PostgresStore
from outlast.testing import Crash, CrashPoints, ManualClock
from outlast.testing.conformance import actors
from tests import postgres
from tests.acceptance.crashing import exists
from tests.integration.postgres.proxy import Proxy
from tests.waiting import until


async def dead_with_a_claim_on_its_way(proxy: Proxy, url: str, clock: ManualClock) -> None:
    """One execution is ready, and a process that asked for it is dead. What it asked is held by the proxy."""
    points = CrashPoints()
    store = PostgresStore(f"{proxy.url_of(url)}&doorbell=off&pool_size=1", clock=clock, points=points)
    await store.open()
    assert await actors.claimed_ids(store, "dead") == []  # so the server knows the statement
    await actors.start(store)
    proxy.passing.clear()
    claiming = asyncio.create_task(actors.claim(store, "dead"))
    await until(lambda: proxy.held, "the claim has not come to the proxy")
    points.crash_at("renew:begin")
    with pytest.raises(Crash):
        await store.renew("dead", lease_ttl_ms=10_000)
    await asyncio.gather(claiming, return_exceptions=True)
    await store.close()


async def lapsed(store: PostgresStore) -> list[Key]:
    return [item.record.key for item in (await store.due(DueKind.LEASE, limit=10)).items]


async def test_whether_it_began_is_known_when_the_server_has_done_what_the_dead_process_asked_for():
    clock, url = ManualClock(), await postgres.empty()
    async with Proxy() as proxy:
        await dead_with_a_claim_on_its_way(proxy, url, clock)
        looking = asyncio.create_task(exists(url, clock))
        done, _ = await asyncio.wait((looking,), timeout=0.3)
        assert not done
        proxy.passing.set()
        await looking
        store = PostgresStore(url, clock=clock)
        await store.open()
        assert (await actors.look(store, "a")).worker == "dead"
        clock.advance("11s")
        assert await lapsed(store) == [execution_key(actors.NAMESPACE, "a")]
        await store.close()


async def test_a_claim_that_the_server_comes_to_after_the_time_was_turned_holds_for_a_lease_from_then_on():
    """Why the harness waits. Where time goes on it costs one lease, and no more."""
    clock, url = ManualClock(), await postgres.empty()
    async with Proxy() as proxy:
        await dead_with_a_claim_on_its_way(proxy, url, clock)
        store = PostgresStore(url, clock=clock)
        await store.open()
        clock.advance("11s")
        await store.renew("alive", lease_ttl_ms=10_000)  # the store's time is written with what is written
        proxy.passing.set()

        async def is_claimed() -> bool:
            return (await actors.look(store, "a")).status is Status.ACTIVE

        await until(is_claimed, "the server has not come to the claim")
        assert await lapsed(store) == []
        clock.advance("11s")
        assert await lapsed(store) == [execution_key(actors.NAMESPACE, "a")]
        await store.close()
