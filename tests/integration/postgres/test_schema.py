"""The schema, the role that may use it, the views, and what doctor says of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

import outlast
from outlast.app import App, store_for
from outlast.errors import InvalidConfig, SchemaOutdated, SchemaTooNew, StoreError
from outlast.model.kinds import KINDS
from outlast.model.partition import partition_of
from outlast.store.port import Grade, Health
from outlast.store.postgres import PostgresStore
from outlast.store.postgres.connection import PLAIN
from outlast.store.postgres.functions import FUNCTIONS
from outlast.store.postgres.statements import TABLES
from outlast.store.postgres.url import parse_url
from outlast.testing.conformance import actors
from outlast.testing.postgres_server import PostgresServer, installations
from tests import postgres


@pytest_asyncio.fixture
async def connection() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(await postgres.empty())
    yield connection
    await connection.close()


@pytest_asyncio.fixture
async def database() -> AsyncIterator[str]:
    """The URL of a database of the test's own, without a schema."""
    name = postgres.server().new_name()
    admin = await asyncpg.connect(postgres.server().url)
    await admin.execute(f"CREATE DATABASE {name}")
    yield postgres.server().url_of(name)
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


async def test_a_database_that_cannot_hold_every_name_is_refused():
    name, admin = postgres.server().new_name(), await asyncpg.connect(postgres.server().url)
    await admin.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        store = PostgresStore(postgres.server().url_of(name))
        for refused in (store.migrate, store.open):
            with pytest.raises(InvalidConfig, match=f"{name}.* is in LATIN1, .*CREATE DATABASE … ENCODING 'UTF8'"):
                await refused()
    finally:
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()


# ---- tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_table_has_the_fields_of_its_kind_behind_the_partition(connection: Any, kind: str):
    rows = await connection.fetch(
        "SELECT column_name, data_type, is_nullable, collation_name FROM information_schema.columns "
        "WHERE table_schema = 'outlast' AND table_name = $1 ORDER BY ordinal_position",
        kind,
    )
    table = TABLES[kind]
    found = {row["column_name"]: row for row in rows if row["column_name"] != "tx"}
    assert next(iter(found)) == "partition"
    assert set(found) == {"partition", *table.fields}
    for name, column in table.columns.items():
        kinds = {"bigint": {"bigint", "integer"}}.get(column.type, {column.type})
        assert found[name]["data_type"] in kinds
        assert (found[name]["is_nullable"] == "YES") is column.optional, name
        assert column.type != "text" or found[name]["collation_name"] == "C"


async def test_every_primary_key_begins_with_the_partition(connection: Any):
    rows = await connection.fetch(
        "SELECT conrelid::regclass::text AS name, pg_get_constraintdef(oid) AS key FROM pg_constraint "
        "WHERE contype = 'p' AND connamespace = 'outlast'::regnamespace"
    )
    keys = {row["name"]: row["key"] for row in rows if row["name"] != "outlast.meta"}
    assert len(keys) == len(KINDS) + 1
    assert all(key.startswith("PRIMARY KEY (partition") for key in keys.values())


async def test_the_views_answer(connection: Any):
    store = PostgresStore(postgres.server().url_of(postgres.RECYCLED))
    await store.open()
    await actors.running(store, "a")
    await actors.start(store, "b")
    await actors.ended(store, "c", priority=9)
    await store.close()
    assert {row["id"] for row in await connection.fetch("SELECT * FROM outlast.waiting")} == {"a", "b"}
    assert [row["id"] for row in await connection.fetch("SELECT * FROM outlast.finished")] == ["c"]
    assert [(row["lane"], row["ready"]) for row in await connection.fetch("SELECT * FROM outlast.lanes")] == [
        ("default", 1)
    ]
    assert [(row["worker"], row["leases"]) for row in await connection.fetch("SELECT * FROM outlast.workers")] == [
        ("w1", 1)
    ]


# ---- migrations ---------------------------------------------------------------------------------------------------


async def test_the_functions_of_another_release_stay(database: str):
    store = PostgresStore(database)
    await store.migrate()
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE FUNCTION outlast.commit_0ldr31ea() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    name = next(iter(FUNCTIONS))
    await connection.execute(f"DROP FUNCTION outlast.{name}")
    with pytest.raises(SchemaOutdated, match="functions"):
        await store.open()
    await store.migrate()
    await store.open()
    await actors.start(store)
    assert await connection.fetchval("SELECT outlast.commit_0ldr31ea()") == 1
    await connection.close()
    await store.close()


async def test_a_newer_schema_is_not_touched(database: str):
    store = PostgresStore(database)
    await store.migrate()
    connection = await asyncpg.connect(database)
    await connection.execute("UPDATE outlast.meta SET value = '99' WHERE name IN ('schema', 'oldest')")
    with pytest.raises(SchemaTooNew):
        await store.open()
    with pytest.raises(SchemaTooNew):
        await store.migrate()
    await connection.close()


NEXT_RELEASE = """
ALTER TABLE outlast.execution ADD COLUMN colour text COLLATE "C" NOT NULL DEFAULT 'blue', ADD COLUMN weight bigint;
ALTER TABLE outlast.journal ADD COLUMN cost bigint NOT NULL DEFAULT 0;
CREATE TABLE outlast.shelf (partition int NOT NULL, id text, PRIMARY KEY (partition, id));
CREATE INDEX execution_colour ON outlast.execution (colour);
UPDATE outlast.meta SET value = '2' WHERE name = 'schema';
"""


async def test_this_release_runs_on_the_schema_of_the_next(database: str):
    """While a deploy rolls: the new one has migrated, the old one is still at work, and may even begin."""
    app = App(database, lease_ttl="1s")

    @app.step
    async def one() -> int:
        return 1

    @app.workflow
    async def two(number: int) -> int:
        await outlast.sleep("10ms")
        return await one() + await one() + number

    connection = await asyncpg.connect(database)
    async with app:
        assert await two(1) == 3
        before = await two.options(delay="300ms").start(2)
        await connection.execute(NEXT_RELEASE)
        assert await two(3) == 5
        assert await before.result(timeout=20) == 4
    async with app:  # which migrates, and finds nothing to do
        assert await two(4) == 6
        await connection.execute("SELECT outlast.start('two', '{\"number\": 5}', 'by-sql')")
        assert await two.execution("by-sql").result(timeout=20) == 7
    await connection.execute("DROP FUNCTION outlast." + next(name for name in FUNCTIONS if name.startswith("claim_")))
    async with app:  # a fallback: its functions are made again, the schema stays
        assert await two(5) == 7
    assert await connection.fetchval("SELECT value FROM outlast.meta WHERE name = 'schema'") == "2"
    assert {row[0] for row in await connection.fetch("SELECT colour FROM outlast.execution")} == {"blue"}
    await connection.close()


@pytest.mark.slow
async def test_large_tables_in_hash_partitions_do_all_the_same(database: str):
    await PostgresStore(f"{database}&partitions=16").migrate()
    connection = await asyncpg.connect(database)
    await connection.execute(partitioned(4))
    app = App(database, lease_ttl="1s")

    @app.step
    async def one() -> int:
        return 1

    @app.workflow
    async def child(number: int) -> int:
        return number

    @app.workflow(timeout="30s", deadline="1h")
    async def parent(number: int) -> int:
        await outlast.sleep("10ms")
        word = await outlast.receive("word", int)
        return await child(number) + await one() + word

    async with app:
        handles = [await parent.options(id=f"p{n}", tags={"n": str(n)}).start(n) for n in range(40)]
        for handle in handles:
            await handle.send("word", 100)
        assert [await handle.result(timeout=30) for handle in handles] == [n + 101 for n in range(40)]
        cancelled = await parent.options(id="cancelled").start(1)
        await cancelled.cancel()
        await connection.execute("SELECT outlast.start('child', '{\"number\": 7}', 'by-sql')")
        assert await child.execution("by-sql").result(timeout=20) == 7
        assert await app.count(tags={"n": "3"}) == 1
        assert await connection.fetchval("SELECT count(DISTINCT tableoid) FROM outlast.execution") == 4
        assert len([one async for one in firsts(app.completions(), 80)]) == 80
        await asyncio.sleep(0.1)
        assert await app.purge("0s") > 80
    assert not [check for check in (await look(database)).checks if check.grade is Grade.WRONG]
    await connection.close()


def partitioned(parts: int) -> str:
    script = files("outlast.store.postgres").joinpath("migrations", "partitioned.sql").read_text()
    return script.replace(":'parts'", f"'{parts}'")


async def test_hash_partitions_that_would_do_harm_are_refused_and_nothing_is_changed(database: str):
    await PostgresStore(database).migrate()
    connection = await asyncpg.connect(database)
    for parts in (0, -1, 257):
        with pytest.raises(asyncpg.PostgresError, match="between 1 and 256"):
            await connection.execute(partitioned(parts))
    await actors_start(database)
    with pytest.raises(asyncpg.PostgresError, match="not empty"):
        await connection.execute(partitioned(2))
    await connection.execute("DELETE FROM outlast.execution; DELETE FROM outlast.payload")
    await connection.execute(partitioned(2))
    with pytest.raises(asyncpg.PostgresError, match="partitioned already"):
        await connection.execute(partitioned(4))
    assert grade(await look(database), "indexes") is Grade.OK
    await actors_start(database)
    await connection.close()


async def actors_start(database: str) -> None:
    store = PostgresStore(database)
    await store.open()
    await actors.start(store)
    await store.close()


async def firsts(feed: Any, number: int) -> AsyncIterator[Any]:
    async for one in feed:
        yield one
        number -= 1
        if not number:
            return


async def test_partitions_are_chosen_once(database: str):
    first = PostgresStore(f"{database}&partitions=4")
    await first.migrate()
    await first.open()
    assert first.partitions == 4
    await actors.start_many(first, [actors.start_fact(f"x{n}") for n in range(50)])
    assert len((await actors.claim(first, limit=50)).executions) == 50
    await first.close()
    with pytest.raises(InvalidConfig, match="created with 4"):
        await PostgresStore(f"{database}&partitions=8").migrate()
    with pytest.raises(InvalidConfig, match="created with 4"):
        await PostgresStore(f"{database}&partitions=8").open()
    again = PostgresStore(database)
    await again.open()
    assert again.partitions == 4
    await again.close()


def roles_for(role: str) -> str:
    return files("outlast.store.postgres").joinpath("migrations", "roles.sql").read_text().replace(':"role"', role)


async def test_who_makes_it_at_the_same_time_with_other_partitions_is_told(database: str):
    made = await asyncio.gather(
        *(PostgresStore(f"{database}&partitions={n}").migrate() for n in (2, 4, 8)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in made) == ["InvalidConfig", "InvalidConfig", "int"]


@pytest.mark.parametrize("pooled", ["", "&pgbouncer=on"])
async def test_ten_processes_may_make_it_at_once_whatever_isolation_the_database_has_by_default(
    database: str, pooled: str
):
    name, admin = database.rpartition("/")[2].partition("?")[0], await asyncpg.connect(database)
    await admin.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    await admin.close()
    made = await asyncio.gather(*(PostgresStore(f"{database}{pooled}").migrate() for _ in range(10)))
    assert len(set(made)) == 1


async def test_a_role_with_the_least_privileges_works_but_may_not_migrate(database: str):
    owner = PostgresStore(database)
    await owner.migrate()
    connection = await asyncpg.connect(database)
    await connection.execute("DROP ROLE IF EXISTS outlast_least; CREATE ROLE outlast_least LOGIN")
    await connection.execute(roles_for("outlast_least"))
    least = database.replace("postgres@", "outlast_least@")
    app = App(least)

    @app.step
    async def one() -> int:
        return 1

    @app.workflow
    async def two() -> int:
        return await one() + await one()

    try:
        async with app:  # which migrates, and finds nothing to do
            assert await two() == 2
            client = await asyncpg.connect(least)
            await client.execute("SELECT outlast.start('two', id => 'by-sql')")
            await client.close()
            assert await two.execution("by-sql").result(timeout=20) == 2
        missing = next(name for name in FUNCTIONS if name.startswith("append_"))
        await connection.execute(f"DROP FUNCTION outlast.{missing}")
        with pytest.raises(StoreError, match=r"run `outlast migrate` as the owner, then roles\.sql"):
            await PostgresStore(least).migrate()
        await owner.migrate()
        await connection.execute(roles_for("outlast_least"))
        async with app:
            assert await two() == 2
        await connection.execute("DELETE FROM outlast.meta WHERE name = 'schema'")
        await connection.execute("INSERT INTO outlast.meta VALUES ('schema', '0')")
        with pytest.raises(StoreError, match=r"run `outlast migrate` as the owner, then roles\.sql"):
            await PostgresStore(least).migrate()
    finally:
        await connection.execute("DROP OWNED BY outlast_least; DROP ROLE outlast_least")
        await connection.close()


@pytest.mark.slow
async def test_every_version_that_is_at_hand_does_it_all():
    for version in installations():
        await does_it_all(version)


async def does_it_all(version: int) -> None:
    with PostgresServer.launch(version=version) as server:
        store = PostgresStore(server.url)
        await store.migrate()
        await store.open()
        held = await actors.running(store, tags={"a": "b"})
        await actors.commit_one(store, actors.decided(store, held, actors.steps(held)))
        await actors.tell(store, "a", actors.sends())
        await actors.commit_one(store, actors.decided(store, held, actors.completes(held)))
        assert [c.execution for c in (await store.completions()).completions] == ["a"]
        await store.renew("w1", lease_ttl_ms=1_000)
        assert all(check.grade is not Grade.WRONG for check in (await store.health(deep=True)).checks)
        await store.close()


# ---- doctor -------------------------------------------------------------------------------------------------------


async def look(url: str) -> Health:
    store = PostgresStore(url)
    await store.open()
    try:
        return await store.health(deep=True)
    finally:
        await store.close()


def grade(health: Health, name: str) -> Grade:
    return next(check.grade for check in health.checks if check.name == name)


async def test_a_well_database_is_told_as_such():
    health = await look(await postgres.empty())
    wrong = [check for check in health.checks if check.grade is Grade.WRONG]
    assert not wrong
    # Tests run without fsync, and doctor notices.
    assert grade(health, "durability") is Grade.WARNING


async def test_a_missing_index_is_noticed(database: str):
    await PostgresStore(database).migrate()
    connection = await asyncpg.connect(database)
    await connection.execute("DROP INDEX outlast.execution_timer")
    assert grade(await look(database), "indexes") is Grade.WRONG
    await connection.close()


@pytest.mark.parametrize(
    "lost",
    ["DELETE ON outlast.journal", "SELECT ON outlast.clock", "EXECUTE ON FUNCTION outlast.settled(bigint, bigint)"],
)
async def test_lost_privileges_are_noticed(database: str, lost: str):
    await PostgresStore(database).migrate()
    connection = await asyncpg.connect(database)
    await connection.execute("DROP ROLE IF EXISTS outlast_lost; CREATE ROLE outlast_lost LOGIN")
    try:
        await connection.execute(roles_for("outlast_lost"))
        theirs = database.replace("postgres@", "outlast_lost@")
        health = await look(theirs)
        assert grade(health, "privileges") is Grade.OK
        # The test's own is another's, and there.
        assert not next(check.found for check in health.checks if check.name == "connections").startswith(("0", "1 "))
        assert "pg_read_all_stats" in next(c.found for c in health.checks if c.name == "oldest transaction")
        await connection.execute(f"REVOKE {lost} FROM outlast_lost, PUBLIC")
        health = await look(theirs)
        assert grade(health, "privileges") is Grade.WRONG
        assert lost.rpartition(".")[2].partition("(")[0] in str(health.checks)
    finally:
        await connection.execute("DROP OWNED BY outlast_lost; DROP ROLE outlast_lost")
        await connection.close()


async def test_completions_of_another_server_are_noticed_and_put_right(database: str):
    """As after a dump and its restore on a server that is younger."""
    store = PostgresStore(database)
    await store.migrate()
    await store.open()
    for name in ("a", "b", "c"):
        await actors.ended(store, name)
    assert grade(await look(database), "feed") is Grade.OK
    connection = await asyncpg.connect(database)
    await connection.execute("UPDATE outlast.completion SET tx = '99999999999'")
    assert grade(await look(database), "feed") is Grade.WRONG
    await connection.execute("UPDATE outlast.completion SET tx = '3'")
    assert grade(await look(database), "feed") is Grade.OK
    await actors.ended(store, "d")
    assert [one.execution for one in (await store.completions()).completions] == ["a", "b", "c", "d"]
    await connection.close()
    await store.close()


async def test_a_database_that_may_only_be_read_is_noticed(database: str):
    await PostgresStore(database).migrate()
    connection = await asyncpg.connect(database)
    await connection.execute(
        f"ALTER DATABASE {database.rpartition('/')[2].partition('?')[0]} SET default_transaction_read_only = on"
    )
    assert grade(await look(database), "durability") is Grade.WRONG
    await connection.close()


async def test_a_doorbell_that_is_not_heard_is_noticed(monkeypatch: pytest.MonkeyPatch):
    from outlast.store.postgres import doorbell

    async def deaf(*_: Any) -> None: ...

    url = await postgres.empty()
    assert grade(await look(url), "doorbell") is Grade.OK
    monkeypatch.setattr(asyncpg.Connection, "add_listener", deaf)
    monkeypatch.setattr(doorbell, "TRIED_S", 0.2)
    assert grade(await look(url), "doorbell") is Grade.WARNING
    assert grade(await look(f"{url}&doorbell=off"), "doorbell") is Grade.OK


async def test_an_old_transaction_is_noticed(monkeypatch: pytest.MonkeyPatch):
    from outlast.store.postgres import health as module

    url = await postgres.empty()
    monkeypatch.setattr(module, "OLD_WARNING_S", 0.05)
    other = await asyncpg.connect(url)
    await other.execute("BEGIN; SELECT pg_current_xact_id()")
    await asyncio.sleep(0.1)
    assert grade(await look(url), "oldest transaction") is Grade.WARNING
    await other.close()


async def test_an_old_transaction_that_is_prepared_is_noticed(monkeypatch: pytest.MonkeyPatch):
    """It belongs to no connection, and holds the feed of completions up all the same."""
    from outlast.store.postgres import health as module

    monkeypatch.setattr(module, "OLD_WARNING_S", 0.05)
    with PostgresServer.launch(settings={"max_prepared_transactions": "4"}) as server:
        store = PostgresStore(server.url)
        await store.migrate()
        await store.open()
        other = await asyncpg.connect(server.url)
        await other.execute("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'theirs'")
        await actors.ended(store, "a")
        await asyncio.sleep(0.1)
        assert not (await store.completions()).completions
        [old] = [check for check in (await store.health()).checks if check.name == "oldest transaction"]
        assert old.grade is Grade.WARNING
        assert "prepared as 'theirs'" in old.found
        await other.execute("ROLLBACK PREPARED 'theirs'")
        assert [one.execution for one in (await store.completions()).completions] == ["a"]
        assert "prepared" not in str((await store.health()).checks)
        await other.close()
        await store.close()


async def test_dead_rows_that_nobody_clears_away_are_noticed(database: str):
    await PostgresStore(database).migrate()
    assert grade(await look(database), "dead rows") is Grade.OK
    connection = await asyncpg.connect(database)
    await connection.execute("""
        INSERT INTO outlast.tag SELECT 1, 'default', 'e', 't' || n, '' FROM generate_series(1, 100001) AS n;
        DELETE FROM outlast.tag;
        SELECT pg_stat_force_next_flush();
    """)
    await connection.close()
    [dead] = [check for check in (await look(database)).checks if check.name == "dead rows"]
    assert dead.grade is Grade.WARNING
    assert "outlast.tag has 100,001 dead rows beside 0 live ones" in dead.found


async def test_connections_that_are_nearly_used_up_are_noticed(database: str, monkeypatch: pytest.MonkeyPatch):
    from outlast.store.postgres import health as module

    await PostgresStore(database).migrate()
    assert grade(await look(database), "connections") is Grade.OK
    monkeypatch.setattr(module, "CONNECTIONS_WARNING", 0.001)
    assert grade(await look(database), "connections") is Grade.WARNING


async def test_an_old_version_is_noticed(database: str, monkeypatch: pytest.MonkeyPatch):
    from outlast.store.postgres import health as module

    await PostgresStore(database).migrate()
    assert grade(await look(database), "server") is Grade.OK
    monkeypatch.setattr(module, "VERSION_MIN", 99)
    assert grade(await look(database), "server") is Grade.WARNING


async def test_a_partition_that_holds_most_of_what_is_ready_is_noticed(database: str, monkeypatch: pytest.MonkeyPatch):
    from outlast.store.postgres import health as module

    store = PostgresStore(database)
    await store.migrate()
    await store.open()
    together = [name for n in range(2_000) if partition_of(actors.NAMESPACE, name := f"x{n}", store.partitions) == 7]
    await actors.start_many(store, [actors.start_fact(name) for name in together])
    await store.close()
    assert grade(await look(database), "skew") is Grade.OK
    monkeypatch.setattr(module, "SKEW_MIN_READY", 10)
    assert grade(await look(database), "skew") is Grade.WARNING


# ---- URLs ---------------------------------------------------------------------------------------------------------


def test_a_password_is_never_shown():
    store = store_for("postgresql://me:secret@db.example:5433/shop?sslmode=require&pool_size=7")
    assert store.url == "postgresql://me@db.example:5433/shop"
    address = parse_url("postgres://me:secret@db/shop?sslmode=require&pool_size=7")
    assert address.pool_size == 7
    assert address.dsn == "postgres://me:secret@db/shop?sslmode=require"


@pytest.mark.parametrize("pooled", ["", "&pgbouncer=on"])
async def test_connections_have_the_name_that_the_url_gives_them(pooled: str):
    url, asked = await postgres.empty(), "SELECT current_setting('application_name') AS name"

    async def names(given: str) -> set[str]:
        store = PostgresStore(f"{url}{pooled}{given}")
        pools = [store._new_pool(), store._new_pool(PLAIN)]
        found = {(await pool.call("test", lambda s: s.rows(asked)))[0]["name"] for pool in pools}
        for pool in pools:
            await pool.close()
        return found

    assert await names("") == {"outlast"}
    assert await names("&application_name=shop%20floor") == {"shop floor"}


@pytest.mark.parametrize(
    "option",
    [
        "partitions=0",
        "partitions=x",
        "pool_size=-1",
        "doorbell=maybe",
        "pgbouncer=1",
        "patience=2&patience=3",
        "pgbouncer=on&doorbell=on",
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused(option: str):
    with pytest.raises(InvalidConfig):
        parse_url(f"postgresql://db/shop?{option}")


def test_a_url_without_a_host_is_shown_as_it_is():
    assert parse_url("postgresql:///shop?host=/run&pool_size=2").shown == "postgresql:///shop"
    assert parse_url("postgresql:///shop?host=/run&pool_size=2").dsn == "postgresql:///shop?host=%2Frun"


@pytest.mark.parametrize("place", ["h:port/shop", "127.0.0.1:99999/shop", "h/shop?sslmode=bogus"])
async def test_a_url_that_the_driver_cannot_read_is_said_at_once(place: str):
    store = PostgresStore(f"postgresql://me:secret@{place}")
    async with asyncio.timeout(20):  # and not tried for half a minute
        with pytest.raises(InvalidConfig, match="cannot be used") as refused:
            await store.open()
    assert "secret" not in str(refused.value)


def test_a_missing_driver_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch):
    import sys

    for module in [name for name in sys.modules if name.startswith("outlast.store.postgres")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(InvalidConfig, match=r"outlast\[postgres\]"):
        store_for("postgresql://db/shop")
