"""How often the store asks the server: once per operation, whatever is in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest_asyncio
from msgspec import structs

from outlast.machine.changes import Absent, Changes, Delete, Matches, Patch, TimeAhead, started_by
from outlast.machine.decide_flow import NewFlow, NewMember, accepted
from outlast.model.flow import flow_key
from outlast.model.session import session_key
from outlast.runtime.group_commit import GroupCommit
from outlast.store.postgres import PostgresStore
from outlast.store.postgres.commit import Call
from outlast.store.postgres.doorbell import SELDOM_S
from outlast.testing.conformance import actors
from outlast.testing.conformance.doorbell import LANE_BELL, Ear, ear
from outlast.testing.conformance.transactions import Work, transact
from tests import postgres
from tests.integration.postgres.proxy import Proxy


@pytest_asyncio.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with Proxy() as proxy:
        yield proxy


@pytest_asyncio.fixture
async def store(proxy: Proxy) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(f"{proxy.url_of(await postgres.empty())}&doorbell=off&pool_size=1")
    await store.open()
    yield store
    await store.close()


async def test_a_step_of_a_lone_execution_is_one_round_trip(proxy: Proxy, store: PostgresStore):
    held = await actors.running(store)
    await actors.commit_one(store, actors.decided(store, held, actors.steps(held, "first")))
    group = GroupCommit(store)
    before = proxy.round_trips
    for number in range(10):
        assert (await group.commit(actors.decided(store, held, actors.steps(held, f"s{number}")))).applied
    assert proxy.round_trips - before == 10
    await group.close()


async def test_a_batch_of_hundreds_is_one_round_trip(proxy: Proxy, store: PostgresStore):
    await actors.start_many(store, [actors.start_fact(f"x{n}") for n in range(300)])
    claimed = (await actors.claim(store, limit=300)).executions
    held = [one.execution for one in claimed]
    before = proxy.round_trips
    batch = [
        *(actors.decided(store, one, actors.steps(one)) for one in held[:100]),
        *(actors.decided(store, one, actors.completes(one)) for one in held[100:200]),
        *(actors.decided(store, one, actors.suspends(one, waits=("event:e",))) for one in held[200:]),
        *(actors.start_changes(store, actors.start_fact(f"y{n}")) for n in range(100)),
    ]
    verdicts = await actors.commit(store, *batch)
    assert all(verdict.applied for verdict in verdicts)
    assert proxy.round_trips - before == 1


def flow_of_two(store: PostgresStore, flow_id: str) -> Changes:
    fields = {"flow": flow_id, "change_id": actors.new_id("flow")}
    first = NewMember(start=actors.start_fact(f"{flow_id}/a", **fields), name="a")
    behind = actors.start_fact(f"{flow_id}/b", after_dependencies=True, **fields)
    second = NewMember(start=behind, name="b", position=1, upstreams=(first.start.id,), needed=1)
    new = NewFlow(
        namespace=actors.NAMESPACE, id=flow_id, name="n", digest="d", members=2, change_id=fields["change_id"]
    )
    return accepted(actors.partition(store, flow_id), new, [first, second])


async def test_flows_that_start_together_share_a_round_trip_and_one_that_is_twice_there_starts_once(
    proxy: Proxy, store: PostgresStore
):
    before = proxy.round_trips
    verdicts = await actors.commit(store, *(flow_of_two(store, f"f{n}") for n in range(50)))
    assert all(verdict.applied for verdict in verdicts)
    assert proxy.round_trips - before == 1
    first, other, apart = await actors.commit(
        store, flow_of_two(store, "g"), flow_of_two(store, "g"), flow_of_two(store, "h")
    )
    assert first.applied
    assert apart.applied
    assert other.refused_by == Absent(flow_key(actors.NAMESPACE, "g"))


async def test_a_change_does_not_meet_itself_and_is_seen_by_whoever_it_meets(store: PostgresStore):
    def crossed(*batch: Changes) -> bool:
        return Call(enumerate(batch)).crossed

    gate, lives = flow_key(actors.NAMESPACE, "f"), TimeAhead(session_key(0, "w1"), "expires_at")
    asks = Changes(id="asks", partition=0, anchors=(), guards=(Matches(gate, {"state": "open"}), lives))
    stops = Changes(
        id="stops", partition=0, anchors=(gate,), guards=asks.guards, writes=(Patch(gate, {"revision": 1}),)
    )
    leaves = Changes(id="leaves", partition=0, anchors=(), guards=(lives,), writes=(Delete(lives.key),))
    assert not crossed(flow_of_two(store, "f"), flow_of_two(store, "g"))
    assert crossed(flow_of_two(store, "f"), flow_of_two(store, "f"))
    assert not crossed(stops)
    assert not crossed(asks, asks, asks)
    assert crossed(asks, stops)
    assert crossed(stops, asks)
    assert crossed(asks, asks, stops)
    assert not crossed(leaves)
    assert crossed(leaves, asks), "asked by both, and written by the first"
    assert crossed(asks, leaves)


async def test_who_touches_a_member_of_a_flow_in_the_commit_that_makes_it_comes_behind(store: PostgresStore):
    whole = flow_of_two(store, "f")
    [member, _] = started_by(whole)
    sent = actors.decided(store, structs.replace(member, created_at=1, ready_at=1), actors.sends())
    assert [verdict.applied for verdict in await actors.commit(store, whole, sent)] == [True, True]
    assert (await actors.look(store, "f/a")).inbox == 1


async def test_parallel_steps_of_one_execution_share_a_round_trip(proxy: Proxy, store: PostgresStore):
    held = await actors.running(store)
    before = proxy.round_trips
    batch = [actors.decided(store, held, actors.steps(held, f"s{number}")) for number in range(100)]
    assert all(verdict.applied for verdict in await actors.commit(store, *batch))
    assert proxy.round_trips - before == 1


async def test_events_sent_to_one_execution_share_a_round_trip_and_count_up(proxy: Proxy, store: PostgresStore):
    execution = await actors.start(store)
    batch = [actors.decided(store, execution, actors.sends(dedup=str(number))) for number in range(50)]
    before = proxy.round_trips
    verdicts = await actors.commit(store, *batch)
    assert [verdict.inbox for verdict in verdicts] == list(range(1, 51))
    assert proxy.round_trips - before == 1


async def test_a_claim_a_renewal_and_a_look_at_leases_are_one_round_trip_each(proxy: Proxy, store: PostgresStore):
    await actors.start_many(store, [actors.start_fact(f"x{n}") for n in range(50)])
    await actors.claim(store, limit=1)
    await store.renew("w1", lease_ttl_ms=1_000)
    await store.held("w1", frozenset({0, 1}))
    before = proxy.round_trips
    assert len((await actors.claim(store, limit=20)).executions) == 20
    await store.renew("w1", lease_ttl_ms=1_000)
    await store.held("w1", frozenset({0, 1}))
    assert proxy.round_trips - before == 3


async def test_a_transaction_takes_five_round_trips_beside_its_own_statements(proxy: Proxy, store: PostgresStore):
    """Two looks at the guards, BEGIN, the commit, and what is heard of it; to leave the connection as it was, none."""
    held = await actors.running(store)
    for number in range(3):
        changes = actors.decided(store, held, actors.steps(held, f"s{number}"))
        before = proxy.round_trips
        done = await transact(store, changes, Work(store, "SELECT 1", gives=changes))
        assert done.verdict is not None
        assert done.verdict.applied
    assert proxy.round_trips - before == 6
    before = proxy.round_trips
    changes = actors.decided(store, held, actors.steps(held, "raises"))
    await transact(store, changes, Work(store, "SELECT 1", gives=LookupError()))
    assert proxy.round_trips - before == 5


# ---- rings --------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def ringing(proxy: Proxy) -> AsyncIterator[tuple[PostgresStore, Ear, str]]:
    """Who rings, through the proxy and not for a while; who hears it, besides; and their database."""
    url = await postgres.empty()
    store, other = PostgresStore(f"{proxy.url_of(url)}&pool_size=1"), PostgresStore(url)
    await store.open()
    await other.open()
    listener = await ear(other)
    await started(store, "prepared")  # which takes a round trip more, once for each statement
    store.ring(frozenset({"prepared"}))
    await listener.hears("prepared")
    await asyncio.sleep(5 * SELDOM_S)
    yield store, listener, url
    await listener.subscription.close()
    await store.close()
    await other.close()


async def started(store: PostgresStore, name: str) -> None:
    """In one call."""
    assert (await actors.commit_one(store, actors.start_changes(store, actors.start_fact(name)))).applied


async def test_who_rings_seldom_rings_with_the_commit(proxy: Proxy, ringing: tuple[PostgresStore, Ear, str]):
    store, listener, _ = ringing
    for number in range(3):
        before = proxy.round_trips
        await started(store, f"x{number}")
        await listener.hears(LANE_BELL)
        await asyncio.sleep(5 * SELDOM_S)
        assert proxy.round_trips - before == 1


async def test_who_rings_often_gathers_rings(proxy: Proxy, ringing: tuple[PostgresStore, Ear, str]):
    """Commits that ring wait for each other: of two in a row, only the first one does."""
    store, listener, _ = ringing
    before = proxy.round_trips
    await started(store, "first")
    await started(store, "second")
    await asyncio.sleep(5 * SELDOM_S)
    assert proxy.round_trips - before == 3
    await listener.hears(LANE_BELL)


async def test_a_commit_does_not_wait_for_the_ring_of_another(proxy: Proxy, ringing: tuple[PostgresStore, Ear, str]):
    """Somebody else's commit rings, and is not done: this one rings behind it, by itself."""
    store, listener, url = ringing
    other = await asyncpg.connect(url)
    async with other.transaction():
        await other.execute("SELECT pg_advisory_xact_lock(hashtextextended('outlast.ring', 0))")
        before = proxy.round_trips
        await started(store, "x")
        await listener.hears(LANE_BELL)
        assert proxy.round_trips - before == 2
    await other.close()
