"""Chaos on a cluster: workers are killed, a primary dies and its replica takes over, slots move, all at once.

With `appendfsync always` and `min_replicas` = the replicas of a shard nothing that was acknowledged is lost, nothing is
stuck and no recorded step is done again. Without them, what docs/valkey.md says can be lost is lost: shown here too.
`OUTLAST_CHAOS_SECONDS=600` makes it a long run; `OUTLAST_CHAOS_SEED` repeats the choices of one.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from outlast.app import App, store_for
from outlast.client.handle import Handle
from outlast.errors import StoreError, StoreUnavailable
from outlast.machine.changes import Patch
from outlast.model.execution import execution_key
from outlast.model.partition import partition_of
from outlast.model.record import Now
from outlast.store.valkey import ValkeyStore
from outlast.store.valkey.commit import packed
from outlast.store.valkey.keys import Names, slot_of
from outlast.testing import ManualClock
from outlast.testing.conformance.actors import NAMESPACE, changing, commit_one, start_changes, start_fact
from outlast.testing.valkey_server import ValkeyCluster, ValkeyServer, stopped
from tests import waiting
from tests.acceptance.fleet import STEPS, make_app, spawn
from tests.acceptance.test_fleet import assert_nothing_recorded_was_redone
from tests.conformance.valkey_audit import leaks
from tests.forks import Forked

SECONDS = float(os.environ.get("OUTLAST_CHAOS_SECONDS", "10"))
SEED = int(os.environ.get("OUTLAST_CHAOS_SEED", str(random.SystemRandom().randrange(2**32))))
SAFE = "?min_replicas=1&replica_timeout=500ms&answer_timeout=2s"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("valkey cluster"),
    pytest.mark.timeout(180 + 3 * SECONDS),
]


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(node_timeout_ms=1_000) as cluster:
        yield cluster


def home_of(cluster: ValkeyCluster, slot: int) -> ValkeyServer:
    """The primary of a slot, as most of those that answer see it."""
    for server in cluster.servers:
        with suppress(OSError, StoreError):
            for first, last, (_, port, *_), *_ in server.ask("CLUSTER", "SLOTS"):
                if first <= slot <= last:
                    found = next(one for one in cluster.servers if one.port == port)
                    if b"role:master" in found.ask("INFO", "replication"):
                        return found
    raise StoreError(f"nobody has slot {slot} now")


ELECTION_S = 15.0
PATIENCE_S = 60.0


def asked(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    """The same, asked of servers of which any may be away."""

    async def answer() -> bool:
        with suppress(OSError, StoreError):
            return await asyncio.to_thread(condition)
        return False

    return answer


async def comes_true(condition: Callable[[], bool], seconds: float) -> bool:
    return await waiting.comes_true(asked(condition), seconds=seconds, pause_s=0.05)


async def until(condition: Callable[[], bool], what: str) -> None:
    await waiting.until(asked(condition), what, seconds=PATIENCE_S, pause_s=0.05)


def is_replica_again(server: ValkeyServer) -> bool:
    told = server.ask("INFO", "replication").decode()
    return "role:slave" in told and "master_link_status:up" in told


class Trouble:
    """What happens to a cluster and its workers. Chosen by a seed; counted."""

    def __init__(self, cluster: ValkeyCluster, url: str, ledger: Path, choice: random.Random) -> None:
        self._cluster, self._url, self._ledger, self._choice = cluster, url, ledger, choice
        self.workers: list[Forked] = []
        self.kills, self.failovers, self.moves = 0, 0, 0

    def spawn(self) -> Forked:
        return spawn("worker", self._url, self._ledger)

    async def kill_workers(self) -> None:
        while True:
            await asyncio.sleep(1 + 2 * self._choice.random())
            number = self._choice.randrange(len(self.workers))
            assert self.workers[number].poll() is None, "a worker ended by itself"
            self.workers[number].kill()
            self.workers[number].wait()
            self.workers[number] = self.spawn()
            self.kills += 1

    async def break_servers(self) -> None:
        """A primary dies, its replica takes over, and it comes back as the replica of that one."""
        while True:
            await asyncio.sleep(1 + self._choice.random())
            slot = self._choice.randrange(16_384)
            victim = await asyncio.to_thread(home_of, self._cluster, slot)
            victim.kill()
            while not await comes_true(lambda: home_of(self._cluster, slot) is not victim, ELECTION_S):  # noqa: B023
                await asyncio.to_thread(self._call_an_election, victim)
            await asyncio.to_thread(victim.start)
            await until(lambda: is_replica_again(victim), "the old primary does not follow the new one")  # noqa: B023
            self.failovers += 1

    def _call_an_election(self, victim: ValkeyServer) -> None:
        """On a busy machine the votes of an election may come too late, and the next one is a long time off: an
        operator calls it. Without a majority of the primaries nobody takes over by that, either."""
        for server in self._cluster.servers:
            with suppress(OSError, StoreError):
                if (
                    server is not victim
                    and f"master_port:{victim.port}\r" in server.ask("INFO", "replication").decode()
                ):
                    server.ask("CLUSTER", "FAILOVER", "FORCE")
                    return

    async def move_slots(self) -> None:
        names = Names("outlast")
        while True:
            await asyncio.sleep(0.5)
            slot = slot_of(names.clock(self._choice.randrange(16)))
            with suppress(OSError, StoreError):  # not in the middle of a failover
                home = await asyncio.to_thread(home_of, self._cluster, slot)
                target = await asyncio.to_thread(home_of, self._cluster, self._choice.randrange(16_384))
                if target is not home:
                    node = target.ask("CLUSTER", "MYID")
                    home.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", node)
                    # A failover in between cancels it: then the slot stays where it is.
                    self.moves += await comes_true(lambda: home_of(self._cluster, slot) is target, 5)  # noqa: B023

    def is_enough(self) -> bool:
        return self.kills >= 2 and self.failovers >= 1 and self.moves >= 1

    def end(self) -> None:
        for process in self.workers:
            if process.poll() is None:
                process.kill()
            process.wait()


class Clocks:
    """Looks at the clock of every partition again and again: none may go back, whoever answers."""

    def __init__(self, store: ValkeyStore) -> None:
        self._store = store
        self.newest = [0] * store.partitions
        self.looks = 0

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            for partition in range(self._store.partitions):
                with suppress(StoreUnavailable):
                    await self._look(partition)

    async def _look(self, partition: int) -> None:
        servers = self._store._opened().servers
        found = (await servers.call("clock", {partition: packed((False,))}, writes=False))[partition]
        assert found >= self.newest[partition], (
            f"partition {partition} went back by {self.newest[partition] - found} ms"
        )
        self.newest[partition] = found
        self.looks += 1


@asynccontextmanager
async def running(*works) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


async def start_on(app: App, handles: list[Handle[int]], until_s: float, enough: Callable[[], bool]) -> None:
    """Waves of executions: those whose start was acknowledged are remembered; others are tried until they are. Where
    the machine is slow, until there was trouble enough."""
    ten = app.registry.newest("ten")
    while (now_s := time.monotonic()) < until_s or (not enough() and now_s < until_s + PATIENCE_S):
        for number in range(len(handles), len(handles) + 4):
            while True:
                try:
                    handles.append(await ten.options(id=f"e{number}").start(number))
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.1)
        await asyncio.sleep(0.2)


async def test_nothing_acknowledged_is_lost_and_nothing_is_stuck(cluster: ValkeyCluster, tmp_path: Path):
    print(f"OUTLAST_CHAOS_SEED={SEED}")
    url, ledger = f"{cluster.url}{SAFE}", tmp_path / "ledger"
    trouble = Trouble(cluster, url, ledger, random.Random(SEED))
    app, handles = make_app(url, str(ledger)), list[Handle[int]]()
    store = store_for(url)
    assert isinstance(store, ValkeyStore)
    await store.migrate()
    await store.open()
    clocks = Clocks(store)
    try:
        trouble.workers = [trouble.spawn() for _ in range(2)]
        async with app.client():
            async with running(clocks.watch()):
                async with running(trouble.kill_workers(), trouble.break_servers(), trouble.move_slots()):
                    await start_on(app, handles, time.monotonic() + SECONDS, trouble.is_enough)
                for server in cluster.servers:  # what was cut off in the middle of its trouble comes back
                    if server._process is not None and server._process.poll() is not None:
                        await asyncio.to_thread(server.start)
                async with asyncio.timeout(90 + SECONDS):
                    results = await asyncio.gather(*(handle.result() for handle in handles))
        assert results == [sum(range(STEPS)) + n for n in range(len(handles))]
        await assert_nothing_recorded_was_redone(url, ledger, len(handles))
    finally:
        trouble.end()
        await store.close()
    print(f"{len(handles)} executions, {trouble.kills} kills, {trouble.failovers} failovers, {trouble.moves} moves")
    assert trouble.is_enough()
    assert clocks.looks > 100
    primaries = [server for server in cluster.servers if b"role:master" in server.ask("INFO", "replication")]
    assert [leak for server in primaries for leak in leaks(server)] == []


# ---- what can be lost ---------------------------------------------------------------------------------------------


async def is_there(store: ValkeyStore) -> bool:
    return await store.load([execution_key(NAMESPACE, "x")]) != [None]


class Lost(NamedTuple):
    acknowledged: bool
    there: bool
    """Whether it is there when the replica has taken over."""


@asynccontextmanager
async def start_behind_a_deaf_replica(cluster: ValkeyCluster, options: str) -> AsyncIterator[tuple[Lost, ValkeyStore]]:
    """A start while its replica hears nothing; then the primary is lost, and comes back too late."""
    store = ValkeyStore(f"{cluster.url}{options}")
    await store.migrate()
    await store.open()
    slot = slot_of(Names("outlast").clock(partition_of(NAMESPACE, "x", store.partitions)))
    victim = home_of(cluster, slot)
    replica = cluster.servers[len(cluster.primaries) + cluster.servers.index(victim)]
    with stopped(replica):
        victim.ask("CLIENT", "KILL", "TYPE", "replica")  # what is sent now does not even reach its socket
        try:
            acknowledged = (await store.commit([start_changes(store, start_fact("x"))])).verdicts[0].applied
        except StoreUnavailable:
            acknowledged = False
        victim.kill()
    await until(lambda: home_of(cluster, slot) is replica, "the replica does not take over")
    await asyncio.to_thread(victim.start)  # with the start in its file; it follows the new primary now
    await until(lambda: is_replica_again(victim), "the old primary does not follow the new one")
    yield Lost(acknowledged, await is_there(store)), store
    await store.close()


async def test_without_wait_what_a_replica_had_not_received_is_lost_with_its_primary(cluster: ValkeyCluster):
    async with start_behind_a_deaf_replica(cluster, "") as (found, _):
        assert found == Lost(acknowledged=True, there=False), "docs/valkey.md says that this is lost"


async def test_with_wait_what_a_replica_had_not_received_was_not_acknowledged(cluster: ValkeyCluster):
    async with start_behind_a_deaf_replica(cluster, SAFE) as (found, store):
        assert found == Lost(acknowledged=False, there=False)
        again = await store.commit([start_changes(store, start_fact("x"))])
        assert again.verdicts[0].applied, "the verbatim retry does it"
        assert await is_there(store)


async def test_a_partitions_clock_does_not_go_back_over_a_failover(cluster: ValkeyCluster):
    """The new primary's own clock is an hour behind: time goes on from where the old one left it."""
    ahead, behind = ManualClock(), ManualClock()
    ahead.advance("1h")
    store = ValkeyStore(f"{cluster.url}{SAFE}", clock=ahead)
    await store.migrate()
    await store.open()
    before = (await store.commit([start_changes(store, start_fact("x"))])).now
    await store.close()
    slot = slot_of(Names("outlast").clock(partition_of(NAMESPACE, "x", 16)))
    victim = home_of(cluster, slot)
    victim.kill()
    await until(lambda: home_of(cluster, slot) is not victim, "the replica does not take over")
    again = ValkeyStore(cluster.url, clock=behind)
    await again.open()
    key = execution_key(NAMESPACE, "x")
    await commit_one(again, changing(again, "x", Patch(key, {"wake_at": Now()})))
    after = (await again.commit([])).now
    await again.close()
    assert behind.now_ms() + 3_600_000 == before
    assert after >= before


@pytest.mark.parametrize(
    "settings, survives",
    [
        (("--appendonly", "no"), False),
        (("--appendonly", "yes", "--appendfsync", "everysec"), True),
        (("--appendonly", "yes", "--appendfsync", "always"), True),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
async def test_what_a_crash_of_the_server_process_loses(settings: tuple[str, ...], survives: bool):
    with ValkeyServer(options=settings) as server:
        store = ValkeyStore(server.url)
        await store.migrate()
        await store.open()
        assert (await store.commit([start_changes(store, start_fact("x"))])).verdicts[0].applied
        await store.close()
        os.kill(server.pid, signal.SIGKILL)
        server.kill()
        server.start()
        again = ValkeyStore(server.url)
        await again.migrate()
        await again.open()
        assert await is_there(again) == survives
        await again.close()
