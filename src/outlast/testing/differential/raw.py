"""Changes that no machine would make, to try the commit contract itself: guards that fail, odd writes, many anchors.

They leave alone what the machine's promises speak of: their records bear names of their own (`raw`), and of an
execution they only touch `signature` and `inbox`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from outlast.machine.changes import (
    Absent,
    Add,
    Changes,
    Delete,
    GoneOrPast,
    Guard,
    Insert,
    Matches,
    Patch,
    Put,
    TimeAhead,
    TimeReached,
    Write,
)
from outlast.model.deferred import Deferred, Resolution, deferred_key
from outlast.model.event import Event, event_key
from outlast.model.execution import Execution, execution_key
from outlast.model.journal import JournalEntry, journal_key
from outlast.model.lane import Lane
from outlast.model.outbox import Delivery
from outlast.model.partition import root_of
from outlast.model.record import Key, Now, Record
from outlast.model.session import Session, session_key
from outlast.testing.differential.properties import RAW

GUARDED = {
    Execution.KIND: ["status", "epoch", "inbox", "generation", "held", "worker", "wake_at", "signature"],
    Event.KIND: ["consumed", "value", "change_id"],
    JournalEntry.KIND: ["outcome", "value", "change_id"],
    Session.KIND: ["expires_at"],
    Delivery.KIND: ["tries", "error"],
    Lane.KIND: ["paused"],
}
TIMED = {
    Execution.KIND: ["wake_at", "deadline_at", "attempt_deadline_at", "purge_at", "created_at"],
    Session.KIND: ["expires_at"],
    Delivery.KIND: ["due_at"],
}


@st.composite
def raw_changes(
    draw: st.DrawFn, records: Mapping[Key, Record], change_id: str, now: int, home: Callable[[Key], int]
) -> Changes:
    """One change of some executions and of what lives in their partition; `home` tells where a record lives."""
    names = sorted(key for key in records if key.kind == Execution.KIND) or [execution_key("default", "a")]
    partition = home(draw(st.sampled_from(names)))
    there = {key: record for key, record in records.items() if home(key) == partition}
    names = [key for key in names if home(key) == partition]
    anchors = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    guards = draw(st.lists(_boundaries(there, now, partition) | _guards(there, partition), max_size=3))
    writes = draw(st.lists(_writes(anchors, change_id, partition), min_size=1, max_size=4, unique_by=_target))
    return Changes(
        id=change_id, partition=partition, anchors=tuple(anchors), guards=tuple(guards), writes=tuple(writes)
    )


def _boundaries(records: Mapping[Key, Record], now: int, partition: int) -> st.SearchStrategy[Guard]:
    """Guards on times that come this very millisecond."""
    timed = [(key, field) for key in sorted(records) for field in TIMED.get(key.kind, [])]
    just_now = [(key, field) for key, field in timed if getattr(records[key], field) == now]
    if not just_now:
        return _guards(records, partition)
    guards: list[Guard] = [guard(*at) for at in just_now for guard in (TimeReached, TimeAhead, GoneOrPast)]
    return st.sampled_from(guards)


@st.composite
def _guards(draw: st.DrawFn, records: Mapping[Key, Record], partition: int) -> Guard:
    key = draw(
        st.sampled_from(sorted(key for key in records if key.kind in GUARDED) or [execution_key("default", "?")])
    )
    if draw(st.integers(0, 4)) == 0:
        key = draw(st.sampled_from([execution_key("default", "nobody"), session_key(partition, "nobody"), key]))
    record = records.get(key)
    if key.kind in TIMED and draw(st.booleans()):
        field = draw(st.sampled_from(TIMED[key.kind]))
        return draw(st.sampled_from([TimeReached(key, field), TimeAhead(key, field), GoneOrPast(key, field)]))
    if record is None or draw(st.integers(0, 5)) == 0:
        return Absent(key)
    fields = draw(st.lists(st.sampled_from(GUARDED[key.kind]), max_size=2, unique=True))
    return Matches(key, {field: _right_or_wrong(draw, record, field) for field in fields})


def _right_or_wrong(draw: st.DrawFn, record: Record, field: str) -> Any:
    """Mostly what is there; a wrong value, or none at all, is seldom but must be refused."""
    right = getattr(record, field)
    wrong = {"int": 7, "bool": not right, "bytes": b"?"}.get(type(right).__name__, "?")
    return draw(st.sampled_from([right, right, right, right, wrong, None]))


def _writes(anchors: list[Key], change_id: str, partition: int) -> st.SearchStrategy[Write]:
    """About the anchored executions; some records also for an execution that does not exist."""
    namespace, execution_id = map(str, anchors[0].values)
    nobody = execution_key(namespace, f"{root_of(execution_id)}/nobody")
    return st.sampled_from([*anchors, anchors[0], nobody]).flatmap(
        lambda key: st.sampled_from(_writes_about(key, change_id, partition))
    )


def _writes_about(key: Key, change_id: str, partition: int) -> list[Write]:
    namespace, execution_id = str(key.values[0]), str(key.values[1])
    of: dict[str, Any] = {"namespace": namespace, "execution": execution_id, "change_id": change_id}
    entry = JournalEntry(
        **of, generation=1, scope=RAW, name="s", occurrence=0, op="step", outcome="ok", value=None, epoch=0,
        recorded_at=Now(5),
    )  # fmt: skip
    event = Event(**of, name=RAW, dedup="same", value=b"\x00", sent_at=Now())
    other_event = Event(**of, name=RAW, dedup=change_id, value=None, sent_at=Now())
    deferred = Deferred(**of, generation=1, name=RAW, resolution=Resolution.REJECTED, value=None, resolved_at=Now())
    return [
        Insert(entry),
        Insert(event),
        Insert(other_event),
        Insert(deferred),
        Patch(key, {"signature": change_id, "change_id": change_id}),
        Patch(key, {"signature": ""}),
        Patch(event_key(namespace, execution_id, RAW, "same"), {"consumed": True, "value": b"x", "sent_at": Now(-1)}),
        Delete(journal_key(namespace, execution_id, 1, RAW, "s", 0)),
        Delete(event_key(namespace, execution_id, RAW, "same")),
        Delete(deferred_key(namespace, execution_id, 1, RAW)),
        Add(key, "inbox", 1),
        Add(key, "inbox", 2),
        Put(Lane(partition=partition, namespace=namespace, lane=RAW, paused=True)),
        Delete(Key(Lane.KIND, (partition, namespace, RAW))),
    ]


def _target(write: Write) -> tuple[str, Key]:
    """No change inserts or patches the same record twice; an addition may stand beside a patch."""
    kind = "add" if isinstance(write, Add) else "write"
    return kind, write.record.key if isinstance(write, Insert | Put) else write.key
