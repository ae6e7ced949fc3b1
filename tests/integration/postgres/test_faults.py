"""What happens to servers and networks: the store waits, asks again, and nothing is lost, doubled or shown."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

import outlast
from outlast.app import App
from outlast.errors import OutlastError, StoreError, StoreReadOnly, StoreUnavailable
from outlast.machine.changes import Patch
from outlast.model.event import Event
from outlast.model.journal import JournalEntry
from outlast.runtime.engine import Engine
from outlast.store.port import RESCAN
from outlast.store.postgres import PostgresStore
from outlast.store.postgres.connection import connect
from outlast.store.postgres.url import Address
from outlast.testing.conformance import actors
from outlast.testing.postgres_server import PostgresServer
from tests import postgres
from tests.integration.postgres.proxy import Proxy
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CUT_ALL = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{postgres.RECYCLED}'"


@pytest_asyncio.fixture
async def url() -> str:
    return await postgres.empty()


@pytest_asyncio.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open()
    yield store
    await store.close()


async def admin(sql: str) -> None:
    connection = await asyncpg.connect(postgres.server().url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


async def send_all(store: PostgresStore, number: int, each: int) -> None:
    """Events from one sender, one after the other."""
    engine = Engine(store)
    for message in range(each):
        fact = actors.sends(value=f"{number}:{message}".encode(), dedup=f"{number}:{message}")
        told = await engine.tell(actors.NAMESPACE, "a", fact)
        assert told.applied
    await engine.close()


async def assert_all_arrived_once(store: PostgresStore, senders: int, each: int) -> None:
    values = [(event.value or b"").decode() for event in await actors.records(store, Event)]
    assert len(values) == len(set(values)) == senders * each
    assert (await actors.look(store, "a")).inbox == senders * each


async def test_backends_cut_at_random_lose_nothing_and_double_nothing(store: PostgresStore):
    await actors.running(store)
    sending = asyncio.gather(*[send_all(store, number, 20) for number in range(5)])
    cuts = 0
    while not sending.done():
        await admin(CUT_ALL)
        cuts += 1
        # Long enough, now and then, for a new connection to get something done.
        await asyncio.sleep(random.random() * 0.5)
    await sending
    assert cuts >= 1
    await assert_all_arrived_once(store, 5, 20)


async def test_connections_cut_between_server_and_client_lose_nothing_and_double_nothing(url: str):
    async with Proxy() as proxy:
        store = PostgresStore(proxy.url_of(url))
        await store.open()
        await actors.running(store)
        sending = asyncio.gather(*[send_all(store, number, 20) for number in range(5)])
        while not sending.done():
            proxy.cut()
            await asyncio.sleep(random.random() * 0.5)
        await sending
        await assert_all_arrived_once(store, 5, 20)
        await store.close()


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_a_server_that_restarts_is_waited_for(how: str):
    with PostgresServer.launch() as server:
        store = PostgresStore(server.url)
        await store.migrate()
        await store.open()
        held = await actors.running(store)
        listening = aiter(store.listen())
        assert RESCAN in await anext(listening)
        stepping = asyncio.create_task(steps(store, held, 60))
        for _ in range(2):
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.stop, how)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.start)
        await stepping
        assert len(await actors.records(store, JournalEntry)) == 60
        async with asyncio.timeout(20):
            while RESCAN not in await anext(listening):
                pass
        # The bell rings again.
        other = PostgresStore(server.url)
        await other.open()
        async with asyncio.timeout(20):
            while True:
                other.ring(frozenset({"again"}))
                if "again" in await anext(listening):
                    break
        await other.close()
        await store.close()


async def steps(store: PostgresStore, held: actors.Execution, number: int) -> None:
    for n in range(number):
        verdict = await actors.commit_one(store, actors.decided(store, held, actors.steps(held, f"s{n}")))
        assert verdict.applied
        await asyncio.sleep(0.01)


async def test_a_server_that_stays_away_is_a_typed_error_within_the_patience():
    with PostgresServer.launch() as server:
        store = PostgresStore(f"{server.url}&patience=1")
        await store.migrate()
        await store.open()
        server.stop()
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnavailable):
                await store.now()
            with pytest.raises(StoreUnavailable):
                await store.commit([actors.start_changes(store, actors.start_fact())])
        server.start()
        assert (await actors.start(store)).id == "a"
        await store.close()


async def test_a_read_only_server_is_a_clear_error_and_work_goes_on_when_it_may_be_written(url: str):
    app = App(url)
    ran: list[int] = []

    @app.workflow
    async def note(number: int) -> int:
        ran.append(number)
        return number

    async with app:
        assert await note(1) == 1
        await admin(f"ALTER DATABASE {postgres.RECYCLED} SET default_transaction_read_only = on")
        await admin(CUT_ALL)
        with pytest.raises(StoreReadOnly, match="read but not written"):
            await note.options(id="refused").start(2)
        await admin(f"ALTER DATABASE {postgres.RECYCLED} RESET default_transaction_read_only")
        await admin(CUT_ALL)
        async with asyncio.timeout(30):
            assert await note(3) == 3
    assert ran == [1, 3]


async def test_a_statement_timeout_ends_in_an_error_or_in_success_never_in_a_hang(url: str):
    await admin(f"ALTER DATABASE {postgres.RECYCLED} SET statement_timeout = '300ms'")
    try:
        store = PostgresStore(f"{url}&patience=1")
        await store.open()
        await actors.start(store)
        blocker = await asyncpg.connect(url)
        await blocker.execute("SET statement_timeout = 0; BEGIN; LOCK TABLE outlast.execution")
        async with asyncio.timeout(20):
            with pytest.raises(StoreUnavailable):
                await actors.commit_one(store, actors.start_changes(store, actors.start_fact("b")))
        await blocker.close()
        assert (await actors.start(store, "b")).id == "b"
        await store.close()
    finally:
        await admin(f"ALTER DATABASE {postgres.RECYCLED} RESET statement_timeout")


async def test_a_row_that_somebody_locks_is_waited_for(url: str):
    store = PostgresStore(url)
    await store.open()
    held = await actors.start(store)
    blocker = await asyncpg.connect(url)
    await blocker.execute("BEGIN; LOCK TABLE outlast.session; SELECT 1 FROM outlast.execution FOR UPDATE")
    changes = actors.changing(store, held.id, Patch(held.key, {"priority": 7}))
    async with asyncio.timeout(20):
        calls = [store.commit([changes]), store.renew("w", lease_ttl_ms=1_000)]
        waiting = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(1.2)  # longer than one call waits for a lock
        assert not any(call.done() for call in waiting)
        await blocker.close()
        committed, _ = await asyncio.gather(*waiting)
    assert [verdict.applied for verdict in committed.verdicts] == [True]
    assert (await actors.look(store, held.id)).priority == 7
    await store.close()


@pytest_asyncio.fixture
async def modest(url: str) -> AsyncIterator[str]:
    """The same database for a role that may have three connections."""
    connection = await asyncpg.connect(url)
    await connection.execute("DROP ROLE IF EXISTS modest")
    await connection.execute("CREATE ROLE modest LOGIN CONNECTION LIMIT 3")
    await connection.execute("GRANT pg_read_all_data, pg_write_all_data TO modest")
    await connection.execute("GRANT ALL ON SCHEMA outlast TO modest")
    await connection.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA outlast TO modest")
    await connection.close()
    yield url.replace("postgres@", "modest@")
    connection = await asyncpg.connect(url)
    await connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'modest'")
    await connection.execute("DROP OWNED BY modest; DROP ROLE modest")
    await connection.close()


async def connections_of(url: str, role: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE usename = $1", role)
    finally:
        await connection.close()


async def test_where_connections_are_few_operations_wait_in_line(modest: str):
    store = PostgresStore(f"{modest}&pool_size=20")
    await store.open()
    starts = [actors.commit_one(store, actors.start_changes(store, actors.start_fact(f"x{n}"))) for n in range(40)]
    async with asyncio.timeout(30):
        assert all(verdict.applied for verdict in await asyncio.gather(*starts))
    await store.close()


async def test_where_connections_are_few_transactions_have_theirs(url: str, modest: str):
    app = App(modest)

    @app.step
    async def plus(number: int) -> int:
        return number + 1

    @app.transaction
    async def doubled(number: int) -> int:
        return await outlast.connection().fetchval("SELECT 2 * $1::int", number)

    @app.workflow
    async def both(number: int) -> int:
        return await plus(await doubled(await plus(number)))

    async with app, asyncio.timeout(20):
        assert [await both.options(id=f"first {n}")(n) for n in range(3)] == [2 * n + 3 for n in range(3)]
        handles = await asyncio.gather(*(both.options(id=f"e{n}").start(n) for n in range(20)))
        assert [await handle.result() for handle in handles] == [2 * n + 3 for n in range(20)]


async def test_connections_that_nobody_uses_are_given_back(url: str, modest: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("outlast.store.postgres.connection.IDLE_S", 0.2)
    made = list[Any]()

    async def kept_count(address: Address, settings: Mapping[str, str]) -> Any:
        made.append(await connect(address, settings))
        return made[-1]

    monkeypatch.setattr("outlast.store.postgres.connection.connect", kept_count)
    first = PostgresStore(f"{modest}&doorbell=off")
    await first.open()
    await asyncio.gather(*(first.now() for _ in range(20)))
    assert len(made) >= 3, "it did not take all that the role may have"
    second = PostgresStore(modest)
    async with asyncio.timeout(10):
        await second.open()

    async def one_each() -> bool:
        return await connections_of(url, "modest") == 2

    await until(one_each, "more than one each is left")
    await asyncio.gather(first.now(), second.now())
    await first.close()
    await second.close()


async def test_who_waits_for_a_connection_for_long_says_so_once(
    url: str, modest: str, caplog: pytest.LogCaptureFixture
):
    others = [await asyncpg.connect(modest) for _ in range(3)]
    opening = asyncio.create_task((store := PostgresStore(modest)).open())
    async with asyncio.timeout(20):
        while "waits for a connection" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        assert caplog.text.count("waits for a connection") == 1
        for other in others:
            await other.close()
        await opening
    assert "open has a connection, after" in caplog.text
    await store.close()


@pytest.mark.parametrize("latency_ms", [1, 20])
async def test_a_slow_network_only_takes_longer(url: str, latency_ms: int):
    async with Proxy(latency_s=latency_ms / 1_000) as proxy:
        app = App(proxy.url_of(url), lease_ttl="5s")

        @app.step
        async def add(number: int) -> int:
            return number + 1

        @app.workflow
        async def ten(number: int) -> int:
            for _ in range(10):
                number = await add(number)
            return number

        async with app:
            async with asyncio.timeout(60):
                results = await asyncio.gather(*[ten.options(id=f"e{n}").start(n) for n in range(50)])
                assert [await handle.result() for handle in results] == [n + 10 for n in range(50)]


async def test_a_network_that_swallows_answers_loses_no_commit(url: str):
    async with Proxy() as proxy:
        # One connection, on which the commit is prepared: on another one the lost answer would be that of Parse.
        store = PostgresStore(f"{proxy.url_of(url)}&pool_size=1&doorbell=off")
        await store.open()
        await actors.start(store)
        execution = await actors.look(store, "a")
        beside = PostgresStore(url)
        await beside.open()
        proxy.mute = True
        sending = asyncio.create_task(actors.commit_one(store, actors.decided(store, execution, actors.sends())))
        async with asyncio.timeout(20):
            while (await actors.look(beside, "a")).inbox == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await beside.close()
        proxy.mute = False
        proxy.cut()
        verdict = await asyncio.wait_for(sending, 20)
        assert (verdict.applied, verdict.again, verdict.inbox) == (True, True, 1)
        await store.close()


async def test_whatever_goes_wrong_is_an_error_of_outlast():
    for url in ("postgresql://postgres@127.0.0.1:1/x?patience=0", f"{postgres.server().url_of('nowhere')}&patience=0"):
        with pytest.raises(OutlastError) as caught:
            await PostgresStore(url).open()
        assert isinstance(caught.value, StoreError)
