"""Write tests/fixtures/schema_1.sql: a file of schema 1 as text, with executions in every status and all that hangs on
them. Migrations are tested from it, so it is kept as it was made.

    .venv/bin/python scripts/make_schema_fixture.py

Until 0.1.0 migration 1 may be edited, and then this is run again. Afterwards a new schema gets a fixture of its own.
The clock and the ids are fixed: the same code writes the same text.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import apsw

from outlast.machine import facts
from outlast.machine.changes import Changes, Insert, Put
from outlast.model.flow import Dependency, Edge, Flow, FlowState, Member, Summary
from outlast.model.lane import Lane
from outlast.model.record import Now, Record
from outlast.model.retry import RetryPolicy
from outlast.runtime.engine import Engine
from outlast.store.port import ClaimRequest
from outlast.store.sqlite import SqliteStore
from outlast.testing import ManualClock

TARGET = Path(__file__).parents[1] / "tests" / "fixtures" / "schema_1.sql"
NS = "default"


class Story:
    """One engine on one file, and short words for what happens on it."""

    def __init__(self, store: SqliteStore, clock: ManualClock) -> None:
        self.store, self.clock, self.engine = store, clock, Engine(store)
        self._changes = 0

    def change_id(self) -> str:
        self._changes += 1
        return f"change-{self._changes:04}"

    async def tell(self, execution_id: str, fact: type[facts.Fact], **fields: object) -> None:
        self.clock.advance("1s")
        made = fact(change_id=self.change_id(), **fields)
        told = await self.engine.tell(NS, execution_id, made)  # type: ignore[arg-type]
        assert told.applied, (execution_id, made, told)

    async def start(self, execution_id: str, **options: object) -> None:
        given = {"workflow": "checkout", "version": "1", "input": b'["EUR"]', "input_digest": f"digest-{execution_id}"}
        await self.tell(execution_id, facts.Start, namespace=NS, id=execution_id, **{**given, **options})

    async def claim(self, worker: str = "worker-1", limit: int = 100) -> None:
        self.clock.advance("1s")
        request = ClaimRequest(
            namespace=NS,
            lanes=("default",),
            serves=frozenset({("checkout", "1")}),
            worker=worker,
            claim_id=self.change_id(),
            limit=limit,
            lease_ttl_ms=10_000,
        )
        await self.store.claim(request)

    async def step(self, execution_id: str, occurrence: int, name: str = "charge") -> None:
        fields = {"scope": "", "name": name, "occurrence": occurrence, "op": "step", "outcome": "succeeded"}
        await self.tell(execution_id, facts.StepRecorded, epoch=1, value=b'{"paid":true}', **fields)

    async def keep(self, *records: Record) -> None:
        """Records of operators and flows, which no fact of today writes."""
        writes = tuple(Put(r) if isinstance(r, Lane) else Insert(r) for r in records)
        await self.store.commit([Changes(id=self.change_id(), partition=0, anchors=(), writes=writes)])


async def tell_it(story: Story) -> None:
    await ended_ones(story)
    await open_ones(story)
    await gates(story)


async def ended_ones(story: Story) -> None:
    for name in ("succeeded", "failed", "cancelled", "suspended", "active", "retrying", "timed"):
        retry = RetryPolicy(max_attempts=3, jitter=0.0)
        timeout_ms = 60_000 if name == "timed" else None
        await story.start(name, tags={"customer": "ada", "state": name}, retry=retry, timeout_ms=timeout_ms)
    await story.claim()
    for occurrence in (1, 2, 3):
        await story.step("succeeded", occurrence)
    await story.store.append(NS, "succeeded", epoch=1, change_id=story.change_id(), frames=[b"half", b"done"])
    await story.tell("succeeded", facts.Complete, epoch=1, output=b'{"receipt":7}')
    await story.tell("failed", facts.Fail, epoch=1, failure=b'{"type":"CardDeclined"}', retryable=False)
    await story.tell("cancelled", facts.CancelRequested, reason="changed her mind")
    await story.tell("cancelled", facts.Cancelled, epoch=1)
    await story.step("suspended", 1)
    wake_at = story.clock.now_ms() + 86_400_000
    waits = ("event:plan", "deferred:approval")
    await story.tell("suspended", facts.Suspend, epoch=1, inbox=0, reason="event:plan", waits=waits, wake_at=wake_at)
    await story.step("active", 1)
    await story.tell("active", facts.EventSent, name="plan", value=b'"gold"', dedup="once")
    await story.tell("active", facts.DeferredResolved, name="approval", value=b"true")
    await story.tell("retrying", facts.Fail, epoch=1, failure=b'{"type":"Timeout"}')
    await story.start("expired", deadline_ms=500, retention_ms=3_600_000)
    await story.tell("expired", facts.DeadlinePassed)
    await story.start("skipped", after_dependencies=True)
    await story.tell("skipped", facts.Skip)


async def open_ones(story: Story) -> None:
    await story.start("parent/child", parent="parent")
    await story.tell("parent/child", facts.CancelRequested)  # the parent's word is owed: an outbox record
    await story.start("delayed", delay_ms=3_600_000)
    await story.start("held")
    await story.tell("held", facts.Hold)
    await story.start("ready", priority=5, requires=("gpu",), lane="gpu", tags={"customer": "grace"})
    await story.start("next", deadline_ms=86_400_000)


async def gates(story: Story) -> None:
    await story.keep(
        Lane(partition=0, namespace=NS, lane="slow", paused=True),
        Flow(namespace=NS, id="nightly", state=FlowState.OPEN, created_at=Now(), change_id="flow"),
        Summary(namespace=NS, id="nightly", members=1, change_id="flow"),
        Member(namespace=NS, execution="held", flow="nightly", name="held", change_id="flow"),
        Dependency(namespace=NS, execution="succeeded", downstream="held", change_id="flow"),
        Edge(
            namespace=NS, execution="held", upstream="succeeded", answer="satisfied", answered_at=Now(), change_id="e"
        ),
    )


def text_of(path: Path) -> str:
    """The file as SQL: its tables and indexes, then every row, in an order of its own."""
    connection = apsw.Connection(str(path))
    lines = [
        "-- A file of schema 1, kept for the tests of migrations. Made by scripts/make_schema_fixture.py; not edited.",
        "BEGIN;",
    ]
    schema = "SELECT name, type, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type = 'index', rowid"
    objects = [tuple(map(str, row)) for row in connection.execute(schema)]
    lines += [f"{sql};" for name, _, sql in objects if not name.startswith("sqlite_")]
    for table in [name for name, kind, _ in objects if kind == "table"]:
        if table == "sqlite_sequence":
            lines.append("DELETE FROM sqlite_sequence;")
        for row in sorted(connection.execute(f"SELECT * FROM {table}"), key=repr):  # noqa: S608
            values = ", ".join(apsw.format_sql_value(value) for value in row)  # type: ignore[arg-type]
            lines.append(f"INSERT INTO {table} VALUES ({values});")  # noqa: S608
    connection.close()
    return "\n".join([*lines, "COMMIT;", ""])


async def make(path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(str(path), clock=clock)
    await store.migrate()
    await store.open()
    story = Story(store, clock)
    await tell_it(story)
    await story.engine.close()
    await store.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schema_1.db"
        asyncio.run(make(path))
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        TARGET.write_text(text_of(path))
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
