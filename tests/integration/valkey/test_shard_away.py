"""One primary of three is frozen or dead: what lives on the other two goes on, and the rest when it is back."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import outlast
from outlast.app import App
from outlast.model.partition import partition_of
from outlast.store.port import RESCAN
from outlast.store.valkey import ValkeyStore, doorbell
from outlast.store.valkey.keys import Names, slot_of
from outlast.testing.conformance.actors import NAMESPACE, claim_request, start_changes, start_fact
from outlast.testing.conformance.doorbell import LANE_BELL, ear
from outlast.testing.valkey_server import DURABLE, ValkeyCluster, ValkeyServer
from tests.acceptance.conftest import until
from tests.conformance.valkey_audit import leaks

ANSWER_TIMEOUT_S = 4

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("valkey cluster"), pytest.mark.timeout(120)]


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    """Without replicas: what is away stays away until it comes back, and the others stay up."""
    options = (*DURABLE, "--cluster-require-full-coverage", "no")
    with ValkeyCluster(replicas=0, node_timeout_ms=2_000, options=options) as cluster:
        yield cluster


def patient(cluster: ValkeyCluster) -> str:
    return f"{cluster.url}?answer_timeout={ANSWER_TIMEOUT_S}s"


def server_of(cluster: ValkeyCluster, namespace: str, execution_id: str) -> ValkeyServer:
    slot = slot_of(Names("outlast").clock(partition_of(namespace, execution_id, 16)))
    return cluster.primaries[next(n for n in range(3) if slot < 16_384 * (n + 1) // 3)]


def ids_on(
    cluster: ValkeyCluster, server: ValkeyServer, mark: str, number: int, *, there: bool, of: str = "default"
) -> list[str]:
    """Ids whose executions live on the server, or on the others."""
    found: list[str] = []
    tried = 0
    while len(found) < number:
        tried += 1
        name = f"{mark}{tried}"
        if (server_of(cluster, of, name) is server) == there:
            found.append(name)
    return found


class Shop:
    def __init__(self, url: str) -> None:
        self.app = app = App(url, lease_ttl="3s")
        self.steps: dict[str, int] = {}

        @app.step
        async def mark(name: str) -> int:
            self.steps[name] = self.steps.get(name, 0) + 1
            return self.steps[name]

        @app.workflow
        async def ticks(name: str, times: int) -> int:
            for _ in range(times):
                await mark(name)
                await outlast.sleep("50ms")
            return times

        self.ticks = ticks


@asynccontextmanager
async def away(server: ValkeyServer, how: str) -> AsyncIterator[None]:
    if how == "frozen":
        os.kill(server.pid, signal.SIGSTOP)
    else:
        server.kill()
    try:
        yield
    finally:
        if how == "frozen":
            os.kill(server.pid, signal.SIGCONT)
        else:
            await asyncio.to_thread(server.start)
            await until(lambda: b"cluster_state:ok" in server.ask("CLUSTER", "INFO"), "the others know it again")


@pytest.mark.parametrize("how", ["frozen", "dead"])
async def test_what_lives_on_other_servers_goes_on(cluster: ValkeyCluster, how: str):
    victim = cluster.primaries[1]
    shop = Shop(patient(cluster))
    there = ids_on(cluster, victim, "there", 5, there=True)
    elsewhere = ids_on(cluster, victim, "elsewhere", 10, there=False)
    usual = ids_on(cluster, victim, "usual", 20, there=False)
    later = ids_on(cluster, victim, "later", 20, there=False)

    def start(name: str, times: int) -> Any:
        return shop.ticks.options(id=name).start(name, times)

    async def short_ones(names: list[str]) -> tuple[list[Any], float]:
        began_s = time.monotonic()
        handles = await asyncio.gather(*(start(name, 2) for name in names))
        async with asyncio.timeout(60):
            assert await asyncio.gather(*(handle.result() for handle in handles)) == [2] * len(names)
        return handles, time.monotonic() - began_s

    async with shop.app:
        _, usual_s = await short_ones(usual)
        long = await asyncio.gather(*(start(name, 60) for name in elsewhere))  # longer than a lease
        stalled = await asyncio.gather(*(start(name, 20) for name in there))
        await asyncio.sleep(0.5)
        async with away(victim, how):
            short, took_s = await short_ones(later)
            async with asyncio.timeout(40):
                assert await asyncio.gather(*(handle.result() for handle in long)) == [60] * len(elsewhere)
            one_more = await start(ids_on(cluster, victim, "more", 1, there=False)[0], 1)
            assert await asyncio.wait_for(one_more.result(), 20) == 1
            infos = await asyncio.gather(*(handle.info() for handle in (*long, *short)))
            assert [info.attempts for info in infos] == [1] * len(infos), "no lease was lost"
        async with asyncio.timeout(40):
            assert await asyncio.gather(*(handle.result() for handle in stalled)) == [20] * len(there)
    assert {shop.steps[name] for name in elsewhere} == {60}, "no step twice"
    assert took_s < 2 * ANSWER_TIMEOUT_S + 5 * usual_s, "nothing waits more than twice for who does not answer"
    assert [leak for server in cluster.primaries for leak in leaks(server)] == []


async def test_the_end_of_a_flow_on_another_server_is_heard_of(cluster: ValkeyCluster):
    """By a process that does not run it, and waits for a flow on the frozen server, too."""
    victim = cluster.primaries[1]
    shop, worker = Shop(patient(cluster)), Shop(patient(cluster))
    [there] = ids_on(cluster, victim, "there", 1, there=True)
    [elsewhere] = ids_on(cluster, victim, "elsewhere", 1, there=False)

    async def started(name: str) -> asyncio.Task[Any]:
        flow = shop.app.flow("ticking", id=name)
        flow.add("one", shop.ticks, name, 30)
        handle = await flow.start()
        return asyncio.create_task(handle.result())

    async with worker.app, shop.app.client():
        lost, found = await started(there), await started(elsewhere)
        await until(lambda: {there, elsewhere} <= worker.steps.keys(), "they have not begun")
        async with away(victim, "frozen"):
            assert await asyncio.wait_for(found, 45) == {"one": 30}
            assert not lost.done()
        assert await asyncio.wait_for(lost, 40) == {"one": 30}


async def test_commits_claims_and_renewals_are_answered_for_the_servers_that_are_there(cluster: ValkeyCluster):
    victim = cluster.primaries[0]
    store = ValkeyStore(patient(cluster))
    await store.migrate()
    await store.open()
    [here] = ids_on(cluster, victim, "x", 1, there=False, of=NAMESPACE)
    [lost] = ids_on(cluster, victim, "x", 1, there=True, of=NAMESPACE)
    for name in (here, lost):
        assert (await store.commit([start_changes(store, start_fact(name))])).verdicts[0].applied
    async with away(victim, "frozen"):
        began_s = time.monotonic()
        claimed = await store.claim(claim_request("w", limit=10))
        assert [one.execution.id for one in claimed.executions] == [here]
        assert claimed.more, "what is away may have some"
        renewed = await store.renew("w", lease_ttl_ms=60_000)
        assert [held.id for held in renewed.held] == [here]
        homes = {p for p in range(16) if store.shard(p) == f"127.0.0.1:{victim.port}"}
        assert renewed.unreached == homes
        leases = await store.held("w", frozenset(range(16)))
        assert ([held.id for held in leases.held], leases.unreached) == ([here], homes)
        assert await store.now() >= claimed.now
        assert time.monotonic() - began_s < 3 * ANSWER_TIMEOUT_S, "not for each of the three in turn"
        began_s = time.monotonic()
        await store.renew("w", lease_ttl_ms=60_000)
        assert time.monotonic() - began_s < ANSWER_TIMEOUT_S, "it is known to be away"

    async def all_reached() -> bool:
        return not (await store.renew("w", lease_ttl_ms=60_000)).unreached

    await until(all_reached, "it is heard again")
    assert [one.execution.id for one in (await store.claim(claim_request("w", limit=10))).executions] == [lost]
    await store.close()


async def test_a_process_that_begins_without_a_shard_hears_the_others(
    cluster: ValkeyCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(doorbell, "SEEK_S", 0.1)
    victim, heir = cluster.primaries[1], cluster.primaries[2]
    slots = 16_384 // 3, 16_384 * 2 // 3 - 1
    store = ValkeyStore(cluster.url)
    await store.migrate()
    for server in (victim, *cluster.primaries[::2]):
        server.ask("CLUSTER", "DELSLOTSRANGE", *slots)
    await store.open()

    async def starting(*, there: bool) -> None:
        for name in ids_on(cluster, victim, "x", 100, there=there, of=NAMESPACE):
            await store.commit([start_changes(store, start_fact(name))])
            await asyncio.sleep(0.05)

    with caplog.at_level(logging.WARNING):
        listener = await ear(store)
        ringing = asyncio.create_task(starting(there=False))
        await listener.hears(LANE_BELL)
        ringing.cancel()
        heir.ask("CLUSTER", "ADDSLOTSRANGE", *slots)
        await listener.hears(RESCAN)
        ringing = asyncio.create_task(starting(there=True))
        await listener.hears(LANE_BELL)
        ringing.cancel()
    heard = [record.message for record in caplog.records if record.name == doorbell.__name__]
    assert [message[:26] for message in heard] == ["4 doorbells are not heard,"]
    assert "4 partitions are empty (2, 6, 9, 12)" in caplog.text
    await store.close()


async def told(cluster: ValkeyCluster, *arguments: str) -> tuple[int | None, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "outlast", *arguments, "--json", "--url", patient(cluster)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    out, _ = await process.communicate()
    return process.returncode, json.loads(out)


def wrong(document: Any) -> list[str]:
    return [check["found"] for check in document["checks"] if check["grade"] == "wrong"]


async def test_the_doctor_says_who_is_away_and_how_the_others_are_and_no_list_is_shown_without_it(
    cluster: ValkeyCluster,
):
    victim = cluster.primaries[1]
    shop = Shop(cluster.url)
    [there] = ids_on(cluster, victim, "there", 1, there=True)
    [elsewhere] = ids_on(cluster, victim, "elsewhere", 1, there=False)
    async with shop.app.client():
        for name in (there, elsewhere):
            await shop.ticks.options(id=name).start(name, 1)
    async with away(victim, "dead"):
        code, examined = await told(cluster, "doctor")
        assert code == 1
        lost = [found for found in wrong(examined) if found.startswith(f"127.0.0.1:{victim.port} cannot be reached")]
        assert len(lost) == 1
        assert "partitions 2, 6, 9, 12 are there" in lost[0]
        others = [f"127.0.0.1:{server.port}: valkey" for server in cluster.primaries if server is not victim]
        servers = [check["found"] for check in examined["checks"] if check["grade"] == "ok"]
        assert all(any(found.startswith(other) for found in servers) for other in others)
        assert any("12 of 16 answer, with 0 to 1 executions each" in found for found in servers)
        assert any("1 execution is ready" in found for found in wrong(examined)), "what waits on the others"

        code, listed = await told(cluster, "ls")
        assert (code, listed["error"]["type"]) == (1, "StoreUnavailable")
        assert f"127.0.0.1:{victim.port}" in listed["error"]["message"]
        assert "outlast doctor" in listed["error"]["message"]

        code, shown = await told(cluster, "show", elsewhere)
        assert (code, shown["execution"]["id"]) == (0, elsewhere)
        assert (await told(cluster, "show", there))[0] == 1


async def test_the_doctor_tells_of_the_servers_also_when_the_store_cannot_be_opened(cluster: ValkeyCluster):
    slot = slot_of(Names("outlast").store)
    victim = cluster.primaries[next(n for n in range(3) if slot < 16_384 * (n + 1) // 3)]
    store = ValkeyStore(cluster.url)
    await store.migrate()
    async with away(victim, "dead"):
        code, examined = await told(cluster, "doctor")
        assert code == 1
        assert all(f"127.0.0.1:{victim.port}" in found for found in wrong(examined))
        assert [check["grade"] for check in examined["checks"] if check["name"] == "server"].count("ok") == 2
    for server in cluster.primaries:
        server.kill()
    code, examined = await told(cluster, "doctor")
    assert (code, examined["error"]["type"]) == (1, "StoreUnavailable")
