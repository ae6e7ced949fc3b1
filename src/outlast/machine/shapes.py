"""The shapes of changes that stores have a short path for.

The machine declares the shape of a change where it builds it (`Changes.shape`). A store dispatches on the declaration
and looks at nothing else, so it relies on what `fits` says of each shape; `store/checks.py` asks that of every change
before a store sees it. Whoever amends a change takes its shape away.
"""

from __future__ import annotations

from outlast.machine.changes import Changes, Insert, Matches, Patch, Put, Shape, Write
from outlast.model.attempt import Attempt
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.model.kinds import OF_EXECUTION
from outlast.model.outbox import Delivery
from outlast.model.record import Key, Record
from outlast.model.status import TERMINAL
from outlast.model.tag import Tag

HOLDER_FIELDS = ("status", "epoch")
"""What the fence of every write by a holder compares (`guards_and_writes.held_by`), in this order."""
END_FIELDS = (*HOLDER_FIELDS, "has_children")
"""What the fence of an end by its holder compares (`guards_and_writes.held_to_the_end`)."""
GUARDED_FIELDS = (
    "epoch", "status", "inbox", "generation", "waits", "held", "unwinds", "has_children", "cancel_requested",
)  # fmt: skip
"""All fields of an execution that the machine's guards compare in the way of an attempt. None of them is ever null."""

_BESIDE = frozenset(OF_EXECUTION)


def fits(changes: Changes) -> bool:
    """Whether a change is what it declares to be."""
    shape = changes.shape
    if shape is Shape.STEP:
        return _is_step(changes)
    if shape is Shape.START:
        return _is_start(changes)
    return shape is None or _is_end(changes)


def _is_step(changes: Changes) -> bool:
    """One more entry in the journal of the execution that it is anchored at, under the fence of its holder."""
    anchors, guards, writes = changes.anchors, changes.guards, changes.writes
    if len(anchors) != 1 or len(guards) != 1 or len(writes) != 1 or changes.rings:
        return False
    fence, write = guards[0], writes[0]
    if type(fence) is not Matches or fence.key != anchors[0] or (*fence.fields,) != HOLDER_FIELDS:
        return False
    if type(write) is not Insert or type(entry := write.record) is not JournalEntry:
        return False
    return (entry.namespace, entry.execution) == fence.key.values


def _is_start(changes: Changes) -> bool:
    """The execution that it is anchored at, new, and then what belongs to it. Its guards ask for gates."""
    if len(changes.anchors) != 1 or any(type(guard) is Matches for guard in changes.guards):
        return False
    first, *beside = changes.writes
    key = changes.anchors[0]
    if type(first) is not Insert or type(first.record) is not Execution or first.record.key != key:
        return False
    return all(
        (type(write) is Insert or (type(write) is Put and type(write.record) is Tag)) and _belongs(write.record, key)
        for write in beside
    )


def _is_end(changes: Changes) -> bool:
    """The terminal status of the execution that it is anchored at, under the fence of an end by its holder, and then
    what belongs to it: new records, and the end of its attempt."""
    anchors, guards = changes.anchors, changes.guards
    if len(anchors) != 1 or len(guards) != 1 or type(fence := guards[0]) is not Matches:
        return False
    key = anchors[0]
    first, *beside = changes.writes
    return (
        fence.key == key
        and (*fence.fields,) == END_FIELDS
        and type(first) is Patch
        and first.key == key
        and first.fields.get("status") in TERMINAL
        and all(_ends_with(write, key) for write in beside)
    )


def _ends_with(write: Write, key: Key) -> bool:
    if type(write) is Insert:
        return type(write.record) is Delivery or _belongs(write.record, key)
    return type(write) is Patch and write.key.kind == Attempt.KIND and write.key.values[:2] == key.values


def _belongs(record: Record, key: Key) -> bool:
    return type(record) in _BESIDE and record.key.values[:2] == key.values
