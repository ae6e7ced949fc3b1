"""Files with a long history, built in bulk and kept in `.cache`: by the front door a million executions take hours.

The rows are not invented here: each is what the machine makes of a start, a claim and a completion, multiplied in SQL
with ids and times of its own. Ids are scattered, the worst case for a page cache. There are no journal entries, as
neither claim nor due reads any.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import apsw
import msgspec

from benchmarks.load import NAMESPACE, OUTPUT, WORKER
from benchmarks.real import NOTHING, start
from benchmarks.settings import CACHE, workplace
from outlast.machine import facts
from outlast.machine.changes import Changes, Insert, Patch, View, execution_after, inserted, patched
from outlast.machine.decide import decide
from outlast.machine.invariants import check
from outlast.model.execution import Execution
from outlast.model.outbox import Delivery
from outlast.model.record import Record
from outlast.model.session import Session
from outlast.model.status import Reason, Status
from outlast.store.sqlite import SqliteStore
from outlast.store.sqlite.statements import TABLES, row_of

DUE = 20
"""How many things of each kind are due, in every file: the same work for both."""

YEAR_MS = 365 * 24 * 3_600 * 1_000
_SCATTERED = "printf('{prefix}-%08x', (n * 2654435761) & 4294967295)"
_NUMBERS = "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?)"


def built(finished: int, ready: int) -> Path:
    """The file with this much history, from the cache if it was built before by the same code and schema."""
    path = CACHE / f"history-{finished}-{ready}-{_fingerprint()}.db"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        for stale in CACHE.glob(f"history-{finished}-{ready}-*"):
            stale.unlink()
        began = time.perf_counter()
        with workplace() as folder:
            unfinished = folder / path.name
            asyncio.run(_migrate(unfinished))
            _fill(unfinished, finished, ready)
            unfinished.rename(path)
        print(f"  built {finished:,} finished and {ready:,} ready executions in {time.perf_counter() - began:.1f} s")
    return path


def _fingerprint() -> str:
    schema = "".join(
        sorted(file.read_text() for file in files("outlast.store.sqlite").joinpath("migrations").iterdir())
    )
    return hashlib.sha256((schema + Path(__file__).read_text()).encode()).hexdigest()[:12]


async def _migrate(path: Path) -> None:
    store = SqliteStore(str(path))
    await store.migrate()
    await store.close()


def _fill(path: Path, finished: int, ready: int) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -400000")
    indexes = list(connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"))
    for name, _ in indexes:
        connection.execute(f"DROP INDEX {name}")
    now = time.time_ns() // 1_000_000
    long_ago, later = now - YEAR_MS, now + 10 * YEAR_MS
    for record in life(long_ago, later):
        _multiply(connection, record, finished, prefix="old")
    for record in waiting(long_ago, later):
        _multiply(connection, record, ready, prefix="new")
    for record in _due(long_ago, later):
        connection.execute(TABLES[record.KIND].insert, row_of(record))
    for _, sql in indexes:
        connection.execute(sql)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


def _multiply(connection: apsw.Connection, record: Record, count: int, *, prefix: str) -> None:
    """The record `count` times; only its id and the times of its creation, readiness and end differ."""
    table = TABLES[record.KIND]
    values = dict(zip(table.fields, row_of(record), strict=True))
    if record.SEQUENCED:
        del values["seq"]
    columns: list[str] = []
    constants: list[object] = [count]
    for name, value in values.items():
        if name == ("id" if record.KIND == Execution.KIND else "execution"):
            columns.append(_SCATTERED.format(prefix=prefix))
        elif name in ("created_at", "finished_at", "ready_at") and value is not None:
            columns.append("? + n")
            constants.append(value)
        else:
            columns.append("?")
            constants.append(value)
    connection.execute(
        f"INSERT INTO {table.name} ({', '.join(values)}) {_NUMBERS} SELECT {', '.join(columns)} FROM number ORDER BY 2",
        constants,
    )


# ---- what the rows are ----------------------------------------------------------------------------------------------


def waiting(at: int, later: int) -> list[Record]:
    """A start's records. Each has a deadline far away, so that the index of deadlines is as long as it gets."""
    return _records(NOTHING, msgspec.structs.replace(start("new", "bulk"), deadline_ms=later - at), at)


def life(at: int, later: int) -> list[Record]:
    """The records of an execution that ended well, kept for years."""
    fact = msgspec.structs.replace(start("old", "bulk"), retention_ms=later - at)
    records: dict[object, Record] = {}
    view = NOTHING
    for each in (
        fact,
        facts.Claim(change_id="bulk", worker=WORKER),
        facts.Complete(change_id="bulk", epoch=1, output=OUTPUT),
    ):
        answer = _answer(view, each, at)
        for write in answer.writes:
            if isinstance(write, Insert):
                records[write.record.key] = inserted(write.record, at)
            elif isinstance(write, Patch):
                records[write.key] = patched(records[write.key], write.fields, at)
        view = View(0, execution_after(view, answer, at))
    return list(records.values())


def _due(at: int, later: int) -> Iterator[Record]:
    """A few of everything that a reconciler finds."""
    yield Session(partition=0, worker="alive", expires_at=later, started_at=at)
    yield Session(partition=0, worker="dead", expires_at=at, started_at=at)
    [ready] = [record for record in waiting(at, later) if isinstance(record, Execution)]
    [ended] = [record for record in life(at, later) if isinstance(record, Execution)]
    waits = Reason.event("plan")
    suspended = msgspec.structs.replace(
        ready, status=Status.SUSPENDED, reason=waits, waits=waits, ready_at=None, attempt_open=True, epoch=1
    )
    active = msgspec.structs.replace(
        ready, status=Status.ACTIVE, ready_at=None, attempt_open=True, epoch=1, claim_id="bulk", claimed_at=at
    )
    changed = {
        "timer": (suspended, {"wake_at": at}),
        "deadline": (suspended, {"deadline_at": at}),
        "timeout": (active, {"worker": "alive", "attempt_deadline_at": at}),
        "lease": (active, {"worker": "dead"}),
        "retention": (ended, {"purge_at": at}),
    }
    for number in range(DUE):
        for kind, (execution, fields) in changed.items():
            yield check(msgspec.structs.replace(execution, id=f"due-{kind}-{number:04}", **fields))
        yield Delivery(
            partition=0,
            id=f"due-{number}",
            namespace=NAMESPACE,
            target="due-timer-0000",
            fact=facts.encode_fact(facts.Hold(change_id="bulk")),
            due_at=at,
            created_at=at,
            change_id="bulk",
        )
        yield Session(partition=0, worker=f"gone-{number}", expires_at=at, started_at=at)


def _records(view: View, fact: facts.AnyFact, at: int) -> list[Record]:
    return [inserted(write.record, at) for write in _answer(view, fact, at).writes if isinstance(write, Insert)]


def _answer(view: View, fact: facts.AnyFact, at: int) -> Changes:
    answer = decide(view, fact, at)
    assert isinstance(answer, Changes), answer
    return answer
