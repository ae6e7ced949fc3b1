"""Many processes may migrate one file at once, from nothing or from an older schema; nobody's data is touched."""

from __future__ import annotations

from pathlib import Path

import apsw
import msgspec
import pytest

import outlast
from outlast import App
from outlast.errors import SchemaMissing, SchemaOutdated, SchemaTooNew, StoreCorrupt
from outlast.machine.facts import Complete
from outlast.model.kinds import KINDS
from outlast.model.lane import Lane
from outlast.model.status import Status
from outlast.store.port import DueKind, Query
from outlast.store.sqlite import SqliteStore
from outlast.store.sqlite import migrate as migrating
from outlast.testing import Crash, CrashPoints
from outlast.testing.conformance import actors
from tests.integration.sqlite.tools import NS, ROOT, claim, dump, files_of, intact, opened, others, running

FIXTURE = ROOT / "tests" / "fixtures" / "schema_1.sql"
AGAIN = "run: .venv/bin/python scripts/make_schema_fixture.py"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outlast.db"


@pytest.fixture
def of_schema_1(path: Path) -> Path:
    """The kept file of schema 1."""
    connection = apsw.Connection(str(path))
    connection.execute(FIXTURE.read_text())
    connection.close()
    return path


def schema_of(*scripts: str) -> list[tuple[str, str]]:
    """The tables and indexes that SQL makes, without comments and layout."""
    connection = apsw.Connection(":memory:")
    for script in scripts:
        connection.execute(script)
    rows = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").fetchall()
    connection.close()
    return [(str(name), " ".join(str(sql).split())) for name, sql in rows]


def set_schema(path: Path, number: str, *, oldest: str = "1") -> None:
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE outlast_meta SET value = ? WHERE name = 'schema'", (number,))
    connection.execute("UPDATE outlast_meta SET value = ? WHERE name = 'oldest'", (oldest,))
    connection.close()


# ---- the kept file ------------------------------------------------------------------------------------------------


def test_kept_fixture_is_what_migration_1_makes():
    assert schema_of(FIXTURE.read_text()) == schema_of(migrating.migrations()[1]), (
        f"migration 1 was edited after tests/fixtures/schema_1.sql was made. Before 0.1.0: {AGAIN}; "
        "afterwards migration 1 must not change: append another one"
    )


def test_kept_fixture_has_every_status_and_every_kind(of_schema_1: Path):
    tables = dump(of_schema_1)
    connection = apsw.Connection(str(of_schema_1))
    found = {row[0] for row in connection.execute("SELECT status FROM outlast_execution")}
    connection.close()
    assert found == set(Status), f"{set(Status) - found} is missing; {AGAIN}"
    empty = [kind for kind in KINDS if not tables[f"outlast_{kind}"]]
    assert not empty, f"no record of {empty}; {AGAIN}"


def test_every_table_has_its_columns_in_the_order_of_the_fields(of_schema_1: Path):
    """Records are inserted without naming the columns. Only the number that is the store's own stands first."""
    connection = apsw.Connection(str(of_schema_1))
    for name, kind in KINDS.items():
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info(outlast_{name})")]
        fields = [field.name for field in msgspec.structs.fields(kind)]
        if kind.SEQUENCED:
            assert sorted(columns) == sorted(fields)
        else:
            assert columns == fields, name
    connection.close()


async def test_work_of_the_kept_file_goes_on(of_schema_1: Path):
    async with opened(of_schema_1) as store, running(store) as engine:
        page = await store.find(Query(namespace=NS))
        assert len(page.executions) == 14
        assert {item.record.key.values[1] for item in (await store.due(DueKind.LEASE, limit=10)).items} == {
            "active",
            "timed",
        }
        assert (await store.due(DueKind.OUTBOX, limit=10)).depth == 1
        [taken] = await claim(store, limit=1)
        assert taken.execution.id == "next"
        told = await engine.tell(NS, "next", Complete(change_id="done", epoch=1, output=b"1"))
        assert told.applied
        feed = await store.completions()
        assert [c.execution for c in feed.completions][-1] == "next"
        assert [c.seq for c in feed.completions] == list(range(1, 8))


# ---- many at once -------------------------------------------------------------------------------------------------


def at_once(what: str, path: Path, number: int = 10) -> list[list[str]]:
    with others(*[(what, path)] * number) as processes:
        for process in processes:
            assert process.line() == "here"
        for process in processes:
            process.tell("go")
        return [process.succeed().split() for process in processes]


@pytest.mark.slow
def test_ten_processes_migrate_an_empty_file_at_once(path: Path):
    assert at_once("migrate_and_open", path) == [["1", "True"]] * 10
    assert intact(path)
    tables = dump(path)
    assert len(tables["outlast_execution"]) == 10
    assert tables["outlast_meta"] == [("oldest", "1"), ("schema", "1")]
    connection = apsw.Connection(str(path))
    rows = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").fetchall()
    connection.close()
    assert [(n, " ".join(str(s).split())) for n, s in rows] == schema_of(migrating.migrations()[1])


@pytest.mark.slow
def test_ten_processes_open_a_file_of_schema_1_at_once(of_schema_1: Path):
    before = dump(of_schema_1)
    assert at_once("migrate_and_open", of_schema_1) == [["1", "True"]] * 10
    after = dump(of_schema_1)
    assert set(before["outlast_execution"]) < set(after["outlast_execution"])
    assert len(after["outlast_execution"]) == 14 + 10
    assert after["outlast_journal"] == before["outlast_journal"]


@pytest.mark.slow
def test_ten_processes_upgrade_a_file_of_schema_1_at_once(of_schema_1: Path):
    """By a migration 2 that only this test knows."""
    before = dump(of_schema_1)
    assert at_once("upgrade_and_open", of_schema_1) == [["2", "True"]] * 10
    after = dump(of_schema_1)
    assert after["outlast_meta"] == [("oldest", "1"), ("schema", "2")]
    assert after["outlast_new"] == []
    assert after["outlast_event"] == before["outlast_event"]
    assert len(after["outlast_execution"]) == 14 + 10
    assert intact(of_schema_1)


# ---- what is left alone -------------------------------------------------------------------------------------------


async def test_tables_of_the_user_are_left_alone(path: Path):
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT); INSERT INTO orders VALUES (7, 'tea')")
    connection.execute("CREATE INDEX orders_item ON orders (item)")
    connection.close()
    async with opened(path) as store, running(store):
        assert (await store.find(Query(namespace=NS))).executions == []
    tables = dump(path)
    assert tables["orders"] == [(7, "tea")]
    assert "outlast_execution" in tables


async def test_migrating_again_changes_nothing(of_schema_1: Path):
    store = SqliteStore(str(of_schema_1))
    assert await store.migrate() == 1
    before = {k: v for k, v in dump(of_schema_1).items() if k != "outlast_clock"}
    assert await store.migrate() == 1
    assert {k: v for k, v in dump(of_schema_1).items() if k != "outlast_clock"} == before


@pytest.mark.parametrize("point", ["migrate:begin", "migrate:commit"])
async def test_crash_in_a_migration_leaves_no_half_schema(path: Path, point: str):
    points = CrashPoints()
    points.crash_at(point)
    store = SqliteStore(str(path), points=points)
    with pytest.raises(Crash):
        await store.migrate()
    assert dump(path) == {}
    assert await SqliteStore(str(path)).migrate() == 1


# ---- the schema of the next release -------------------------------------------------------------------------------


def next_release() -> str:
    """Each table gets a column at its end, and there is a table and an index more."""
    tables = [f"ALTER TABLE outlast_{name} ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue';" for name in KINDS]
    more = "CREATE TABLE outlast_shelf (id TEXT PRIMARY KEY) STRICT;"
    index = "CREATE INDEX outlast_execution_colour ON outlast_execution (colour);"
    return "\n".join([*tables, more, index, "UPDATE outlast_meta SET value = '2' WHERE name = 'schema';"])


async def test_this_release_runs_on_the_schema_of_the_next(path: Path):
    """While a deploy rolls: the new one has migrated, the old one is still at work, and may even begin."""
    app = App(f"sqlite:///{path}")

    @app.step
    async def one() -> int:
        return 1

    @app.workflow
    async def two(number: int) -> int:
        await outlast.sleep("10ms")
        return await one() + await one() + number

    async with app:
        assert await two(1) == 3
        before = await two.options(delay="300ms").start(2)
        connection = apsw.Connection(str(path))
        connection.set_busy_timeout(10_000)
        connection.execute(f"BEGIN IMMEDIATE; {next_release()} COMMIT")
        connection.close()
        assert await two(3) == 5
        assert await before.result(timeout=20) == 4
    async with app:  # which migrates, and finds nothing to do
        assert await two(4) == 6
    assert ("schema", "2") in dump(path)["outlast_meta"]


async def test_what_the_next_release_keeps_in_its_columns_is_kept_by_this_one(path: Path):
    async with opened(path) as store:
        home = actors.partition(store, "a")
        await actors.put(store, home, Lane(partition=home, namespace=actors.NAMESPACE, lane="x", paused=False))
        held = await actors.running(store)
        connection = apsw.Connection(str(path))
        connection.set_busy_timeout(10_000)
        connection.execute(f"BEGIN IMMEDIATE; {next_release()} COMMIT")
        connection.execute("UPDATE outlast_execution SET colour = 'red'; UPDATE outlast_lane SET colour = 'red'")
        await actors.put(store, home, Lane(partition=home, namespace=actors.NAMESPACE, lane="x", paused=True))
        assert (await actors.tell(store, "a", actors.steps(held))).applied
        assert (await actors.tell(store, "a", actors.completes(held))).applied
        for table, expected in (("execution", "red"), ("lane", "red"), ("journal", "blue"), ("completion", "blue")):
            assert connection.execute(f"SELECT colour FROM outlast_{table}").fetchall() == [(expected,)], table
        assert connection.execute("SELECT paused FROM outlast_lane").fetchall() == [(1,)]
        connection.close()


# ---- schemas that do not fit ---------------------------------------------------------------------------------------


async def test_newer_schema_is_refused_and_nothing_is_written(of_schema_1: Path, tmp_path: Path):
    async with opened(of_schema_1):
        pass
    set_schema(of_schema_1, "7", oldest="2")
    before, files = dump(of_schema_1), files_of(tmp_path)
    store = SqliteStore(str(of_schema_1))
    with pytest.raises(SchemaTooNew, match="schema 7, this version of Outlast knows up to 1: upgrade") as caught:
        await store.open()
    assert (caught.value.found, caught.value.known) == (7, 1)
    with pytest.raises(SchemaTooNew):
        await store.migrate()
    assert dump(of_schema_1) == before
    assert files_of(tmp_path) == files


async def test_older_schema_asks_for_a_migration(of_schema_1: Path, monkeypatch: pytest.MonkeyPatch):
    ours = migrating.migrations()
    monkeypatch.setattr(migrating, "migrations", lambda: {**ours, 2: "CREATE TABLE outlast_new (a TEXT) STRICT;"})
    monkeypatch.setattr(migrating, "SCHEMA", 2)
    before = dump(of_schema_1)
    store = SqliteStore(str(of_schema_1))
    with pytest.raises(SchemaOutdated, match=r"has schema 1, this version of Outlast needs 2: run migrate"):
        await store.open()
    assert dump(of_schema_1) == before
    assert await store.migrate() == 2
    await store.open()
    await store.close()


async def test_missing_file_asks_for_a_migration_and_is_not_made(path: Path, tmp_path: Path):
    with pytest.raises(SchemaMissing, match=r"no file .*outlast\.db yet: run migrate"):
        await SqliteStore(str(path)).open()
    assert files_of(tmp_path) == {}


async def test_file_without_schema_asks_for_a_migration(path: Path):
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE orders (id)")
    connection.close()
    with pytest.raises(SchemaMissing, match="no Outlast schema in this file yet: run migrate"):
        await SqliteStore(str(path)).open()
    assert dump(path) == {"orders": []}


async def test_schema_number_that_is_none_is_corrupt(of_schema_1: Path):
    set_schema(of_schema_1, "one")
    with pytest.raises(StoreCorrupt, match="'one'"):
        await SqliteStore(str(of_schema_1)).open()
