"""Everything about one execution: what `outlast show` prints, and what a page of a dashboard needs."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any, TypeVar

from msgspec import Struct, structs

from outlast.client.info import Info, info_of, moment, moment_or_none
from outlast.client.views.documents import (
    AttemptDocument,
    EventDocument,
    FailureDocument,
    JournalDocument,
    attempt_document,
    event_document,
    failure_document,
    journal_document,
)
from outlast.client.views.explanation import Explanation, explain
from outlast.client.views.situation import situation_of
from outlast.client.views.timeline import Row, timeline
from outlast.client.views.words import plain
from outlast.model.attempt import Attempt
from outlast.model.event import CHILD, Event
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.record import Record, settled
from outlast.store.port import Store

PAGE = 1_000
R = TypeVar("R", bound=Record)


class Bounds(Struct, frozen=True, kw_only=True):
    """What ends the execution at the latest, how near its crashes are to that, and when it is purged."""

    max_attempts: int
    crashes_since_progress: int
    crash_cap: int
    life_crash_cap: int
    timeout_ms: int | None
    purge_at: datetime | None


class ExecutionView(Struct, frozen=True, kw_only=True):
    """`offered` are the versions of its workflow that live workers offer, and by whom."""

    execution: Info
    bounds: Bounds
    explanation: Explanation
    offered: dict[str, list[str]]
    workers_alive: list[str]
    attempts: tuple[AttemptDocument, ...]
    journal: tuple[JournalDocument, ...]
    events: tuple[EventDocument, ...]
    unreceived: dict[str, int]
    """The events that nobody will receive any more, by name."""
    timeline: tuple[Row, ...]
    input: Any
    progress: Any
    result: Any
    failure: FailureDocument | None
    now: datetime
    """The store's time."""


async def execution_view(store: Store, e: Execution) -> ExecutionView:
    keys = [
        payload_key(e.namespace, e.id, e.journal_generation, Role.INPUT),
        payload_key(e.namespace, e.id, e.generation, Role.OUTPUT),
        payload_key(e.namespace, e.id, e.generation, Role.FAILURE),
        payload_key(e.namespace, e.id, e.generation, Role.PROGRESS),
    ]
    given, output, failed, progress = [
        record.value if isinstance(record, Payload) else None for record in await store.load(keys)
    ]
    journal = await _all(store, JournalEntry, (e.namespace, e.id, e.journal_generation))
    journal.sort(key=lambda entry: entry.position)
    attempts = await _all(store, Attempt, (e.namespace, e.id))
    events = [event for event in await _all(store, Event, (e.namespace, e.id)) if event.name != CHILD]
    s = await situation_of(store, e)
    return ExecutionView(
        execution=structs.replace(info_of(e), reason=s.offers.reason(e)),
        bounds=Bounds(
            max_attempts=e.retry_policy.max_attempts,
            crashes_since_progress=e.crashes_since_progress,
            crash_cap=e.crash_cap,
            life_crash_cap=e.life_crash_cap,
            timeout_ms=e.timeout_ms,
            purge_at=moment_or_none(settled(e.purge_at)),
        ),
        explanation=explain(e, s),
        offered=s.offers.of_workflow(e),
        workers_alive=s.alive,
        attempts=tuple(attempt_document(attempt) for attempt in attempts),
        journal=tuple(journal_document(entry) for entry in journal),
        events=tuple(event_document(event) for event in events),
        unreceived=Counter(event.name for event in events if e.status.terminal and event.is_unreceived),
        timeline=timeline(e, attempts, journal, events, s.now),
        input=plain(given),
        progress=plain(progress),
        result=plain(output),
        failure=failure_document(failed),
        now=moment(s.now),
    )


async def _all(store: Store, kind: type[R], prefix: tuple[str | int, ...]) -> list[R]:
    found: list[R] = []
    while True:
        page = await store.scan(kind.KIND, prefix, after=found[-1].key if found else None, limit=PAGE)
        found += [record for record in page if isinstance(record, kind)]
        if len(page) < PAGE:
            return found
