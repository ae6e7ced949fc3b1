"""`start_in`: an execution that is started by the commit of the caller's own transaction, or never was."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import outlast
from outlast import (
    App,
    ExecutionConflict,
    ExecutionNotFound,
    InvalidInput,
    TransactionUnsupported,
    WrongConnection,
    WrongPlace,
)
from outlast.client.portal import portal
from outlast.errors import IdHeld
from outlast.runtime.group_commit import GroupCommit
from outlast.store.postgres import PostgresStore
from outlast.testing.conformance import actors
from tests import postgres
from tests.acceptance.test_fast_path import with_room
from tests.conformance.valkey_harness import valkey_url

ORDER = "CREATE TABLE IF NOT EXISTS public.orders (id text PRIMARY KEY)"


@pytest.fixture
async def url() -> str:
    return await prepared()


@pytest.fixture
def app(url: str) -> App:
    return make_app(url)


def make_app(url: str, **options: Any) -> App:
    app = App(url, **options)

    @app.workflow(lane="shop")
    async def checkout(order: str, count: int = 1) -> str:
        return order * count

    return app


def checkout_of(app: App) -> Any:
    return app.registry.newest("checkout")


async def ids(url: str) -> tuple[list[str], list[str]]:
    """(orders, executions), as somebody else sees them."""
    connection = await asyncpg.connect(url)
    try:
        orders = [row[0] for row in await connection.fetch("SELECT id FROM public.orders ORDER BY id")]
        executions = [row[0] for row in await connection.fetch("SELECT id FROM outlast.execution ORDER BY id")]
        return orders, executions
    finally:
        await connection.close()


class RolledBack(Exception):
    pass


# ---- what people have ---------------------------------------------------------------------------------------------
# Each gives a connection inside of a transaction, which is committed at the end and rolled back by an exception; and a
# function that inserts an order with it.


Asynchronous = Callable[[str], Any]


@asynccontextmanager
async def with_asyncpg(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection, lambda order: connection.execute("INSERT INTO public.orders VALUES ($1)", order)
    finally:
        await connection.close()


@asynccontextmanager
async def with_a_pool_of_asyncpg(url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection:
        async with connection.transaction():
            yield connection, lambda order: connection.execute("INSERT INTO public.orders VALUES ($1)", order)


@asynccontextmanager
async def with_json_in_a_way_of_their_own(url: str) -> AsyncIterator[Any]:
    async with with_asyncpg(url) as (connection, insert):
        for kind in ("json", "jsonb"):
            await connection.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        yield connection, insert


connect: Any = psycopg.AsyncConnection.connect


@asynccontextmanager
async def with_psycopg(url: str) -> AsyncIterator[Any]:
    async with await connect(url, row_factory=dict_row) as connection:
        yield connection, lambda order: connection.execute("INSERT INTO public.orders VALUES (%s)", [order])


@asynccontextmanager
async def with_raw_cursors_of_psycopg(url: str) -> AsyncIterator[Any]:
    async with await connect(url, cursor_factory=psycopg.AsyncRawCursor) as connection:
        yield connection, lambda order: connection.execute("INSERT INTO public.orders VALUES ($1)", [order])


@asynccontextmanager
async def with_sqlalchemy(url: str, driver: str = "psycopg") -> AsyncIterator[Any]:
    engine = create_async_engine(alchemy(url, driver), poolclass=NullPool)
    async with engine.begin() as connection:
        yield connection, lambda order: connection.execute(sqlalchemy.text(INSERT), {"id": order})


@asynccontextmanager
async def with_sqlalchemy_on_asyncpg(url: str) -> AsyncIterator[Any]:
    async with with_sqlalchemy(url, "asyncpg") as given:
        yield given


@asynccontextmanager
async def with_a_session_of_sqlalchemy(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(alchemy(url, "psycopg"), poolclass=NullPool)
    async with AsyncSession(engine) as session, session.begin():
        yield session, lambda order: session.execute(sqlalchemy.text(INSERT), {"id": order})


ASYNC = {
    "asyncpg": with_asyncpg,
    "asyncpg pool": with_a_pool_of_asyncpg,
    "asyncpg with codecs": with_json_in_a_way_of_their_own,
    "psycopg": with_psycopg,
    "psycopg with raw cursors": with_raw_cursors_of_psycopg,
    "sqlalchemy": with_sqlalchemy,
    "sqlalchemy on asyncpg": with_sqlalchemy_on_asyncpg,
    "sqlalchemy session": with_a_session_of_sqlalchemy,
}
INSERT = "INSERT INTO public.orders VALUES (:id)"


def alchemy(url: str, driver: str) -> Any:
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items() if name == "host"}
    return sqlalchemy.URL.create(
        f"postgresql+{driver}",
        username=parts.username,
        password=parts.password,
        host=parts.hostname,
        port=parts.port,
        database=parts.path.lstrip("/"),
        query=query,
    )


@contextmanager
def blocking_psycopg(url: str) -> Iterator[Any]:
    with psycopg.connect(url) as connection:
        yield connection, lambda order: connection.execute("INSERT INTO public.orders VALUES (%s)", [order])


@contextmanager
def blocking_raw_cursors_of_psycopg(url: str) -> Iterator[Any]:
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as connection:
        yield connection, lambda order: connection.execute("INSERT INTO public.orders VALUES ($1)", [order])


@contextmanager
def blocking_sqlalchemy(url: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(alchemy(url, "psycopg"), poolclass=NullPool)
    with engine.begin() as connection:
        yield connection, lambda order: connection.execute(sqlalchemy.text(INSERT), {"id": order})


@contextmanager
def blocking_session_of_sqlalchemy(url: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(alchemy(url, "psycopg"), poolclass=NullPool)
    with Session(engine) as session, session.begin():
        yield session, lambda order: session.execute(sqlalchemy.text(INSERT), {"id": order})


@contextmanager
def blocking_django(url: str) -> Iterator[Any]:
    connection = django_connection(url)
    try:
        atomic: Any = transaction.atomic(using="shop")
        with atomic, connection.cursor() as cursor:
            yield connection, lambda order: cursor.execute("INSERT INTO public.orders VALUES (%s)", [order])
    finally:
        connection.close()


def django_connection(url: str) -> Any:
    parts = urlsplit(url)
    shop = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username,
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or parse_qs(parts.query)["host"][0],
        "PORT": str(parts.port or ""),
    }
    default = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    if not settings.configured:
        settings.configure(DATABASES={"shop": shop, "default": default}, USE_TZ=True)
        django.setup()
    return connections["shop"]


BLOCKING = {
    "psycopg": blocking_psycopg,
    "psycopg with raw cursors": blocking_raw_cursors_of_psycopg,
    "sqlalchemy": blocking_sqlalchemy,
    "sqlalchemy session": blocking_session_of_sqlalchemy,
    "django": blocking_django,
}


# ---- commit and rollback ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ASYNC)
async def test_a_commit_starts_it_and_a_rollback_leaves_nothing(app: App, url: str, kind: str):
    checkout = checkout_of(app)
    async with app:
        async with ASYNC[kind](url) as (connection, insert):
            await insert("a")
            handle = await checkout.options(id="a").start_in(connection, "apple", count=2)
            assert await ids(url) == ([], [])
            with pytest.raises(ExecutionNotFound):
                await handle.result(timeout=20)
        assert await handle.result(timeout=10) == "appleapple"
        with suppress(RolledBack):
            async with ASYNC[kind](url) as (connection, insert):
                await insert("b")
                await checkout.options(id="b").start_in(connection, "banana")
                raise RolledBack
    assert await ids(url) == (["a"], ["a"])


@pytest.mark.parametrize("kind", BLOCKING)
def test_the_same_for_code_that_blocks(kind: str):
    url = asyncio.run(prepared())
    app, worker = make_app(url), make_app(url)
    checkout = checkout_of(app)
    with running(worker):
        with BLOCKING[kind](url) as (connection, insert):
            insert("a")
            handle = checkout.options(id="a").sync.start_in(connection, "apple", count=2)
            assert asyncio.run(ids(url)) == ([], [])
        assert handle.result(timeout=10) == "appleapple"
        with suppress(RolledBack), BLOCKING[kind](url) as (connection, insert):
            insert("b")
            checkout.options(id="b").sync.start_in(connection, "banana")
            raise RolledBack
    portal().call(app._close)
    assert asyncio.run(ids(url)) == (["a"], ["a"])


async def prepared() -> str:
    url = await postgres.empty()
    connection = await asyncpg.connect(url)
    await connection.execute(f"{ORDER}; TRUNCATE public.orders")
    await connection.close()
    return url


@contextmanager
def running(app: App) -> Iterator[None]:
    """The app's worker, in a loop of its own."""
    opened, over = threading.Event(), threading.Event()

    async def work() -> None:
        async with app:
            opened.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    assert opened.wait(20)
    try:
        yield
    finally:
        over.set()
        thread.join()


async def test_the_commit_rings_so_it_starts_at_once(url: str):
    """Nobody polls here: without the ring it would not be found."""
    worker, client = make_app(url), make_app(url)
    async with worker.worker(lanes=["shop"], poll="10m"):
        await asyncio.sleep(0.3)  # its first looks are over
        async with client.client():
            async with with_asyncpg(url) as (connection, _):
                handle = await checkout_of(client).start_in(connection, "x")
                await asyncio.sleep(0.1)
            async with asyncio.timeout(20):
                assert await handle.result() == "x"


async def test_a_delay_counts_and_all_options_are_those_of_a_start(app: App, url: str):
    options = {"id": "o", "priority": 7, "delay": "1h", "tags": {"customer": "ann"}, "deadline": "2d", "lane": "slow"}
    async with app.client():
        async with with_asyncpg(url) as (connection, _):
            handle = await checkout_of(app).options(**options).start_in(connection, "x")
        info = await handle.info()
        assert (info.status, info.reason, info.tags, info.lane) == ("blocked", "delay", {"customer": "ann"}, "slow")


# ---- ids ----------------------------------------------------------------------------------------------------------


async def test_the_same_id_is_the_same_execution_and_other_arguments_are_a_conflict(app: App, url: str):
    checkout = checkout_of(app)
    async with app.client():
        async with with_asyncpg(url) as (connection, insert):
            for _ in range(2):
                assert (await checkout.options(id="a").start_in(connection, "x")).id == "a"
            with pytest.raises(ExecutionConflict, match=r'"x".*ready.*"y"'):
                await checkout.options(id="a").start_in(connection, "y")
            await insert("still usable")
        async with with_asyncpg(url) as (connection, _):
            await checkout.options(id="a").start_in(connection, "x")
            with pytest.raises(
                ExecutionConflict, match=r'use another id, or \.start\(…\) with if_exists="restart" after'
            ):
                await checkout.options(id="a", if_exists="error").start_in(connection, "x")
        assert (await checkout.options(id="a").start("x")).id == "a"
    assert await ids(url) == (["still usable"], ["a"])


async def test_two_transactions_with_one_id_start_it_once(app: App, url: str):
    checkout = checkout_of(app)
    async with app.client():
        async with with_asyncpg(url) as (first, _):
            await checkout.options(id="a").start_in(first, "x")
            other = asyncio.create_task(started_in_another(checkout, url))
            await asyncio.sleep(0.2)
            assert not other.done(), "who is second waits to see what becomes of the first"
        assert await asyncio.wait_for(other, 10) == "a"
    assert (await ids(url))[1] == ["a"]


@pytest.mark.parametrize("pooled", ["", "&pgbouncer=on"])
async def test_who_starts_an_id_that_is_held_waits_and_nobody_else(url: str, pooled: str):
    app = make_app(f"{url}{pooled}", lease_ttl="2s")
    checkout = checkout_of(app)
    async with asyncio.timeout(20), app:
        async with with_asyncpg(url) as (connection, _):
            await checkout.options(id="a").start_in(connection, "x")
            same = [asyncio.create_task(checkout.options(id="a").start("x")) for _ in range(3)]
            await asyncio.sleep(0.1)
            handles = [await checkout.options(id=f"other-{n}").start("y") for n in range(3)]
            assert [await handle.result() for handle in handles] == ["y"] * 3
            assert not any(task.done() for task in same)
        assert [handle.id for handle in await asyncio.gather(*same)] == ["a"] * 3
        assert await (await same[0]).result() == "x"


async def test_a_start_that_waits_for_a_held_id_keeps_no_room_of_a_worker(url: str):
    app = make_app(url)
    checkout = checkout_of(app)
    async with asyncio.timeout(20), app.worker(lanes=["shop"], concurrency=1):
        await with_room(app)
        async with with_asyncpg(url) as (connection, _):
            await checkout.options(id="a").start_in(connection, "x")
            same = [asyncio.create_task(checkout.options(id="a").start("x")) for _ in range(2)]
            await asyncio.sleep(0)
            other = await checkout.options(id="other").start("y")
            assert await other.result() == "y"
            assert not any(task.done() for task in same)
        assert [await (await task).result() for task in same] == ["x"] * 2
        assert (await with_room(app))._promised == 0


@pytest.mark.parametrize("pooled", ["", "&pgbouncer=on"])
async def test_who_shares_a_batch_with_many_held_ids_does_not_wait_for_each(url: str, pooled: str):
    app = make_app(f"{url}&pool_size=2{pooled}")
    checkout = checkout_of(app)
    async with app.client(), with_asyncpg(url) as (connection, _):
        for number in range(30):
            await checkout.options(id=f"held-{number}").start_in(connection, "x")
        held = [asyncio.create_task(checkout.options(id=f"held-{n}").start("x")) for n in range(30)]
        others = [asyncio.create_task(checkout.options(id=f"other-{n}").start("y")) for n in range(3)]
        async with asyncio.timeout(5):  # half a second for each, two at a time, would be more
            await asyncio.gather(*others)
        async with asyncio.timeout(1):
            for number in range(6):
                await checkout.options(id=f"late-{number}").start("y")
        assert not any(task.done() for task in held)
        await connection.execute("ROLLBACK; BEGIN")
        async with asyncio.timeout(10):
            assert len(await asyncio.gather(*held)) == 30


async def test_a_prompt_commit_waits_for_nobody_and_leaves_the_connection_as_it_was(app: App, url: str):
    store = PostgresStore(f"{url}&pool_size=1")
    await store.open()
    start = actors.start_changes(store, actors.start_fact("a", namespace="default"))
    async with app.client(), with_asyncpg(url) as (connection, _):
        await checkout_of(app).options(id="a").start_in(connection, "x")
        for commit, least_s, most_s in ((store.commit_promptly, 0.0, 0.4), (store.commit, 0.4, 5.0)):
            asked_at = time.monotonic()
            with pytest.raises(IdHeld, match="execution 'a' is being started"):
                await commit([start])
            assert least_s < time.monotonic() - asked_at < most_s
    assert not (await store.commit_promptly([start])).verdicts[0].applied
    await store.close()


async def test_an_id_that_stays_held_is_a_typed_error(app: App, url: str):
    store = PostgresStore(url)
    await store.open()
    group = GroupCommit(store, patience_s=0.5)
    async with app.client(), with_asyncpg(url) as (connection, _), asyncio.timeout(10):
        await checkout_of(app).options(id="a").start_in(connection, "x")
        with pytest.raises(IdHeld, match="execution 'a' is being started by another transaction"):
            await group.commit(actors.start_changes(store, actors.start_fact("a", namespace="default")))
    await group.close()
    await store.close()


async def started_in_another(checkout: Any, url: str) -> str:
    async with with_asyncpg(url) as (connection, _):
        return (await checkout.options(id="a").start_in(connection, "x")).id


# ---- refusals -----------------------------------------------------------------------------------------------------


async def test_without_a_transaction_nothing_is_written(app: App, url: str):
    checkout = checkout_of(app)
    async with app.client():
        bare = await asyncpg.connect(url)
        committing = await psycopg.AsyncConnection.connect(url, autocommit=True)
        engine = create_async_engine(alchemy(url, "psycopg"), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        async with engine.connect() as alone:
            for connection in (bare, committing, alone):
                with pytest.raises(WrongConnection, match="no transaction"):
                    await checkout.start_in(connection, "x")
        await bare.close()
        await committing.close()
    assert (await ids(url))[1] == []


def test_django_outside_of_atomic_is_refused():
    url = asyncio.run(prepared())
    app, connection = make_app(url), django_connection(url)
    try:
        with pytest.raises(WrongConnection, match="no transaction"):
            checkout_of(app).sync.start_in(connection, "x")
        with pytest.raises(WrongConnection, match="sqlite"):
            checkout_of(app).sync.start_in(connections["default"], "x")
    finally:
        connection.close()
        portal().call(app._close)
    assert asyncio.run(ids(url))[1] == []


async def test_another_database_is_refused(app: App, url: str):
    name = postgres.server().new_name()
    admin = await asyncpg.connect(postgres.server().url)
    await admin.execute(f"CREATE DATABASE {name}")
    elsewhere = postgres.server().url_of(name)
    try:
        async with app.client():
            async with with_asyncpg(elsewhere) as (connection, _):
                with pytest.raises(WrongConnection, match="another database"):
                    await checkout_of(app).start_in(connection, "x")
                assert await connection.fetchval("SELECT 1") == 1, "the transaction is as it was"
            await App(elsewhere).new_store().migrate()
            async with with_asyncpg(elsewhere) as (connection, _):
                with pytest.raises(WrongConnection, match="another database"):
                    await checkout_of(app).start_in(connection, "x")
    finally:
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()


async def test_what_is_no_connection_that_we_know_is_refused(app: App, url: str):
    checkout = checkout_of(app)
    with psycopg.connect(url) as blocking:
        async with app.client():
            for unknown in (object(), None, sqlite3):
                with pytest.raises(WrongConnection, match=r"no connection that Outlast knows.*outlast\.start"):
                    await checkout.start_in(unknown, "x")
            with pytest.raises(WrongConnection, match=r"\.sync\.start_in"):
                await checkout.start_in(blocking, "x")
    async with with_asyncpg(url) as (connection, _):
        with pytest.raises(WrongConnection, match="for async code"):
            await asyncio.to_thread(lambda: checkout.sync.start_in(connection, "x"))
        with pytest.raises(WrongPlace, match="would block"):
            checkout.sync.start_in(connection, "x")
    await asyncio.to_thread(lambda: portal().call(app._close))


async def test_options_that_it_cannot_honour_are_refused(app: App, url: str):
    async with app.client(), with_asyncpg(url) as (connection, _):
        for options in ({"if_exists": "restart"}, {"send": {"item": 1}}):
            with pytest.raises(InvalidInput, match="another's transaction"):
                await checkout_of(app).options(**options).start_in(connection, "x")
        with pytest.raises(InvalidInput, match="children"):
            await checkout_of(app).options(detached=True).start_in(connection, "x")
    assert (await ids(url))[1] == []


async def test_workflow_code_is_refused(app: App):
    checkout = checkout_of(app)

    @app.workflow
    async def inside() -> None:
        await checkout.start_in(object(), "x")

    async with app:
        with pytest.raises(WrongPlace, match="in a step"):
            await (await inside.start()).result(timeout=10)


@pytest.mark.parametrize("make", [lambda folder: f"sqlite:///{folder}/x.db", valkey_url], ids=["sqlite", "valkey"])
async def test_other_stores_refuse_with_what_to_do(tmp_path: Path, make: Any):
    app = make_app(make(tmp_path))
    async with app.client():
        with (
            closing(sqlite3.connect(":memory:")) as theirs,
            pytest.raises(TransactionUnsupported, match=r"PostgreSQL.*after the commit"),
        ):
            await checkout_of(app).start_in(theirs, "x")


async def test_it_is_possible_in_a_step(app: App, url: str):
    checkout = checkout_of(app)

    @app.step
    async def order() -> str:
        async with with_asyncpg(url) as (connection, insert):
            await insert("a")
            return (await checkout.options(id="a").start_in(connection, "x")).id

    @app.workflow
    async def ordering() -> str:
        return await order()

    async with app:
        assert await (await ordering.options(id="o").start()).result(timeout=10) == "a"
        assert await app.execution("a").result(timeout=10) == "x"
    assert outlast.WrongConnection is WrongConnection
