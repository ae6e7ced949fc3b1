"""Changes that are alike are written together: one statement for the rows of all of them.

Most changes of a busy batch are steps, beginnings and ends of executions that this writer knows: their guards are
answered from memory, and what they insert meets nothing. They are gathered here, and written before anything else is
read. If a record is met after all, which a repeated step does, nothing tells whose it is: the transaction is undone,
and everything in it is done one after the other.

Inserts are written before patches. That is as good as the order given: a change is gathered only if its execution is
known or new, it patches nothing but that execution and its attempts, and an execution that is patched is known no more.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import apsw

from outlast.errors import InvalidInput
from outlast.machine.changes import Changes, Insert, Matches, Patch, Write
from outlast.model.attempt import Attempt
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.model.kinds import KINDS
from outlast.model.record import Key, Now, Plain, Record
from outlast.store.sqlite.connection import Met
from outlast.store.sqlite.fences import GATES, Fences
from outlast.store.sqlite.statements import TABLES, row_of

Execute: TypeAlias = Callable[[str, Iterable[Any]], apsw.Cursor]

_EXECUTION = Execution.KIND
_PATCHED = frozenset({_EXECUTION, Attempt.KIND})
"""What is patched with others."""
_GATES = frozenset(KINDS[kind] for kind in GATES)
_begin = TABLES[_EXECUTION].insert


class Gathering:
    """Of one transaction."""

    def __init__(
        self, connection: apsw.Connection, execute: Execute, execute_many: Execute, now: int, fences: Fences
    ) -> None:
        self._connection = connection
        self._execute = execute
        self._execute_many = execute_many
        self._now = now
        self._fences = fences
        self._known, self._gates = fences.known, fences.gates
        self._inserts: defaultdict[type[Record], list[Record]] = defaultdict(list)
        """By kind."""
        self._steps = self._inserts[JournalEntry]
        self._patches: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        """By statement."""

    def take(self, changes: Changes) -> int | None:
        """Gather it, and tell the inbox of its execution. None if it is not like the others, or if a guard of it is not
        known to hold: then it goes the long way, behind those that were taken."""
        anchors, writes, inbox = changes.anchors, changes.writes, None
        if len(anchors) != 1 or anchors[0].kind != _EXECUTION:
            return None
        anchor = anchors[0]
        for guard in changes.guards:
            if type(guard) is Matches:
                key, fields = guard.key, guard.fields
                known = self._known.get(key.values) if key.kind == _EXECUTION else None
                if known is None or (fields != known.held and not known.ends(fields)):
                    return None
                if key is anchor or key == anchor:
                    inbox = known.inbox
            elif self._gates.get(guard, 0) <= self._now:
                return None
        if inbox is not None and len(writes) == 1 and type(first := writes[0]) is Insert:
            record = first.record
            if type(record) is JournalEntry:  # the commonest change of all: a step
                self._steps.append(record)
                return inbox
        return self._take_all(anchor, writes, inbox)

    def _take_all(self, anchor: Key, writes: tuple[Write, ...], inbox: int | None) -> int | None:
        """All of them, or none: then what was gathered of it is let go again."""
        its = anchor.values
        new: Execution | None = None
        gathered: list[list[Any]] = []
        patched: list[Key] = []
        for write in writes:
            if type(write) is Insert:
                record = write.record
                if type(record) is Execution:
                    if new is not None or (record.namespace, record.id) != its:
                        return _let_go(gathered)
                    new = record
                    continue
                if type(record) is Attempt and (record.namespace, record.execution) != its:
                    return _let_go(gathered)
                if type(record) in _GATES:
                    return _let_go(gathered)
                rows = self._inserts[type(record)]
                rows.append(record)
            elif type(write) is Patch:
                key, fields = write.key, write.fields
                if key is not anchor and (key.values[:2] != its or key.kind not in _PATCHED):
                    return _let_go(gathered)
                if key in patched:
                    return _let_go(gathered)
                patched.append(key)
                rows = self._patches[TABLES[key.kind].patch((*fields,))]
                rows.append(patch_row(key, fields))
            else:
                return _let_go(gathered)
            gathered.append(rows)
        if new is not None:
            inbox = new.inbox if self._begin(new) else None
        if inbox is None:
            return _let_go(gathered)
        if patched:
            self._known.pop(its, None)
        return inbox

    def _begin(self, new: Execution) -> bool:
        """A new execution is not gathered, because others may well have started it before: that must not undo all."""
        try:
            self._execute(_begin, row_of(new))
        except (TypeError, OverflowError) as error:
            raise impossible(error) from error
        if self._connection.changes() != 1:
            return False
        self._fences.keep_new(new)
        return True

    def write(self) -> None:
        """Write what was gathered."""
        try:
            self._insert_all()
            for sql, rows in self._patches.items():
                if rows:
                    self._execute_many(sql, rows)
        except (TypeError, OverflowError) as error:
            raise impossible(error) from error
        if self._patches:
            self._patches.clear()

    def _insert_all(self) -> None:
        before, rows_in_all = self._connection.total_changes(), 0
        for kind, records in self._inserts.items():
            if records:
                rows_in_all += len(records)
                self._execute_many(TABLES[kind.KIND].insert, map(row_of, records))
                records.clear()
        if self._connection.total_changes() - before != rows_in_all:
            raise Met


def _let_go(gathered: list[list[Any]]) -> None:
    """Of a change: the last row of each of these is its own."""
    for rows in gathered:
        rows.pop()


def patch_row(key: Key, fields: dict[str, Plain | Now]) -> tuple[Any, ...]:
    """What a patch binds: the new values, then the key. The writer's cursor settles the times."""
    return (*fields.values(), *key.values)


def impossible(error: Exception) -> InvalidInput:
    return InvalidInput(f"a value that a record cannot have: {error}")
