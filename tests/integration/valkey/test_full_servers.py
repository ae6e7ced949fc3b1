"""A server that takes no more writes: who was heard before it said so, who was not, and what makes room again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from outlast.app import App
from outlast.errors import FlowNotFound, ReplyLost, StoreFull, StoreReadOnly
from outlast.machine.changes import Changes
from outlast.model.execution import execution_key
from outlast.runtime.group_commit import GroupCommit
from outlast.store.port import CommittedInPart, Verdict
from outlast.store.valkey import ValkeyStore
from outlast.store.valkey import store as store_module
from outlast.testing.conformance.actors import NAMESPACE, decided, ended, running, sends, start_changes, start_fact
from outlast.testing.valkey_server import ValkeyServer
from tests.conformance.valkey_audit import leaks

LARGE = b"y" * 100_000


@pytest_asyncio.fixture
async def store(server: ValkeyServer) -> AsyncIterator[ValkeyStore]:
    store = ValkeyStore(server.url)
    await store.migrate()
    await store.open()
    yield store
    await store.close()


def fill(server: ValkeyServer, *, left: int = 0) -> None:
    lines = server.ask("INFO", "memory").decode().splitlines()
    [used] = [int(line.partition(":")[2]) for line in lines if line.startswith("used_memory:")]
    server.ask("CONFIG", "SET", "maxmemory", str(used + left))


def large_starts(store: ValkeyStore, number: int = 40) -> list[Changes]:
    return [start_changes(store, start_fact(f"x{n}", input=LARGE)) for n in range(number)]


async def there(store: ValkeyStore, number: int = 40) -> list[bool]:
    found = await store.load([execution_key(NAMESPACE, f"x{n}") for n in range(number)])
    return [record is not None for record in found]


async def test_memory_that_ends_in_the_middle_of_a_batch_fails_only_what_was_not_written(
    server: ValkeyServer, store: ValkeyStore, monkeypatch: pytest.MonkeyPatch
):
    """As in a cluster, where each partition has a call of its own."""
    monkeypatch.setattr(store_module, "PARTITIONS_TOGETHER", 1)
    fill(server, left=1_500_000)
    with pytest.raises(CommittedInPart, match="no memory left") as part:
        await store.commit(large_starts(store))
    told = [isinstance(outcome, Verdict) and outcome.applied for outcome in part.value.outcomes]
    assert told == await there(store)
    assert {type(outcome) for outcome in part.value.outcomes} == {Verdict, StoreFull}


async def test_who_shares_a_commit_that_runs_out_of_memory_is_told_the_truth(server: ValkeyServer, store: ValkeyStore):
    fill(server, left=1_500_000)
    group = GroupCommit(store)
    told = await asyncio.gather(*map(group.commit, large_starts(store)), return_exceptions=True)
    assert [isinstance(answer, Verdict) and answer.applied for answer in told] == await there(store)
    assert {type(answer) for answer in told} == {Verdict, StoreFull}
    await group.close()


async def test_a_full_server_knows_a_change_that_it_applied_before(server: ValkeyServer, store: ValkeyStore):
    held = await running(store)
    starting, sending = start_changes(store, start_fact("b")), decided(store, held, sends())
    await store.commit([starting, sending])
    fill(server)
    again = await store.commit([starting, sending])
    assert [verdict.again for verdict in again.verdicts] == [True, True]
    assert again.verdicts[1].inbox == 1
    assert again.now > 0
    with pytest.raises(StoreFull):
        await store.commit([start_changes(store, start_fact("c"))])


async def test_a_full_server_does_not_speak_for_its_replicas(server: ValkeyServer, store: ValkeyStore):
    starting = start_changes(store, start_fact())
    await store.commit([starting])
    fill(server)
    careful = ValkeyStore(f"{server.url}?min_replicas=1&replica_timeout=50ms")
    await careful.open()
    with pytest.raises(ReplyLost):
        await careful.commit([starting])
    await careful.close()


async def test_a_primary_that_became_a_replica_leaves_open_what_it_applied_before(
    server: ValkeyServer, store: ValkeyStore
):
    starting = start_changes(store, start_fact())
    await store.commit([starting])
    server.ask("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(ReplyLost):
        await store.commit([starting])
    with pytest.raises(StoreReadOnly):
        await store.commit([start_changes(store, start_fact("b"))])


async def test_a_full_server_lets_what_has_ended_go(server: ValkeyServer, store: ValkeyStore):
    for n in range(3):
        await ended(store, f"x{n}")
    fill(server, left=-1)
    with pytest.raises(StoreFull):
        await store.commit([start_changes(store, start_fact("b"))])
    assert await store.purge(finished_before=await store.now() + 1) == 3
    assert not any(await there(store, 3))
    assert leaks(server) == []


async def test_a_full_server_lets_flows_that_have_ended_go(server: ValkeyServer):
    app = App(server.url)

    @app.workflow
    async def member() -> int:
        return 1

    flow = app.flow("pair", id="f")
    flow.add("a", member)
    flow.add("b", member)
    async with app:
        assert await (await flow.start()).result() == {"a": 1, "b": 1}
        await asyncio.sleep(0.01)
    async with app.client():
        fill(server, left=-1)
        assert await app.purge(older_than="1ms") == 2
        with pytest.raises(FlowNotFound):
            await app.flow_handle("f").status()


async def test_a_full_server_renews_the_leases_of_those_who_work(server: ValkeyServer, store: ValkeyStore):
    await running(store, worker="w1")
    fill(server, left=-1)
    renewed = await store.renew("w1", lease_ttl_ms=60_000)
    assert [one.id for one in renewed.held] == ["a"]
