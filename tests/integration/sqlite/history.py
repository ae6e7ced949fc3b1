"""Files with a long history, by bulk SQL: what the machine writes for one execution, with other ids and times."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw

from outlast.machine import facts
from outlast.machine.changes import Changes, Insert
from outlast.model.flow import Flow, FlowState, Member, Summary
from outlast.model.record import Now
from outlast.runtime.engine import Engine
from outlast.store.sqlite import SqliteStore
from outlast.testing import ManualClock
from tests.integration.sqlite.tools import NS, claim, start

NOW_MS = 1_700_000_000_000
YEAR_MS = 365 * 86_400_000
TAGS = {"customer": "ada", "kind": "order"}
DUE = 20
"""How many things of each kind are due, whatever the history."""

_IDS = "WITH RECURSIVE ids (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM ids WHERE n < ?)"


def build(path: Path, *, finished: int, ready: int, bare: bool = False) -> None:
    """`finished` ended executions and `ready` ones, beside a few of each kind that is due.

    `bare` leaves out what belongs to the ended ones, which neither claim nor due reads: a million then takes half a
    minute instead of one and a half.
    """
    asyncio.run(_samples(path))
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -400000")
    connection.execute("PRAGMA temp_store = MEMORY; PRAGMA threads = 2")
    indexes = connection.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
    ).fetchall()
    for name, _ in indexes:
        connection.execute(f"DROP INDEX {name}")
    _multiply(connection, "outlast_execution", "id", "finished", finished)
    _multiply(connection, "outlast_execution", "id", "ready", ready)
    for table in ("outlast_payload", "outlast_tag", "outlast_attempt", "outlast_completion"):
        if not bare:
            _multiply(connection, table, "execution", "finished", finished)
        _multiply(connection, table, "execution", "ready", ready)
    for _, sql in indexes:
        connection.execute(str(sql))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


async def _samples(path: Path) -> None:
    store = SqliteStore(str(path), clock=ManualClock(NOW_MS))
    await store.migrate()
    await store.open()
    engine = Engine(store)
    await engine.tell(NS, "finished", start("finished", tags=TAGS, retention_ms=YEAR_MS, deadline_ms=YEAR_MS))
    await claim(store)
    await engine.tell(NS, "finished", facts.Complete(change_id="done", epoch=1, output=b"1"))
    for n in range(DUE):
        await _due(engine, n)
    await engine.tell(NS, "ready", start("ready", tags=TAGS, deadline_ms=YEAR_MS))
    await engine.close()
    await store.close()


async def _due(engine: Engine, n: int) -> None:
    """One thing of each kind that will be due as soon as the clock moves on."""
    await engine.tell(NS, f"delayed-{n}", start(f"delayed-{n}", delay_ms=1 + n))
    await engine.tell(NS, f"late-{n}", start(f"late-{n}", deadline_ms=1 + n, lane="elsewhere"))
    await engine.tell(NS, f"purged-{n}", start(f"purged-{n}", retention_ms=1 + n))
    await engine.tell(NS, f"purged-{n}", facts.CancelRequested(change_id=f"cancel-{n}"))
    await engine.tell(NS, f"parent/{n}", start(f"parent/{n}", parent="parent"))
    await engine.tell(NS, f"parent/{n}", facts.CancelRequested(change_id=f"cancel-child-{n}"))
    await engine.tell(NS, f"slow-{n}", start(f"slow-{n}", timeout_ms=1 + n, tags=TAGS))
    await claim(engine.store, f"claim-{n}", worker=f"dead-{n}")
    await engine.store.renew(f"idle-{n}", lease_ttl_ms=1_000)
    flow_id, soon = f"flow-{n}", Now(1 + n)
    flow = Flow(
        namespace=NS,
        id=flow_id,
        state=FlowState.STOPPED,
        created_at=Now(),
        cancel_at=soon,
        purge_at=soon,
        change_id=flow_id,
    )
    summary = Summary(namespace=NS, id=flow_id, check_at=soon, depend_at=soon, change_id=flow_id)
    member = Member(namespace=NS, execution=f"{flow_id}/a", flow=flow_id, name="a", siblings_at=soon, change_id=flow_id)
    writes = (Insert(flow), Insert(summary), Insert(member))
    await engine.commit(Changes(id=flow_id, partition=0, anchors=(flow.key,), writes=writes))


def _multiply(connection: apsw.Connection, table: str, key: str, sample: str, count: int) -> None:
    """Copies of one row; each with an id and times of its own."""
    columns = [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")]
    values = {column: f"s.{column}" for column in columns}
    values[key] = f"printf('{sample}-%09d', n)"
    if "seq" in values:
        values["seq"] = "NULL"
    if "workflow" in values and sample == "finished":
        values["workflow"] = "CASE n % 3 WHEN 0 THEN s.workflow ELSE 'other' END"
    if table == "outlast_tag":
        values["value"] = "iif(s.tag = 'customer', s.value || (n % 100), s.value)"
    for column in ("created_at", "finished_at", "ready_at", "purge_at"):
        if column in values:
            values[column] = f"s.{column} + n"
    chosen = ", ".join(values.values())
    connection.execute(
        f"{_IDS} INSERT INTO {table} ({', '.join(columns)}) SELECT {chosen} FROM ids, {table} AS s "
        f"WHERE s.namespace = ? AND s.{key} = ? AND n <= ?",
        (count, NS, sample, count),
    )
