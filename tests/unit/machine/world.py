"""A store in thirty lines: records by key, guards read against them, every change all or nothing.

It knows the commit contract and nothing of executions, so it shows what the machine's guards are worth when a change
was decided upon an old view.
"""

from __future__ import annotations

from typing import Any, assert_never

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
    inserted,
    patched,
)
from outlast.model.execution import Execution
from outlast.model.record import Key, Record
from tests.unit.machine.build import KEY


class World:
    def __init__(self, now: int) -> None:
        self.now = now
        self.records: dict[Key, Record] = {}

    @property
    def execution(self) -> Execution | None:
        record = self.records.get(KEY)
        assert record is None or isinstance(record, Execution)
        return record

    def commit(self, changes: Changes) -> bool:
        taken = [w for w in changes.writes if isinstance(w, Insert) and w.record.key in self.records]
        if taken or not all(self.holds(guard) for guard in changes.guards):
            return False
        for write in changes.writes:
            self.write(write)
        return True

    def holds(self, guard: Guard) -> bool:
        record = self.records.get(guard.key)
        match guard:
            case Matches(_, fields):
                return record is not None and all(getattr(record, name) == value for name, value in fields.items())
            case Absent():
                return record is None
            case TimeReached(_, field):
                return record is not None and self.come(getattr(record, field))
            case TimeAhead(_, field):
                time = None if record is None else getattr(record, field)
                return time is not None and time > self.now
            case GoneOrPast(_, field):
                return record is None or self.come(getattr(record, field))
            case _:
                assert_never(guard)

    def come(self, time: Any) -> bool:
        return time is not None and time <= self.now

    def write(self, write: Write) -> None:
        match write:
            case Insert(record) | Put(record):
                self.records[record.key] = inserted(record, self.now)
            case Patch(key, fields):
                self.records[key] = patched(self.records[key], fields, self.now)
            case Add(key, field, amount):
                record = self.records[key]
                self.records[key] = patched(record, {field: getattr(record, field) + amount}, self.now)
            case Delete(key):
                self.records.pop(key, None)
            case _:
                assert_never(write)
