"""A cluster whose parts die, move and come back while work goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from outlast.errors import InvalidConfig, ReplyLost, StoreUnavailable
from outlast.limits import LOAD_MAX_KEYS
from outlast.machine.facts import HandBack
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.model.lease import Claimed
from outlast.model.record import Key
from outlast.model.status import Status
from outlast.runtime.group_commit import GroupCommit
from outlast.store.port import RESCAN, Points, Query
from outlast.store.valkey import ValkeyStore
from outlast.store.valkey.keys import Names, slot_of
from outlast.testing.conformance.actors import (
    NAMESPACE,
    claim_request,
    completes,
    decided,
    look,
    partition,
    records,
    start_changes,
    start_fact,
    steps,
)
from outlast.testing.valkey_server import ValkeyCluster, ValkeyServer
from tests.conformance.valkey_audit import leaks
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("valkey cluster")]


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(node_timeout_ms=3_000) as cluster:
        yield cluster


@asynccontextmanager
async def opened(cluster: ValkeyCluster, options: str = "", points: Points | None = None) -> AsyncIterator[ValkeyStore]:
    store = ValkeyStore(f"{cluster.url}{options}", points=points)
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def home_of(cluster: ValkeyCluster, store: ValkeyStore, execution_id: str) -> ValkeyServer:
    """The server that has an execution's partition now."""
    slot = slot_of(Names("outlast").clock(partition(store, execution_id)))
    for first, last, (_, port, *_), *_ in cluster.servers[-1].ask("CLUSTER", "SLOTS"):
        if first <= slot <= last:
            return next(server for server in cluster.servers if server.port == port)
    raise AssertionError(slot)


class Work:
    """Executions that are started, stepped and ended without a pause; what was acknowledged is remembered."""

    def __init__(self, store: ValkeyStore, name: str) -> None:
        self._store = store
        self._name = name
        self._group = GroupCommit(store)
        self.started: list[str] = []
        self.stepped: dict[str, int] = {}
        self.ended: list[str] = []
        self.handed_back: list[str] = []

    async def until(self, over: asyncio.Event) -> None:
        number = 0
        while not over.is_set():
            number += 1
            names = [f"{self._name}-{number}-{n}" for n in range(16)]
            verdicts = await asyncio.gather(
                *[self._group.commit(start_changes(self._store, start_fact(name))) for name in names]
            )
            assert all(verdict.applied for verdict in verdicts)
            self.started += names
            await self._finish()
        while await self._finish():
            pass
        await self._group.close()

    async def _finish(self) -> bool:
        """Whether there may be more: where a server is away now, or what was handed back."""
        while (claimed := await self._claim()).executions:
            for one in claimed.executions:
                held = one.execution
                for number in range(2):
                    stepping = decided(self._store, held, steps(held, f"s{number}"))
                    assert (await self._group.commit(stepping)).applied
                    self.stepped[held.id] = number + 1
                assert (await self._group.commit(decided(self._store, held, completes(held)))).applied
                self.ended.append(held.id)
        return await self._hand_back() or claimed.more

    async def _hand_back(self) -> bool:
        """As a worker does: what the store says it holds, and no claim was answered with. A claim that is asked again
        while a server is away is answered without what it took there."""
        leases = await self._store.held(self._name, frozenset(range(self._store.partitions)))
        for one in leases.held:
            held = await look(self._store, one.id)
            back = HandBack(change_id=f"back {one.id} {one.epoch}", epoch=one.epoch)
            assert (await self._group.commit(decided(self._store, held, back))).applied
            self.handed_back.append(one.id)
        return bool(leases.held or leases.unreached)

    async def _claim(self) -> Claimed:
        """As a worker does: a claim whose answer was lost is asked again under its id."""
        request = claim_request(self._name, limit=100, lease_ttl_ms=600_000)
        while True:
            try:
                return await self._store.claim(request)
            except StoreUnavailable:
                await asyncio.sleep(0.05)

    async def check(self, cluster: ValkeyCluster) -> None:
        """Nothing that was acknowledged is missing, and nothing is stuck."""
        store = self._store
        assert await store.count(Query(namespace=NAMESPACE)) == len(self.started)
        keys = [Key(Execution.KIND, (NAMESPACE, name)) for name in self.started]
        pages = [keys[begin : begin + LOAD_MAX_KEYS] for begin in range(0, len(keys), LOAD_MAX_KEYS)]
        there = [one for page in pages for one in await store.load(page)]
        assert [one for one in there if not isinstance(one, Execution) or one.status is not Status.SUCCEEDED] == []
        assert sorted(self.ended) == sorted(self.started)
        for name in self.started[::10]:
            assert len(await records(store, JournalEntry, name)) == 2
        for server in cluster.servers:
            if is_alive(server) and b"role:master" in server.ask("INFO", "replication"):
                assert leaks(server) == []


def is_alive(server: ValkeyServer) -> bool:
    try:
        return server.ask("PING") == b"PONG"
    except OSError:
        return False


async def test_a_replica_takes_over_and_nothing_that_was_acknowledged_is_lost(cluster: ValkeyCluster):
    """With appendfsync always, and WAIT for the shard's replica until it has none."""
    async with opened(cluster, "?min_replicas=1&replica_timeout=500ms") as store:
        listening = aiter(store.listen())
        assert RESCAN in await anext(listening)
        work, over = Work(store, "w"), asyncio.Event()
        working = asyncio.create_task(work.until(over))
        await asyncio.sleep(1)
        await until(lambda: work.ended, "nothing has ended", seconds=60)
        victim = home_of(cluster, store, "x")
        before = await store.now()
        victim.kill()
        # The shard has no replica left to confirm: its writes wait until the old primary is back, as its replica.
        await until(lambda: home_of(cluster, store, "x") is not victim, "no replica takes over", seconds=60)
        victim.start()
        seen = len(work.ended)
        await until(lambda: len(work.ended) >= seen + 50, "the work does not go on", seconds=60)
        over.set()
        await asyncio.wait_for(working, 60)
        assert await store.now() >= before
        await work.check(cluster)
        async with asyncio.timeout(20):
            while RESCAN not in await anext(listening):
                pass


async def test_what_a_claim_took_from_a_server_that_died_before_it_answered_is_handed_back(cluster: ValkeyCluster):
    """The claim is asked again, and the others answer: what it took on that server is held, and nobody heard of it."""
    dies: list[ValkeyServer] = []

    def die(point: str) -> None:
        if point == "claim:statement done" and dies:
            dies.pop().kill()
            raise ReplyLost("the server died before it answered")

    async with opened(cluster, "?min_replicas=1&replica_timeout=500ms", die) as store:
        work, over = Work(store, "w"), asyncio.Event()
        working = asyncio.create_task(work.until(over))
        await until(lambda: work.ended, "nothing has ended", seconds=60)
        victim = home_of(cluster, store, "x")
        dies.append(victim)
        await until(lambda: home_of(cluster, store, "x") is not victim, "no replica takes over", seconds=60)
        victim.start()
        await until(lambda: work.handed_back, "nothing is handed back", seconds=60)
        over.set()
        await asyncio.wait_for(working, 60)
        await work.check(cluster)


async def test_a_cluster_is_not_taken_for_one_server(cluster: ValkeyCluster):
    home = slot_of(Names("outlast").store) * len(cluster.primaries) // 16_384
    elsewhere = cluster.primaries[home - 1]
    with pytest.raises(InvalidConfig, match="valkey\\+cluster://"):
        await ValkeyStore(elsewhere.url).migrate()


@pytest.mark.parametrize("endpoints", ["unknown-endpoint", "hostname"])
async def test_a_cluster_need_not_tell_the_hosts_of_its_servers(endpoints: str):
    """None stands for the host that was asked, a question mark for a name that is not set."""
    options = ("--cluster-preferred-endpoint-type", endpoints)
    with ValkeyCluster(primaries=2, replicas=0, options=options) as cluster:
        async with opened(cluster) as store:
            starts = [start_changes(store, start_fact(f"x{n}")) for n in range(20)]
            assert all(verdict.applied for verdict in (await store.commit(starts)).verdicts)
            assert {store.shard(p) for p in range(16)} == {f"127.0.0.1:{server.port}" for server in cluster.primaries}
            servers = store._opened().servers
            [first, second] = await servers.primaries()
            servers._homes = {key: first if home is second else second for key, home in servers._homes.items()}
            assert await store.count(Query(namespace=NAMESPACE)) == 20, "those who were asked in vain told who has it"


async def test_a_primary_hands_over_to_its_replica_while_work_goes_on(cluster: ValkeyCluster):
    """Its connections stay open, and it answers that it has nothing any more."""
    async with opened(cluster, "?min_replicas=1&replica_timeout=500ms") as store:
        work, over = Work(store, "w"), asyncio.Event()
        working = asyncio.create_task(work.until(over))
        await asyncio.sleep(0.5)
        home = home_of(cluster, store, "x")
        replica = cluster.servers[len(cluster.primaries) + cluster.servers.index(home)]
        replica.ask("CLUSTER", "FAILOVER")
        await until(lambda: home_of(cluster, store, "x") is replica, "the replica does not take over", seconds=60)
        seen = len(work.ended)
        await until(lambda: len(work.ended) >= seen + 50, "the work does not go on", seconds=60)
        over.set()
        await asyncio.wait_for(working, 60)
        await work.check(cluster)


async def test_slots_move_while_work_goes_on(cluster: ValkeyCluster):
    async with opened(cluster) as store:
        work, over = Work(store, "w"), asyncio.Event()
        working = asyncio.create_task(work.until(over))
        await asyncio.sleep(0.5)
        for name in ("x", "y"):
            home = home_of(cluster, store, name)
            target = next(server for server in cluster.primaries if server is not home)
            slot = slot_of(Names("outlast").clock(partition(store, name)))
            home.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.ask("CLUSTER", "MYID"))
            await until(
                lambda name=name, target=target: home_of(cluster, store, name) is target,
                f"the slot of {name!r} does not move",
                seconds=60,
            )
            await asyncio.sleep(0.5)
        await until(lambda: len(work.ended) > 50, "the work does not go on", seconds=60)
        over.set()
        await asyncio.wait_for(working, 60)
        await work.check(cluster)
