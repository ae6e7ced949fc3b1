"""One server that is restarted, cut off, emptied of its functions, full, or set to forget."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import uvloop

import outlast
from outlast.app import App
from outlast.errors import (
    InvalidConfig,
    InvalidInput,
    ReplyLost,
    SchemaOutdated,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from outlast.machine.changes import Add, Insert, Patch, ends_channel
from outlast.model.execution import execution_key
from outlast.model.journal import JournalEntry
from outlast.runtime.group_commit import GroupCommit
from outlast.store.port import RESCAN, DueKind, Grade, Query
from outlast.store.valkey import ValkeyStore, doorbell, servers
from outlast.store.valkey.connection import Connection
from outlast.store.valkey.health import Settings, settings
from outlast.testing.clock import ManualClock
from outlast.testing.conformance.actors import (
    NAMESPACE,
    changing,
    claimed_ids,
    commit_one,
    completes,
    decided,
    ended,
    look,
    partition,
    records,
    running,
    sends,
    start,
    start_changes,
    start_fact,
    start_many,
    steps,
)
from outlast.testing.conformance.doorbell import LANE_BELL, ear
from outlast.testing.valkey_server import DURABLE, ValkeyCluster, ValkeyServer, free_ports, stopped
from tests.conformance.valkey_audit import leaks


@pytest_asyncio.fixture
async def store(server: ValkeyServer) -> AsyncIterator[ValkeyStore]:
    store = await opened(server.url)
    yield store
    await store.close()


async def opened(url: str) -> ValkeyStore:
    store = ValkeyStore(url)
    await store.migrate()
    await store.open()
    return store


def info(server: ValkeyServer, name: str) -> int:
    lines = server.ask("INFO", "commandstats").decode().splitlines()
    found = [line for line in lines if line.startswith(f"cmdstat_{name}:")]
    return int(found[0].partition("calls=")[2].partition(",")[0]) if found else 0


# ---- what is asked of the server ----------------------------------------------------------------------------------


async def test_a_step_of_a_lone_execution_is_one_round_trip(server: ValkeyServer, store: ValkeyStore):
    held = await running(store)
    before = info(server, "fcall")
    assert (await commit_one(store, decided(store, held, steps(held)))).applied
    assert info(server, "fcall") == before + 1


async def test_a_batch_is_one_call_for_all_partitions_of_a_server(server: ValkeyServer, store: ValkeyStore):
    before = info(server, "fcall")
    await start_many(store, [start_fact(f"x{n}") for n in range(300)])
    assert info(server, "fcall") == before + 1
    assert len({partition(store, f"x{n}") for n in range(300)}) == store.partitions


async def test_a_call_that_fails_in_one_partition_has_written_to_none(server: ValkeyServer, store: ValkeyStore):
    """A function is not undone: so all of it is decided before anything is written."""
    for name in ("a", "b", "c"):
        await start(store, name)
    assert len({partition(store, name) for name in ("a", "b", "c")}) == 3
    key = execution_key(NAMESPACE, "b")
    spoilt = changing(store, "b", Patch(key, {"failures": 2**53 - 1}), Add(key, "failures", 1))
    with pytest.raises(InvalidInput):
        await store.commit(
            [decided(store, await look(store, "a"), sends()), spoilt, decided(store, await look(store, "c"), sends())]
        )
    assert [(await look(store, name)).inbox for name in ("a", "b", "c")] == [0, 0, 0]
    assert (await look(store, "b")).failures == 0


async def test_a_cluster_of_one_server_is_asked_partition_by_partition():
    """Its URL does not say what it is, and it has every slot: it refuses a call for several, and has done nothing."""
    with ValkeyCluster(primaries=1, replicas=0) as cluster:
        [server] = cluster.servers
        store = await opened(f"valkey://127.0.0.1:{server.port}")
        await start_many(store, [start_fact(f"x{n}") for n in range(100)])
        assert await store.count(Query(namespace=NAMESPACE)) == 100
        before = info(server, "fcall")
        await start_many(store, [start_fact(f"y{n}") for n in range(300)])
        assert info(server, "fcall") == before + store.partitions
        await store.close()


async def test_ends_in_several_partitions_ring_one_bell_and_leave_a_claim_behind_one_ring_alone(
    server: ValkeyServer, store: ValkeyStore
):
    listener = await ear(store)
    some = [await running(store, f"ends{number}") for number in range(6)]
    places = {partition(store, held.id) for held in some}
    assert len(places) > 1
    assert await claimed_ids(store) == []  # a look at everything: nothing is left anywhere
    before = info(server, "spublish")
    await store.commit([decided(store, held, completes(held)) for held in some])
    assert info(server, "spublish") == before + 1
    heard: set[str] = set()
    while not heard >= set(map(ends_channel, places)):
        heard |= await listener.next()
    await start(store, "rings")
    await listener.hears(LANE_BELL)
    before = info(server, "fcall")
    assert await claimed_ids(store) == ["rings"]
    assert info(server, "fcall") == before + 1
    await listener.subscription.close()


async def test_starts_in_several_partitions_are_all_found_behind_their_one_ring(
    server: ValkeyServer, store: ValkeyStore
):
    listener = await ear(store)
    assert await claimed_ids(store) == []
    await start_many(store, [start_fact(f"x{n}") for n in range(6)])
    assert len({partition(store, f"x{n}") for n in range(6)}) > 1
    await listener.hears(LANE_BELL)
    assert sorted(await claimed_ids(store, limit=10)) == [f"x{n}" for n in range(6)]
    await listener.subscription.close()


async def test_calls_made_at_once_do_not_wait_for_each_other(server: ValkeyServer, store: ValkeyStore):
    names = [f"x{n}" for n in range(100)]
    await asyncio.gather(*[store.commit([start_changes(store, start_fact(name))]) for name in names])
    assert await store.count(Query(namespace=NAMESPACE)) == 100
    assert len(server.ask("CLIENT", "LIST", "TYPE", "NORMAL").splitlines()) == 2, "ours, and the one that asks"


async def test_a_claim_behind_one_ring_is_one_call_also_if_something_ended_meanwhile(
    server: ValkeyServer, store: ValkeyStore
):
    """Ends ring too, for who waits for them: they leave nothing to claim in their partition."""
    listener = await ear(store)
    for number in range(5):
        held = await running(store, f"ends{number}")
        assert await claimed_ids(store) == []  # a look at everything: nothing is left anywhere
        assert (await commit_one(store, decided(store, held, completes(held)))).applied
        await listener.hears(ends_channel(partition(store, held.id)))
        await start(store, f"next{number}")
        await listener.hears(LANE_BELL)
        before = info(server, "fcall"), info(server, "fcall_ro")
        assert await claimed_ids(store) == [f"next{number}"]
        assert (info(server, "fcall"), info(server, "fcall_ro")) == (before[0] + 1, before[1])
    await listener.subscription.close()


def test_it_works_on_uvloop_too(server: ValkeyServer):
    async def live() -> list[str]:
        store = await opened(server.url)
        await start(store)
        listening = aiter(store.listen())
        assert RESCAN in await anext(listening)
        taken = await claimed_ids(store)
        await store.close()
        return taken

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(live()) == ["a"]


# ---- what happens to it -------------------------------------------------------------------------------------------


async def test_what_was_answered_is_there_after_a_kill(server: ValkeyServer, store: ValkeyStore):
    held = await running(store)
    for number in range(20):
        assert (await commit_one(store, decided(store, held, steps(held, f"s{number}")))).applied
    server.kill()
    server.start()
    assert len(await records(store, JournalEntry)) == 20
    assert await look(store, "a") == held
    assert leaks(server) == []


async def test_functions_that_are_gone_are_brought_back(server: ValkeyServer, store: ValkeyStore):
    await start(store)
    server.ask("FUNCTION", "FLUSH")
    assert await claimed_ids(store) == ["a"]


async def test_a_connection_that_was_cut_is_made_again(server: ValkeyServer, store: ValkeyStore):
    await start(store)
    server.ask("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
    assert (await look(store, "a")).id == "a"


async def test_a_write_whose_answer_was_cut_off_says_so_and_is_safe_to_repeat(server: ValkeyServer, store: ValkeyStore):
    held = await running(store)
    sending = decided(store, held, sends())
    with stopped(server):
        waiting = asyncio.create_task(store.commit([sending]))
        await asyncio.sleep(0.05)  # it is on its way
        parts = store._parts
        assert parts is not None
        for one in parts.servers._known.values():
            assert one._connection is not None
            one._connection.abort()
        with pytest.raises(ReplyLost):
            await waiting
    verdict = await commit_one(store, sending)
    assert (verdict.applied, verdict.inbox) == (True, 1)


async def test_a_group_commit_outlives_a_restart(server: ValkeyServer, store: ValkeyStore):
    held = await running(store)
    group = GroupCommit(store)
    server.kill()
    committing = asyncio.ensure_future(group.commit(decided(store, held, steps(held))))
    await asyncio.sleep(0.05)
    server.start()
    assert (await committing).applied
    assert len(await records(store, JournalEntry)) == 1
    await group.close()


async def test_a_server_that_does_not_answer_is_given_up(server: ValkeyServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(servers, "PATIENCE_S", 0.1)
    store = await opened(f"{server.url}?answer_timeout=1s")
    with stopped(server):
        with pytest.raises(StoreUnavailable):
            async with asyncio.timeout(20):
                await store.commit([start_changes(store, start_fact())])
    await store.close()


async def test_a_server_that_is_gone_is_unavailable(server: ValkeyServer, store: ValkeyStore, monkeypatch: Any):
    monkeypatch.setattr(servers, "PATIENCE_S", 0.1)
    server.kill()
    with pytest.raises(StoreUnavailable):
        await store.now()


async def test_looks_of_every_kind_wait_for_a_server_that_comes_back(server: ValkeyServer, monkeypatch: Any):
    """For longer than a single call is tried."""
    monkeypatch.setattr(servers, "PATIENCE_S", 0.2)
    app = App(server.url)

    @app.workflow
    async def echo(text: str) -> str:
        outlast.emit(text)
        return text

    async with app:
        handle = await echo.options(id="it").start("x")
        await handle.result(timeout=20)
    async with app.client():
        server.kill()
        looks = asyncio.gather(
            app.find(),
            app.count(),
            handle.info(),
            handle.attempts(),
            anext(app.completions()),
            anext(handle.frames()),
        )
        await asyncio.sleep(servers.PATIENCE_S * 4)
        assert not looks.done()
        server.start()
        found, count, info, attempts, completion, frame = await asyncio.wait_for(looks, 20)
        assert ([one.id for one in found], count, info.status) == (["it"], 1, "succeeded")
        assert (attempts[0].outcome, completion.execution_id, frame.value) == ("succeeded", "it", "x")
        server.kill()
        purging = asyncio.create_task(app.purge("0s"))
        await asyncio.sleep(servers.PATIENCE_S * 4)
        server.start()
        assert await asyncio.wait_for(purging, 20) == 1


async def test_after_a_cut_a_listener_looks_at_everything(server: ValkeyServer, store: ValkeyStore):
    listening = aiter(store.listen())
    async with asyncio.timeout(20):
        assert RESCAN in await anext(listening)
        store.ring(frozenset({"x"}))
        assert await anext(listening) == {"x"}
        server.ask("CLIENT", "KILL", "TYPE", "PUBSUB")
        assert RESCAN in await anext(listening)
        store.ring(frozenset({"y"}))
        assert await anext(listening) == {"y"}


async def test_a_listener_notices_a_server_that_fell_silent(
    server: ValkeyServer, store: ValkeyStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(doorbell, "PING_S", 0.05)
    given_up, abort = asyncio.Event(), Connection.abort

    def aborted(connection: Connection) -> None:
        given_up.set()
        abort(connection)

    listening = aiter(store.listen())
    async with asyncio.timeout(20):
        assert RESCAN in await anext(listening)
        again = asyncio.ensure_future(anext(listening))
        monkeypatch.setattr(Connection, "abort", aborted)
        with stopped(server):
            await given_up.wait()
        assert RESCAN in await again


@pytest.mark.parametrize("functions", ["there", "gone"])
async def test_a_name_that_leads_to_another_primary_is_followed(server: ValkeyServer, functions: str):
    """After a failover the server that was asked until now is still there, and lets nobody write."""
    with ValkeyServer() as promoted:
        await (await opened(promoted.url)).close()
        name = server.folder / "name"
        name.symlink_to(server.socket)
        store = await opened(f"valkey+unix://{name}")
        await start(store, "before")
        name.unlink()
        name.symlink_to(promoted.socket)
        if functions == "gone":
            server.ask("FUNCTION", "FLUSH")
        server.ask("REPLICAOF", "127.0.0.1", "1")
        await asyncio.gather(*(start(store, f"x{n}") for n in range(20)))
        assert await store.count(Query(namespace=NAMESPACE)) == 20
        assert len(promoted.ask("CLIENT", "LIST", "TYPE", "NORMAL").splitlines()) == 2, "ours, and the one that asks"
        await store.close()


async def test_a_reader_of_completions_misses_nothing_after_a_failover_that_lost_some(server: ValkeyServer):
    """The promoted server has received the first only; its numbers go on behind those that were lost."""
    clock = ManualClock()

    async def ending(server: ValkeyServer, *names: str) -> ValkeyStore:
        store = ValkeyStore(f"{server.url}?partitions=1", clock=clock)
        await store.migrate()
        await store.open()
        for name in names:
            await ended(store, name)
        return store

    with ValkeyServer() as promoted:
        await (await ending(promoted, "kept")).close()
        store = await ending(server, "kept", "lost1", "lost2", "lost3")
        cursor = (await store.completions()).cursor
        await store.close()
        clock.advance("1s")
        store = await ending(promoted, "new1", "new2")
        feed = await store.completions(after=cursor, limit=1)
        assert [one.execution for one in feed.completions] == ["new1"]
        feed = await store.completions(after=feed.cursor)
        assert [one.execution for one in feed.completions] == ["new2"]
        assert (await store.completions(after=feed.cursor)).completions == []
        await store.close()


async def test_a_server_that_stays_a_replica_is_said_to_be_one(server: ValkeyServer, store: ValkeyStore):
    server.ask("REPLICAOF", "127.0.0.1", "1")
    async with asyncio.timeout(servers.PATIENCE_S):
        with pytest.raises(StoreReadOnly, match="is a replica"):
            await start(store)
    server.ask("REPLICAOF", "NO", "ONE")
    await start(store)


# ---- what it is set to --------------------------------------------------------------------------------------------


async def grades(store: ValkeyStore) -> dict[str, Grade]:
    return {check.name: check.grade for check in (await store.health()).checks}


async def test_doctor_finds_a_durable_server_well(store: ValkeyStore):
    assert set((await grades(store)).values()) == {Grade.OK}


@pytest.mark.parametrize(
    "setting, value, name, grade",
    [
        ("appendonly", "no", "durability", Grade.WRONG),
        ("appendfsync", "everysec", "durability", Grade.WARNING),
        ("maxmemory-policy", "allkeys-lru", "eviction", Grade.WRONG),
    ],
)
async def test_doctor_says_what_can_be_lost(
    server: ValkeyServer, store: ValkeyStore, setting: str, value: str, name: str, grade: Grade
):
    server.ask("CONFIG", "SET", setting, value)
    assert (await grades(store))[name] is grade


async def test_doctor_says_when_replicas_are_missing_without_which_nothing_is_written(server: ValkeyServer):
    await (await opened(server.url)).close()
    store = ValkeyStore(f"{server.url}?min_replicas=1")
    await store.open()
    assert (await grades(store))["server"] is Grade.WRONG
    await store.close()
    store = await opened(server.url)
    server.ask("CONFIG", "SET", "min-replicas-to-write", "1")
    assert (await grades(store))["server"] is Grade.WRONG
    await store.close()


async def test_doctor_knows_a_replica():
    ports = free_ports(2)
    with ValkeyServer(port=ports[0], options=(*DURABLE, "--repl-diskless-sync-delay", "0")) as primary:
        await (await opened(primary.url)).close()
        with ValkeyServer(port=ports[1]) as replica:
            replica.ask("REPLICAOF", "127.0.0.1", ports[0])
            while "master_link_status:up" not in replica.ask("INFO", "replication").decode():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            store = ValkeyStore(replica.url)
            await store.open()
            assert (await grades(store))["server"] is Grade.WRONG
            await store.close()


async def test_a_server_that_is_too_old_is_told_as_such():
    with ValkeyServer(options=(*DURABLE, "--rename-command", "FUNCTION", "")) as server:
        with pytest.raises(StoreError, match="Redis 7 or newer"):
            await ValkeyStore(server.url).migrate()


@pytest.mark.parametrize("share, grade", [(1.5, Grade.OK), (1.15, Grade.WARNING), (1.01, Grade.WRONG)])
async def test_doctor_says_when_memory_runs_out(server: ValkeyServer, store: ValkeyStore, share: float, grade: Grade):
    [found] = await settings(store._opened().servers)
    assert isinstance(found, Settings)
    server.ask("CONFIG", "SET", "maxmemory", round(found.used_memory * share))
    assert (await grades(store))["memory"] is grade


async def test_opening_warns_loudly_of_a_server_that_forgets(caplog: pytest.LogCaptureFixture):
    with ValkeyServer(options=("--appendonly", "no", "--maxmemory-policy", "allkeys-lru")) as server:
        with caplog.at_level(logging.WARNING):
            await (await opened(server.url)).close()
    assert "appendonly is off" in caplog.text
    assert "throws records away" in caplog.text


async def test_opening_a_durable_server_warns_of_nothing(server: ValkeyServer, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        await (await opened(server.url)).close()
    assert caplog.text == ""


async def test_doctor_tells_what_waits_in_each_lane(store: ValkeyStore):
    first = await start(store, "a", lane="slow")
    await start_many(store, [start_fact(f"x{n}", lane="slow", priority=n) for n in range(30)])
    [lane] = (await store.health()).ready
    assert (lane.namespace, lane.lane, lane.depth, lane.oldest_at) == (NAMESPACE, "slow", 31, first.ready_at)


async def test_a_full_server_refuses_and_forgets_nothing(server: ValkeyServer, store: ValkeyStore):
    await start(store)
    server.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreFull):
        await store.commit([start_changes(store, start_fact("b"))])
    assert (await look(store, "a")).id == "a"
    server.ask("CONFIG", "SET", "maxmemory", "0")
    await start(store, "b")


async def test_a_wrong_password_is_said():
    with ValkeyServer() as server:
        server.ask("CONFIG", "SET", "requirepass", "right")
        for url in (server.url, server.url.replace("unix://", "unix://:wrong@")):
            with pytest.raises(StoreError, match="does not let us in"):
                await ValkeyStore(url).migrate()
        await (await opened(server.url.replace("unix://", "unix://:right@"))).close()


async def test_a_wrong_password_of_a_cluster_is_said_and_not_waited_for():
    with ValkeyServer(port=free_ports(1)[0], options=(*DURABLE, "--cluster-enabled", "yes")) as server:
        server.ask("CONFIG", "SET", "requirepass", "right")
        url = server.url.replace("valkey://", "valkey+cluster://:wrong@")
        with pytest.raises(StoreError, match="does not let us in") as refused:
            await ValkeyStore(url).open()
        assert not isinstance(refused.value, StoreUnavailable)


async def test_replicas_that_must_confirm_and_are_not_there_leave_the_verdict_open(server: ValkeyServer):
    plain = await opened(server.url)
    careful = ValkeyStore(f"{server.url}?min_replicas=1&replica_timeout=50ms")
    await careful.open()
    with pytest.raises(ReplyLost, match="0 of 1 replicas"):
        await careful.commit([start_changes(careful, start_fact())])
    assert await plain.load([execution_key(NAMESPACE, "a")]) != [None], "done here, but not known to last"
    await careful.close()
    await plain.close()


# ---- what is fixed when it is created -----------------------------------------------------------------------------


async def test_the_number_of_partitions_is_fixed_when_the_store_is_created(server: ValkeyServer):
    store = await opened(f"{server.url}?partitions=4")
    again = await opened(server.url)
    assert (store.partitions, again.partitions) == (4, 4)
    with pytest.raises(InvalidConfig, match="4 partitions"):
        await ValkeyStore(f"{server.url}?partitions=8").open()
    await store.close()
    await again.close()


async def test_one_server_is_not_taken_for_a_cluster():
    with ValkeyServer(port=free_ports(1)[0]) as server:
        with pytest.raises(InvalidConfig, match="no cluster"):
            await ValkeyStore(server.url.replace("valkey://", "valkey+cluster://")).open()


async def test_prefixes_keep_stores_apart(server: ValkeyServer):
    one, two = await opened(f"{server.url}?prefix=one"), await opened(f"{server.url}?prefix=two")
    await start(one)
    assert await two.count(Query(namespace=NAMESPACE)) == 0
    assert await claimed_ids(two) == []
    await one.close()
    await two.close()


async def test_data_of_another_layout_is_not_touched(server: ValkeyServer, store: ValkeyStore):
    server.ask("HSET", "{outlast}:store", "layout", "of another version")
    with pytest.raises(SchemaOutdated, match="another version"):
        await ValkeyStore(server.url).open()


async def test_a_counter_that_passes_what_scripts_can_hold_is_refused_whole(store: ValkeyStore):
    from outlast.errors import InvalidInput
    from outlast.machine.changes import Add

    await start(store)
    key = execution_key(NAMESPACE, "a")
    entry = JournalEntry(
        namespace=NAMESPACE, execution="a", generation=1, scope="", name="x", occurrence=1, op="step",
        outcome="succeeded", value=None, epoch=0, recorded_at=0, change_id="c",
    )  # fmt: skip
    changes = changing(store, "a", Insert(entry), Add(key, "inbox", 2**53 - 1), Add(key, "inbox", 1), change_id="c")
    with pytest.raises(InvalidInput, match=r"2\^53"):
        await store.commit([changes])
    assert await records(store, JournalEntry) == []


async def test_a_look_at_timers_says_when_the_next_one_is_due(store: ValkeyStore):
    assert (await store.due(DueKind.TIMER, limit=1)).next_at is None
    later = await start(store, "later", delay_ms=60_000)
    sooner = await start(store, "sooner", delay_ms=30_000)
    assert later.wake_at != sooner.wake_at
    due = await store.due(DueKind.TIMER, limit=1)
    assert due.next_at is not None
    assert 0 <= due.next_at - int(str(sooner.wake_at)) < 1_000, "by the newest clock of all partitions"


@pytest.mark.parametrize("ahead", ["another", "its own"])
async def test_a_clock_that_is_ahead_does_not_hurry_who_waits_for_the_next_timer(
    server: ValkeyServer, store: ValkeyStore, ahead: str
):
    """As after a failover from a server whose clock was ahead: its partitions stand still until their time has come."""
    await start(store, "a", delay_ms=30_000)
    home = partition(store, "a")
    clock = store._names.clock(home if ahead == "its own" else (home + 1) % store.partitions)
    server.ask("SET", clock, await store.now() + 20_000)
    due = await store.due(DueKind.TIMER, limit=1)
    assert due.next_at is not None
    assert 25_000 < due.next_at - due.now <= 30_000
