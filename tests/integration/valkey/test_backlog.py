"""A backlog over all partitions: claims go on where the last one stopped, and searches ask each for its share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec import structs

from outlast import App
from outlast.model.execution import Execution
from outlast.model.lease import Claimed, ClaimRequest
from outlast.model.status import OPEN, Status
from outlast.store.port import RESCAN, Query
from outlast.store.valkey import ValkeyStore, near
from outlast.testing.conformance.actors import NAMESPACE, WORKFLOW, claim, partition, start, start_fact, start_many
from outlast.testing.valkey_server import ValkeyServer
from tests.conformance.valkey_audit import leaks

COUNT = 400


@pytest.fixture
async def store(server: ValkeyServer) -> AsyncIterator[ValkeyStore]:
    store = ValkeyStore(server.url)
    await store.migrate()
    await store.open()
    yield store
    await store.close()
    assert not leaks(server)


@pytest.fixture
def long_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left is known for as long as a slow test lasts."""
    monkeypatch.setattr(near, "FRESH_S", 60.0)


def looks(server: ValkeyServer) -> int:
    """How often a partition was asked how much it has."""
    said = server.ask("INFO", "commandstats").decode()
    [line] = [line for line in said.splitlines() if line.startswith("cmdstat_zcard:")]
    return int(line.partition("calls=")[2].partition(",")[0])


@pytest.mark.usefixtures("long_fresh")
async def test_a_drain_takes_each_once_and_asks_only_where_it_takes(store: ValkeyStore, server: ValkeyServer):
    listener = store.listen()
    hears = aiter(listener)
    assert RESCAN in await anext(hears)
    await start_many(store, [start_fact(f"e{n}", priority=n % 3) for n in range(COUNT)])
    await anext(hears)
    waiting = {f"e{n}": n % 3 for n in range(COUNT)}
    asked = 0
    while found := (await claim(store, limit=20)).executions:
        asked = asked or looks(server)
        assert found[0].execution.priority == max(waiting.values()), "the most urgent of all goes first"
        for one in found:
            del waiting[one.execution.id]
    assert not waiting
    assert looks(server) - asked < 2 * COUNT / 20 + 3 * store.partitions
    await listener.close()


@pytest.mark.usefixtures("long_fresh")
async def test_what_another_process_starts_is_not_overtaken_once_it_has_rung(store: ValkeyStore, server: ValkeyServer):
    listener = store.listen()
    hears = aiter(listener)
    assert RESCAN in await anext(hears)
    await start_many(store, [start_fact(f"e{n}") for n in range(COUNT)])
    assert await anext(hears)
    assert len((await claim(store, limit=20)).executions) == 20
    other = ValkeyStore(server.url)
    await other.open()
    for number in range(store.partitions):
        await start(other, f"urgent{number}", priority=9)
        assert await anext(hears)
        [next_one] = (await claim(store, limit=1)).executions
        assert next_one.execution.id == f"urgent{number}"
        assert len((await claim(store, limit=3)).executions) == 3
    await other.close()
    await listener.close()


@pytest.mark.usefixtures("long_fresh")
async def test_what_this_process_starts_is_not_overtaken_also_if_nobody_reads_the_bells(store: ValkeyStore):
    listener = store.listen()
    assert RESCAN in await anext(aiter(listener))
    await start_many(store, [start_fact(f"e{n}") for n in range(COUNT)])
    for number in range(store.partitions):
        assert len((await claim(store, limit=3)).executions) == 3
        await start(store, f"urgent{number}", priority=9)
        [next_one] = (await claim(store, limit=1)).executions
        assert next_one.execution.id == f"urgent{number}"
    await listener.close()


@pytest.mark.parametrize("limit", [1, 7, 100, COUNT, COUNT + 1])
@pytest.mark.parametrize("home", [None, 3])
async def test_find_and_scan_give_what_is_first_of_all_partitions(store: ValkeyStore, limit: int, home: int | None):
    """Also if all are in one of them, or are of a workflow that few of a status are of."""
    names = [name for n in range(4_000) if home in (None, partition(store, name := f"e{n}"))][:COUNT]
    starts = [start_fact(name, workflow="rare" if n % 50 == 0 else WORKFLOW) for n, name in enumerate(names)]
    await start_many(store, starts)
    await claim(store, limit=10)
    for workflow, status in ((None, frozenset(OPEN)), ("rare", frozenset(OPEN)), (WORKFLOW, frozenset({Status.READY}))):
        query = Query(namespace=NAMESPACE, workflow=workflow, status=status, limit=limit)
        everything = (await store.find(Query(namespace=NAMESPACE, limit=1_000))).executions
        wanted = [e.id for e in everything if e.status in status and workflow in (None, e.workflow)]
        found, after = list[str](), None
        while True:
            page = await store.find(structs.replace(query, after=after))
            found += [e.id for e in page.executions]
            after = page.cursor
            if after is None:
                break
        assert found == wanted
        assert await store.count(query) == len(wanted)
    scanned, last = list[str](), None
    while page := await store.scan(Execution.KIND, (NAMESPACE,), after=last, limit=limit):
        scanned += [str(one.key.values[1]) for one in page]
        last = page[-1].key
    assert scanned == sorted(names)


async def test_a_worker_claims_by_halves_and_asks_for_the_next_before_the_code_of_the_last_has_run(
    server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
):
    room = 40
    app = App(server.url)
    running, most = 0, 0
    seen: list[int] = []
    line: list[str] = []

    @app.workflow
    async def drained(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        line.append("code")
        await asyncio.sleep(0)
        seen.append(number)
        running -= 1

    claims = ValkeyStore.claim

    async def told(self: ValkeyStore, request: ClaimRequest) -> Claimed:
        line.append("claim")
        assert request.limit <= room // 2
        return await claims(self, request)

    monkeypatch.setattr(ValkeyStore, "claim", told)
    async with app.client():
        handles = await app.start_many(drained.bind(number) for number in range(COUNT))
    async with app.worker(concurrency=room):
        await asyncio.gather(*(handle.result(timeout=30) for handle in handles))
    assert sorted(seen) == list(range(COUNT))
    assert most <= room
    assert line[:3] == ["claim", "claim", "code"]
