"""Whether the guards of a change hold for the records that a store has read, and whether it was applied before.

A store that compares guards in the database itself (in SQL or Lua) explains its refusals by these functions as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, assert_never

from outlast.machine.changes import (
    Absent,
    Changes,
    GoneOrPast,
    Guard,
    Insert,
    Matches,
    Patch,
    TimeAhead,
    TimeReached,
    Write,
)
from outlast.model.execution import Execution
from outlast.model.record import Key, Record


def anchored_execution(changes: Changes) -> Key | None:
    """The execution whose inbox the verdict tells: the first that the change is anchored at."""
    for anchor in changes.anchors:
        if anchor.kind == Execution.KIND:
            return anchor
    return None


def fields_read(guard: Guard) -> tuple[str, ...]:
    """The fields of its record that a guard reads."""
    if isinstance(guard, Matches):
        return (*guard.fields,)
    return () if isinstance(guard, Absent) else (guard.field,)


def holds(guard: Guard, seen: tuple[Any, ...] | None, now: int) -> bool:
    """Whether a guard holds at `now`. `seen` are the values of `fields_read`, or None if there is no such record."""
    match guard:
        case Matches(_, fields):
            return seen == (*fields.values(),)
        case Absent():
            return seen is None
        case TimeReached():
            return seen is not None and seen[0] is not None and seen[0] <= now
        case TimeAhead():
            return seen is not None and seen[0] is not None and seen[0] > now
        case GoneOrPast():
            return seen is None or seen[0] is None or seen[0] <= now
        case _:
            assert_never(guard)


def failed_guard(
    guards: Iterable[Guard], writes: Iterable[Write], records: Mapping[Key, Record | None], now: int
) -> Guard | None:
    """The first guard that does not hold. An insert is guarded by its own key."""
    for guard in guards:
        record = records.get(guard.key)
        seen = None if record is None else tuple([getattr(record, name) for name in fields_read(guard)])
        if not holds(guard, seen, now):
            return guard
    for write in writes:
        if isinstance(write, Insert) and records.get(write.record.key) is not None:
            return Absent(write.record.key)
    return None


def signed_keys(changes: Changes) -> Sequence[Key]:
    """The records that bear the id of the change once it is applied, if their kind has a field for it."""
    return [
        write.record.key if isinstance(write, Insert) else write.key
        for write in changes.writes
        if isinstance(write, Insert) or (isinstance(write, Patch) and "change_id" in write.fields)
    ]


def applied_before(changes: Changes, records: Mapping[Key, Record | None]) -> bool:
    """Whether a refused change was applied before, and its reply lost: a record of its own stands in its way."""
    return any(getattr(records.get(key), "change_id", None) == changes.id for key in signed_keys(changes))
