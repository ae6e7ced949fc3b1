"""`outlast.start`, the SQL function: for every option it takes, it writes what the machine decides of that start."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import msgspec
import pytest

from outlast import limits
from outlast.app import App
from outlast.authoring.options import Options
from outlast.authoring.retry import Retry
from outlast.codec.values import Values
from outlast.errors import InvalidInput
from outlast.machine import Changes, View, decide, facts
from outlast.machine.changes import Insert, Put, inserted
from outlast.model.execution import Execution, execution_key
from outlast.model.partition import partition_of
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.record import settled
from outlast.model.retry import RetryPolicy
from outlast.model.tag import Tag
from outlast.store.postgres import PostgresStore
from outlast.store.postgres.statements import statement
from tests import postgres


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = PostgresStore(await postgres.empty())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def sql(store: PostgresStore) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres.server().url_of(postgres.RECYCLED))
    yield connection
    await connection.close()


async def start(sql: Any, *given: str) -> str:
    return await sql.fetchval(f"SELECT outlast.start({', '.join(given)})")


def fact(**options: Any) -> facts.Start:
    plain = {"change_id": "", "namespace": "default", "id": "a", "workflow": "checkout", "version": "1"}
    arguments = options.pop("arguments", {})
    data = Values()._canonical.encode(arguments)
    digest = Values().digest(arguments, data)
    return facts.Start(**{**plain, "input": data, "input_digest": digest, **options})


CASES: dict[str, tuple[list[str], facts.Start]] = {
    "only a workflow": (["id => 'a'"], fact()),
    "input": (
        ["id => 'a'", """input => '{"b": [1, 2.5, null, true, "é\\"\\n"], "a": {"z": -1, "yy": {}, "y": []}}'"""],
        fact(arguments={"b": [1, 2.5, None, True, 'é"\n'], "a": {"z": -1, "yy": {}, "y": []}}),
    ),
    "id": (["id => 'an id with ünïcödé'"], fact(id="an id with ünïcödé")),
    "namespace": (["id => 'a'", "namespace => 'shop é'"], fact(namespace="shop é")),
    "version": (["id => 'a'", "version => 'v2'"], fact(version="v2")),
    "lane": (["id => 'a'", "lane => 'slow'"], fact(lane="slow")),
    "requires": (["id => 'a'", "requires => '{gpu,arm,gpu}'"], fact(requires=("arm", "gpu"))),
    "priority": (["id => 'a'", "priority => -3"], fact(priority=-3)),
    "delay": (["id => 'a'", "delay => '1 hour 1.5 seconds'"], fact(delay_ms=3_601_500)),
    "deadline": (["id => 'a'", "deadline => '2 days'"], fact(deadline_ms=172_800_000)),
    "timeout": (["id => 'a'", "timeout => '10 seconds'"], fact(timeout_ms=10_000)),
    "retry": (
        ["id => 'a'", """retry => '{"max_attempts": 5, "initial_ms": 10, "backoff": 1.5, "jitter": 0}'"""],
        fact(retry=RetryPolicy(max_attempts=5, initial_ms=10, backoff=1.5, jitter=0.0)),
    ),
    "retry after an hour": (
        ["id => 'a'", """retry => '{"initial_ms": 3600000}'"""],
        fact(retry=Retry(max_attempts=3, initial="1h").policy()),
    ),
    "retry as it is": (["id => 'a'", "retry => '{}'"], fact(retry=RetryPolicy(max_attempts=3))),
    "retention": (["id => 'a'", "retention => '0'"], fact(retention_ms=0)),
    "tags": (
        ["id => 'a'", """tags => '{"customer": "ann", "bb": "2", "a": "é"}'"""],
        fact(tags={"customer": "ann", "bb": "2", "a": "é"}),
    ),
    "if_exists": (["id => 'a'", "if_exists => 'error'"], fact(if_exists="error")),
    "all at once": (
        ["id => 'a'", "lane => 'slow'", "delay => '5s'", "deadline => '9s'", 'tags => \'{"a": "b"}\'', "priority => 9"],
        fact(lane="slow", delay_ms=5_000, deadline_ms=9_000, tags={"a": "b"}, priority=9),
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_the_rows_are_those_of_a_start(store: PostgresStore, sql: Any, case: str):
    given, start_fact = CASES[case]
    assert await start(sql, "'checkout'", *given) == start_fact.id
    [execution] = await store.load([execution_key(start_fact.namespace, start_fact.id)])
    assert isinstance(execution, Execution)
    now = settled(execution.created_at)
    assert now is not None
    # What a start draws at random is taken from what was drawn.
    drawn = msgspec.structs.replace(start_fact, change_id=execution.change_id, first_epoch=execution.epoch)
    partition = partition_of(drawn.namespace, drawn.id, store.partitions)
    changes = decide(View(partition, None), drawn, 0)
    assert isinstance(changes, Changes)
    expected = [inserted(w.record, now) for w in changes.writes if isinstance(w, Insert | Put)]
    assert len(expected) == len(changes.writes)
    found = await store.load([record.key for record in expected])
    assert found == expected
    assert await sql.fetchval("SELECT partition FROM outlast.execution") == partition
    everything = [len(await sql.fetch(f"SELECT 1 FROM outlast.{kind.KIND}")) for kind in (Execution, Payload, Tag)]
    assert sum(everything) == len(expected)


async def test_every_argument_is_a_case_and_every_option_of_a_start_is_an_argument_or_refused(sql: Any):
    arguments = await sql.fetchval("SELECT proargnames FROM pg_proc WHERE oid = 'outlast.start'::regproc")
    assert set(arguments) == {"workflow", *CASES} - {
        "only a workflow",
        "retry after an hour",
        "retry as it is",
        "all at once",
    }
    assert set(Options.__annotations__) - set(arguments) == {"send", "detached", "parent_close"}


async def test_an_id_and_an_epoch_of_its_own(store: PostgresStore, sql: Any):
    ids = {await start(sql, "'checkout'") for _ in range(5)}
    epochs = {row[0] for row in await sql.fetch("SELECT epoch FROM outlast.execution")}
    assert len(ids) == len(epochs) == 5
    assert all(0 <= epoch < limits.FIRST_EPOCHS for epoch in epochs)


@pytest.mark.parametrize("partitions", [1, 7, 64, 4_096])
async def test_an_id_lives_where_every_process_looks_for_it(sql: Any, partitions: int):
    await sql.execute("BEGIN")
    await sql.execute("UPDATE outlast.meta SET value = $1 WHERE name = 'partitions'", str(partitions))
    for number in range(50):
        await start(sql, "'w'", f"id => 'x{number}'", "namespace => 'ns'")
    rows = await sql.fetch("SELECT id, partition FROM outlast.execution")
    assert [row["partition"] for row in rows] == [partition_of("ns", row["id"], partitions) for row in rows]
    await sql.execute("ROLLBACK")


BAD = {
    "NULL": {"workflow": ""},
    "''": {"workflow": ""},
    "'a b'": {"workflow": "a b"},
    "'a|b'": {"workflow": "a|b"},
    "'w', id => 'a/b'": {"id": "a/b"},
    "'w', id => ''": {"id": ""},
    "'w', id => ' a'": {"id": " a"},
    "'w', id => E'a\\nb'": {"id": "a\nb"},
    "'w', id => E'a\\u00a0b'": {"id": "a\u00a0b"},
    "'w', id => E'a\\u180eb'": {"id": "a\u180eb"},
    "'w', id => E'a\\u0378b'": {"id": "a\u0378b"},
    "'w', id => E'a\\U000E0001'": {"id": "a\U000e0001"},
    "'w', id => E'a\\U0010FFFF'": {"id": "a\U0010ffff"},
    "'w', id => repeat('x', 256)": {"id": "x" * 256},
    "'w', namespace => ''": {"namespace": ""},
    "'w', version => 'a,b'": {"version": "a,b"},
    "'w', lane => 'a b'": {"lane": "a b"},
    "'w', requires => '{\"a b\"}'": {"requires": ("a b",)},
    "'w', requires => (SELECT array_agg(n::text) FROM generate_series(1, 17) n)": {
        "requires": tuple(map(str, range(17)))
    },
    "'w', priority => 1000001": {"priority": 1_000_001},
    "'w', delay => '-1s'": {"delay_ms": -1_000},
    "'w', delay => '101 years'": {"delay_ms": 101 * 366 * 86_400_000},
    "'w', deadline => '-1s'": {"deadline_ms": -1_000},
    "'w', tags => '{\"\": \"x\"}'": {"tags": {"": "x"}},
    "'w', tags => jsonb_build_object('a', repeat('x', 256))": {"tags": {"a": "x" * 256}},
    "'w', input => jsonb_build_object('a', repeat('x', 4194304))": {"input": b"x" * 4_194_305},
    "'w', if_exists => 'other'": {"if_exists": "other"},
}


async def test_characters_that_python_refuses_in_a_name_it_refuses(sql: Any):
    """It knows the characters of Python 3.11; a later one knows more of them."""
    refused = await sql.fetchval(
        "SELECT array_agg(c) FROM generate_series(1, 1114111) AS c WHERE c NOT BETWEEN 55296 AND 57343 AND chr(c) ~ "
        + statement("unprintable")
    )
    characters = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    unprintable = {c for c in characters if not chr(c).isprintable()}
    assert unprintable <= set(refused)
    if unicodedata.unidata_version == "14.0.0":
        assert unprintable == set(refused)


@pytest.mark.parametrize("given", BAD)
async def test_what_a_start_refuses_it_refuses(sql: Any, given: str):
    with pytest.raises(InvalidInput):
        fact(**BAD[given])
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await start(sql, given)
    assert await sql.fetchval("SELECT count(*) FROM outlast.execution") == 0


@pytest.mark.parametrize(
    "given",
    [
        "'outlast.map'",
        "'w', if_exists => 'restart'",
        "'w', deadline => '0'",
        "'w', input => '[1]'",
        "'w', tags => '{\"a\": 1}'",
        "'w', lane => NULL",
        "'w', retry => '{\"max_attempts\": 0}'",
        "'w', retry => '{\"backoff\": 0.5}'",
        "'w', retry => '{\"fatal\": 1}'",
        "'w', retry => '{\"max_attempts\": 2.5}'",
        "'w', retry => '{\"initial_ms\": 0.5}'",
        "'w', requires => '{NULL}'",
        "'w', retry => '{\"jitter\": \"much\"}'",
        "'w', retry => '[1]'",
        "'w', tags => '[1]'",
    ],
)
async def test_and_so_it_does_with_what_it_cannot_honour(sql: Any, given: str):
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await start(sql, given)


@pytest.mark.parametrize("what", ["delay", "deadline", "timeout", "retention"])
@pytest.mark.parametrize("endless", ["infinity", "-infinity"])
async def test_a_time_without_end_is_refused(sql: Any, what: str, endless: str):
    with pytest.raises(asyncpg.DataError):  # before PostgreSQL 17 there is no such interval
        await start(sql, f"'w', {what} => '{endless}'")


@pytest.mark.parametrize("setting", ["standard_conforming_strings = off", "bytea_output = escape", "search_path = ''"])
async def test_the_settings_of_whoever_calls_it_do_not_matter(sql: Any, setting: str):
    await sql.execute(f"SET {setting}")
    assert await start(sql, """'w', '{"a": "é"}', retry => '{}', tags => '{"a": "b"}', id => 'x'""") == "x"
    await sql.execute("RESET ALL")
    assert bytes(await sql.fetchval("SELECT value FROM outlast.payload")) == '{"a":"é"}'.encode()


async def test_whole_numbers_may_be_written_with_a_fraction(sql: Any):
    await start(sql, "'w', retry => '{\"max_attempts\": 2.0, \"initial_ms\": 1e2}'")
    retry = await sql.fetchval("SELECT retry::json FROM outlast.execution")
    assert (msgspec.json.decode(retry)["max_attempts"], msgspec.json.decode(retry)["initial_ms"]) == (2, 100)


async def test_the_same_again_is_the_same_and_anything_else_a_conflict(sql: Any):
    for _ in range(2):
        assert await start(sql, "'w'", """'{"a": 1, "b": 2}'""", "'x'") == "x"
    assert await start(sql, "'w'", """'{"b":2,"a":1}'""", "'x'") == "x"
    for other in (["'w'", "'{}'", "'x'"], ["'v'", """'{"a": 1, "b": 2}'""", "'x'"]):
        with pytest.raises(asyncpg.PostgresError, match=r'"x" exists with other arguments and is ready') as caught:
            await start(sql, *other)
        assert getattr(caught.value, "sqlstate", None) == "OL002"
    with pytest.raises(asyncpg.PostgresError, match=r'"x" exists and is ready'):
        await start(sql, "'w'", """'{"a": 1, "b": 2}'""", "'x'", "if_exists => 'error'")
    assert await sql.fetchval("SELECT count(*) FROM outlast.execution") == 1


async def test_python_runs_what_sql_started_and_knows_it_as_the_same(sql: Any):
    app = App(postgres.server().url_of(postgres.RECYCLED))

    @app.workflow
    async def checkout(order: dict[str, Any], count: int) -> str:
        return f"{order['id']} {count}"

    async with app:
        await sql.execute("""SELECT outlast.start('checkout', '{"order": {"id": 42}, "count": 3}', 'order-42')""")
        assert await checkout.execution("order-42").result(timeout=10) == "42 3"
        assert await (await checkout.options(id="order-42").start({"id": 42}, 3)).result(timeout=10) == "42 3"


async def test_its_payload_is_the_text_that_outlast_writes(store: PostgresStore, sql: Any):
    await start(sql, "'w'", """'{"b": "\\u00e9", "a": [1, {"d": 1, "c": 2}]}'""", "'x'")
    [payload] = await store.load([payload_key("default", "x", 1, Role.INPUT)])
    assert isinstance(payload, Payload)
    assert payload.value == '{"a":[1,{"c":2,"d":1}],"b":"é"}'.encode()
