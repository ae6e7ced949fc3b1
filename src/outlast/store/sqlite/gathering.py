"""Changes that are alike are written together: one statement for the rows of all of them.

Most changes of a busy batch are steps, beginnings and ends of executions that this writer knows: their guards are
answered from memory, and what they insert meets nothing. They are gathered here, and written before anything else is
read. If a record is met after all, which a repeated step does, nothing tells whose it is: the transaction is undone,
and everything in it is done one after the other.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import apsw

from outlast.errors import InvalidInput
from outlast.machine.changes import Changes, Guard, Insert, Matches, Patch
from outlast.model.attempt import Attempt
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.model.lane import Lane
from outlast.model.record import Key, Now, Plain
from outlast.model.session import Session
from outlast.store.sqlite.connection import Met
from outlast.store.sqlite.fences import Fences
from outlast.store.sqlite.statements import TABLES

Execute: TypeAlias = Callable[[str, Sequence[Any]], apsw.Cursor]

GATES = frozenset({Lane.KIND, Session.KIND})
"""Gates that many starts of one batch ask: looked at once, and again when one of them is written."""
_EXECUTION, _ATTEMPT, _JOURNAL = Execution.KIND, Attempt.KIND, JournalEntry.KIND
_step_row = TABLES[_JOURNAL].row
_APART = GATES | {_EXECUTION}
"""What is not inserted with others."""
_PATCHED = frozenset({_EXECUTION, _ATTEMPT})
"""What is patched with others."""


class Gathering:
    """Of one transaction. `gates` are the answers that it has had: others may be gathered if theirs is among them."""

    def __init__(
        self,
        connection: apsw.Connection,
        execute: Execute,
        execute_many: Execute,
        now: int,
        fences: Fences,
        gates: dict[Guard, bool],
    ) -> None:
        self._connection = connection
        self._execute = execute
        self._execute_many = execute_many
        self._now = now
        self._fences = fences
        self._gates = gates
        self._known = fences.known
        self._inserts: defaultdict[str, list[Sequence[Any]]] = defaultdict(list)
        """By kind."""
        self._steps = self._inserts[_JOURNAL]
        self._patches: defaultdict[str, list[Sequence[Any]]] = defaultdict(list)
        """By statement. They are written behind the inserts, so nothing is patched here that is inserted later."""
        self._patched: set[Key] = set()

    def take(self, changes: Changes) -> int | None:
        """Gather it, and tell the inbox of its execution. None if it is not like the others, or if a guard of it is not
        known to hold: then it goes the long way, behind those that were taken."""
        if len(changes.anchors) != 1:
            return None
        anchor, writes, new, inbox = changes.anchors[0], changes.writes, None, None
        for guard in changes.guards:
            if type(guard) is Matches:
                key, fields = guard.key, guard.fields
                known = self._known.get(key.values) if key.kind == _EXECUTION else None
                if known is None or (fields != known.held and fields != known.ends):
                    return None
                if key is anchor or key == anchor:
                    inbox = known.inbox
            elif not self._gates.get(guard):
                return None
        if inbox is not None and len(writes) == 1 and type(first := writes[0]) is Insert:
            record = first.record
            if record.KIND == _JOURNAL:  # the commonest change of all: a step
                self._steps.append(_step_row(record, self._now))
                return inbox
        for write in writes:
            if type(write) is Insert:
                record = write.record
                kind = record.KIND
                if kind == _EXECUTION and new is None and record.key == anchor and anchor not in self._patched:
                    new = cast("Execution", record)
                    inbox = new.inbox
                elif kind in _APART or (kind == _ATTEMPT and self._patched and record.key in self._patched):
                    return None
            elif type(write) is not Patch or write.key.kind not in _PATCHED or write.key in self._patched:
                return None
        if inbox is None or (new is not None and not self._begin(new)):
            return None
        self._gather(changes, new)
        return inbox

    def _begin(self, new: Execution) -> bool:
        """A new execution is not gathered, because others may well have started it before: that must not undo all."""
        table = TABLES[_EXECUTION]
        try:
            self._execute(table.insert, table.row(new, self._now))
        except (TypeError, OverflowError) as error:
            raise impossible(error) from error
        if self._connection.changes() != 1:
            return False
        self._fences.keep_new(new)
        return True

    def _gather(self, changes: Changes, new: Execution | None) -> None:
        now = self._now
        for write in changes.writes:
            if type(write) is Insert:
                record = write.record
                if record is not new:
                    self._inserts[record.KIND].append(TABLES[record.KIND].row(record, now))
            elif type(write) is Patch:
                key, fields = write.key, write.fields
                self._patches[TABLES[key.kind].patch(tuple(fields))].append(patch_row(key, fields, now))
                self._patched.add(key)
                self._fences.drop(key)

    def write(self) -> None:
        """Write what was gathered."""
        try:
            self._insert_all()
            for sql, rows in self._patches.items():
                self._execute_many(sql, rows)
        except (TypeError, OverflowError) as error:
            raise impossible(error) from error
        if self._patches:
            self._patches.clear()
            self._patched.clear()

    def _insert_all(self) -> None:
        before, rows_in_all = self._connection.total_changes(), 0
        for kind, rows in self._inserts.items():
            if rows:
                rows_in_all += len(rows)
                self._execute_many(TABLES[kind].insert, rows)
                rows.clear()
        if self._connection.total_changes() - before != rows_in_all:
            raise Met


def patch_row(key: Key, fields: dict[str, Plain | Now], now: int) -> list[Any]:
    """What a patch binds: the new values, times settled, then the key."""
    return [*[now + v.plus_ms if type(v) is Now else v for v in fields.values()], *key.values]


def impossible(error: Exception) -> InvalidInput:
    return InvalidInput(f"a value that a record cannot have: {error}")
