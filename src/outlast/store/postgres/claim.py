"""Claim and renew, natively. Claim writes exactly what `decide(view, Claim)` gives; conformance compares them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import structs

from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.model.lease import Claimed, ClaimedExecution, ClaimRequest, Held, Renewed
from outlast.model.record import Record
from outlast.store.postgres.connection import Pool, Session
from outlast.store.postgres.functions import CALLS
from outlast.store.postgres.statements import TABLES, Table, statement
from outlast.store.postgres.time import StoreTime

_TABLE, _JOURNAL, _EVENT = TABLES[Execution.KIND], TABLES[JournalEntry.KIND], TABLES[Event.KIND]
_EXECUTION_AT = 7
"""Where in a row the execution begins, behind time, marks, input, beginning, journal and events."""
LOOKS, PAUSE_S = 5, 0.002
"""Work that was passed over because somebody had it locked is looked at again a moment later, so often."""


async def claim(pool: Pool, time: StoreTime, partitions: int, request: ClaimRequest) -> Claimed:
    renew = not time.lives(request.worker, request.lease_ttl_ms)
    first = request.first

    async def call(session: Session) -> tuple[Claimed, bool]:
        nonlocal first
        values = {
            "namespace": request.namespace,
            "lanes": list(dict.fromkeys(request.lanes)),
            "serves": [f"{workflow}|{version}" for workflow, version in sorted(request.serves)],
            "offers": sorted(request.capabilities),
            "worker": request.worker,
            "claim": request.claim_id,
            "leap": request.leap,
            "most": request.limit,
            "ttl_ms": request.lease_ttl_ms,
            "suspects": request.suspects,
            "partitions": partitions,
            "renew": renew,
            "first": first,
            **time.values(),
        }
        first = False  # whatever becomes of the answer: the server may have heard it
        rows = await session.rows(CALLS["claim"], values)
        now = time.saw(rows[0]["now_ms"])
        if renew:
            time.renewed(request.worker, now + request.lease_ttl_ms)
        taken: list[ClaimedExecution] = []
        for row in rows:
            if row["input"] is not None:
                taken.append(_taken(row))
        more = rows[0]["more"]
        return Claimed(now, taken, more, more and len(taken) < request.limit), bool(rows[0]["passed_over"])

    looks = 0
    while True:
        claimed, passed_over = await pool.call("claim", call)
        looks += 1
        if claimed.executions or not passed_over or looks == LOOKS:
            return claimed
        await asyncio.sleep(PAUSE_S)


def _taken(row: Any) -> ClaimedExecution:
    execution = _TABLE.record(row[_EXECUTION_AT:])
    assert isinstance(execution, Execution)
    taken = ClaimedExecution(execution, row["input"], row["began_at"])
    entries = _along(row["entries"], _JOURNAL)
    events = _along(row["events"], _EVENT) if execution.inbox else []
    if entries is None or events is None:
        return taken
    journal = [entry for entry in entries if isinstance(entry, JournalEntry)]
    came = sorted((event for event in events if isinstance(event, Event)), key=lambda event: event.seq)
    return structs.replace(taken, journal=journal, events=came)


def _along(rows: str | None, table: Table) -> list[Record] | None:
    """Records that came as JSON; None if they did not."""
    return None if rows is None else [table.record(table.plain(values)) for values in msgspec.json.decode(rows)]


async def renew(pool: Pool, time: StoreTime, partitions: int, worker: str, lease_ttl_ms: int) -> Renewed:
    async def call(session: Session) -> Renewed:
        values = {
            "worker": worker,
            "ttl_ms": lease_ttl_ms,
            "partitions": partitions,
            **time.values(),
        }
        rows = await session.rows(CALLS["renew"], values)
        now = time.saw(rows[0]["now_ms"])
        time.renewed(worker, now + lease_ttl_ms)
        return Renewed(now=now, held=[Held(*row[1:]) for row in rows if row["id"] is not None])

    return await pool.call("renew", call)


async def held(session: Session, worker: str, partitions: frozenset[int]) -> list[Held]:
    rows = await session.rows(statement("held"), {"worker": worker, "partitions": sorted(partitions)})
    return [Held(*row) for row in rows]
