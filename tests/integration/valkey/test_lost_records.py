"""A server loses what it had, the store's own record too: nobody goes on with another number of partitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outlast.errors import InvalidConfig, SchemaMissing, StoreCorrupt
from outlast.store.port import Query
from outlast.store.valkey import ValkeyStore
from outlast.testing.conformance.actors import NAMESPACE, claimed_ids, look, start
from outlast.testing.valkey_server import ValkeyCluster, ValkeyServer
from tests.conformance.valkey_audit import leaks

RECORD = "{outlast}:store"


async def opened(url: str) -> ValkeyStore:
    store = ValkeyStore(url)
    await store.migrate()
    await store.open()
    return store


async def made(url: str, partitions: int, number: int) -> None:
    store = await opened(f"{url}?partitions={partitions}")
    for name in range(number):
        await start(store, f"x{name}")
    await store.close()


async def count(store: ValkeyStore) -> int:
    return await store.count(Query(namespace=NAMESPACE))


def behead(server: ValkeyServer) -> None:
    """As versions that knew no heads left a store."""
    for key in server.ask("KEYS", "*:head"):
        server.ask("DEL", key)


async def test_a_record_that_is_gone_is_written_again_as_the_partitions_say(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture
):
    await made(server.url, 40, 30)
    server.ask("DEL", RECORD)
    with pytest.raises(SchemaMissing):
        await ValkeyStore(server.url).open()
    with pytest.raises(InvalidConfig, match="created with 40"):
        await opened(f"{server.url}?partitions=8")
    assert "written again: 40 partitions" in caplog.text
    store = await opened(server.url)
    assert (store.partitions, await count(store)) == (40, 30)
    await store.close()
    assert not leaks(server)


@pytest.mark.parametrize("mine, theirs", [(40, 16), (16, 40)])
async def test_processes_with_different_numbers_never_work_side_by_side(server: ValkeyServer, mine: int, theirs: int):
    await made(server.url, mine, 1)
    store = await opened(server.url)
    server.ask("FLUSHALL")
    other = await opened(f"{server.url}?partitions={theirs}")
    for name in range(20):
        with pytest.raises(StoreCorrupt, match=f"has {theirs} partitions .* had {mine} .* Restart"):
            await start(store, f"x{name}")
        await start(other, f"x{name}")
    with pytest.raises(StoreCorrupt):
        await count(store)
    with pytest.raises(StoreCorrupt):
        await store.renew("w", lease_ttl_ms=1_000)
    assert await count(other) == 20
    await store.close()
    await other.close()
    assert not leaks(server)


async def test_who_works_on_after_all_was_lost_keeps_the_number(server: ValkeyServer, caplog: pytest.LogCaptureFixture):
    await made(server.url, 40, 1)
    store = await opened(server.url)
    server.ask("FLUSHALL")
    await start(store, "a")
    assert caplog.text.count("40 partitions are empty (0, 1, 2, 3, 4, 5, 6, 7, …)") == 1
    other = await opened(server.url)
    assert (other.partitions, (await look(other, "a")).id) == (40, "a")
    assert await claimed_ids(other) == ["a"]
    await store.close()
    await other.close()


async def test_a_store_of_before_gets_its_heads(server: ValkeyServer, caplog: pytest.LogCaptureFixture):
    await made(server.url, 40, 30)
    behead(server)
    reader = ValkeyStore(server.url)
    await reader.open()
    assert await count(reader) == 30
    assert not server.ask("KEYS", "*:head")
    await start(reader, "a")  # the first that writes
    assert len(server.ask("KEYS", "*:head")) == 40
    behead(server)
    store = await opened(server.url)
    assert len(server.ask("KEYS", "*:head")) == 40
    assert await count(store) == 31
    await reader.close()
    await store.close()


async def test_without_heads_and_record_somebody_must_say_the_number(server: ValkeyServer):
    await made(server.url, 40, 60)
    behead(server)
    server.ask("DEL", RECORD)
    for url in (server.url, f"{server.url}?partitions=8"):
        with pytest.raises(StoreCorrupt, match=r"record is gone.*\?partitions="):
            await opened(url)
    assert not server.ask("EXISTS", RECORD)
    store = await opened(f"{server.url}?partitions=40")
    assert await count(store) == 60
    await store.close()


async def test_partitions_of_several_stores_are_not_taken_for_one(server: ValkeyServer):
    await made(server.url, 40, 1)
    server.ask("SET", "{outlast:3}:head", "1 16 abc")
    with pytest.raises(StoreCorrupt, match=r"partition 3 .* of a store with 16 partitions"):
        await opened(server.url)
    server.ask("DEL", RECORD)
    with pytest.raises(StoreCorrupt, match="several stores"):
        await opened(server.url)


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(replicas=0) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.xdist_group("valkey cluster")
async def test_a_shard_is_lost_with_the_record(cluster: ValkeyCluster, caplog: pytest.LogCaptureFixture):
    await made(cluster.url, 64, 60)
    running = await opened(cluster.url)
    lost = next(server for server in cluster.primaries if server.ask("KEYS", RECORD))
    gone = sum(lost.ask("ZCARD", key) for key in lost.ask("KEYS", "*:owners:"))
    lost.ask("FLUSHALL")
    store = await opened(cluster.url)
    assert (store.partitions, await count(store)) == (64, 60 - gone)
    assert "written again: 64 partitions" in caplog.text
    for name in range(20):
        await start(store if name % 2 else running, f"y{name}")
    assert await count(running) == await count(store) == 80 - gone
    await running.close()
    await store.close()
