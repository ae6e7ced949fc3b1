"""Changes that are alike are written together: one statement for the rows of all of them.

Most changes of a busy batch are steps, beginnings and ends of executions that this writer knows: their guards are
answered from memory, and what they insert meets nothing. They are gathered here, and written before anything else is
read. If a record is met after all, which a repeated step does, nothing tells whose it is: the transaction is undone,
and everything in it is done one after the other.

Inserts are written before patches. That is as good as the order given: a change patches only what belongs to executions
that it asked for or makes, and records of its flow that it asked for, and what is patched is known no more until it is
written. So nobody else who is gathered asks for it.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeAlias

import apsw

from outlast.errors import InvalidInput
from outlast.machine.changes import Absent, Changes, Guard, Insert, Matches, Patch, Shape, Write
from outlast.model.attempt import Attempt
from outlast.model.execution import Execution
from outlast.model.flow import Flow, Member, Summary
from outlast.model.journal import JournalEntry
from outlast.model.kinds import KINDS
from outlast.model.record import Key, Now, Plain, Record
from outlast.store.port import Verdict
from outlast.store.sqlite.connection import Met
from outlast.store.sqlite.fences import GATES, OF_FLOWS, Fences, Known
from outlast.store.sqlite.statements import TABLES, row_of

Execute: TypeAlias = Callable[[str, Iterable[Any]], apsw.Cursor]

Values: TypeAlias = tuple[str | int, ...]
Mine: TypeAlias = "dict[Values, Known | None]"
"""Executions that a change asked for, as they are known, or that it makes."""

_EXECUTION = Execution.KIND
_PATCHED = frozenset({_EXECUTION, Attempt.KIND, Member.KIND})
"""What is patched with others, and belongs to an execution."""
_GATES = frozenset(KINDS[kind] for kind in GATES)
_exists = TABLES[_EXECUTION].exists


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
        self._begun: dict[Values, Known] = {}
        """Executions that somebody holds by what was gathered: known again when it is written."""
        self._members: set[Values] = set()
        """New executions that are gathered, because their flow is new."""

    def take(self, changes: Changes) -> Verdict | None:
        """Gather it. None if it is not like the others, or if a guard of it is not known to hold: then it goes the long
        way, behind those that were taken."""
        shape = changes.shape
        if shape is Shape.STEP:
            return self._take_step(changes)
        if shape is Shape.END:
            return self._take_end(changes)
        if shape is Shape.START:
            return self._take_start(changes)
        its: Mine = {}
        asked: list[Key] = []
        for guard in changes.guards:
            if type(guard) is Matches:
                key = guard.key
                if key.kind != _EXECUTION:
                    if not self._fences.matches(guard):
                        return None
                    asked.append(key)
                    continue
                known, fields = self._known.get(key.values), guard.fields
                if known is None:
                    return None
                if fields != known.held and not known.ends(fields) and not self._fences.matches(guard):
                    return None
                its[key.values] = known
            elif not self._is_open(guard):
                return None
        return self._take_all(changes.anchors, changes.writes, its, asked)

    def _is_open(self, guard: Guard) -> bool:
        return self._gates.get(guard, 0) > self._now or self._is_free(guard)

    def _is_free(self, guard: Guard) -> bool:
        """Whether it asks for an id that no execution has. Those that are gathered are not there to be read."""
        if type(guard) is not Absent or guard.key.kind != _EXECUTION or guard.key.values in self._members:
            return False
        return self._execute(_exists, guard.key.values).fetchone() is None

    # What a change of each shape is, `machine/shapes.py` says: here it is taken at its word.

    def _take_step(self, changes: Changes) -> Verdict | None:
        fence: Any = changes.guards[0]
        entry: Any = changes.writes[0]
        known = self._known.get(fence.key.values)
        if known is None or fence.fields != known.held:
            return None
        self._steps.append(entry.record)
        return applied(known.inbox)

    def _take_end(self, changes: Changes) -> Verdict | None:
        fence: Any = changes.guards[0]
        known = self._known.get(fence.key.values)
        if known is None or not known.ends(fence.fields):
            return None
        for write in changes.writes:
            if type(write) is Insert:
                self._inserts[type(write.record)].append(write.record)
            elif type(write) is Patch:
                rows = self._patches[TABLES[write.key.kind].patch((*write.fields,))]
                rows.append(patch_row(write.key, write.fields))
        self._fences.written(fence.key)
        return applied(known.inbox)

    def _take_start(self, changes: Changes) -> Verdict | None:
        for guard in changes.guards:
            if not self._is_open(guard):
                return None
        records: list[Any] = [write.record for write in changes.writes if type(write) is Insert]
        execution = records[0]
        if len(records) < len(changes.writes):  # it has tags
            return None
        if not self._begin((execution.namespace, execution.id), [execution], None):
            return None
        for record in records[1:]:
            self._inserts[type(record)].append(record)
        return applied(execution.inbox)

    def _take_all(
        self, anchors: tuple[Key, ...], writes: tuple[Write, ...], its: Mine, asked: list[Key]
    ) -> Verdict | None:
        """All of them, or none: then what was gathered of it is let go again."""
        new: list[Execution] = []
        flow: Flow | None = None
        gathered: list[list[Any]] = []
        kept: list[Record] = []
        patched: dict[Key, Patch] = {}
        for write in writes:
            if type(write) is Insert:
                record = write.record
                if type(record) is Execution:
                    new.append(record)
                    its[record.namespace, record.id] = None
                    continue
                if type(record) is Flow:
                    if flow is not None:
                        return _let_go(gathered)
                    flow = record
                    continue
                if type(record) is Attempt or type(record) is Member:
                    if (record.namespace, record.execution) not in its:
                        return _let_go(gathered)
                elif type(record) in _GATES or (type(record) is Summary and flow is None):
                    return _let_go(gathered)
                if type(record) in OF_FLOWS:
                    kept.append(record)
                rows = self._inserts[type(record)]
                rows.append(record)
            elif type(write) is Patch:
                key, fields = write.key, write.fields
                if key in patched or (key.values[:2] not in its if key.kind in _PATCHED else key not in asked):
                    return _let_go(gathered)
                patched[key] = write
                rows = self._patches[TABLES[key.kind].patch((*fields,))]
                rows.append(patch_row(key, fields))
            else:
                return _let_go(gathered)
            gathered.append(rows)
        anchor = next((anchor.values for anchor in anchors if anchor.kind == _EXECUTION), None)
        if (anchor is None and flow is None and not asked) or (anchor is not None and anchor not in its):
            return _let_go(gathered)
        if (new or flow is not None) and not self._begin(anchor, new, flow):
            return _let_go(gathered)
        for record in kept:
            self._fences.keep_row(record)
        known = None if anchor is None else its[anchor] or self._known[anchor]
        if patched:
            self._patch(patched, its)
        return applied(None if known is None else known.inbox)

    def _begin(self, anchor: Values | None, new: list[Execution], flow: Flow | None) -> bool:
        """What a change makes is not gathered, because others may well have started it before: that must not undo all.
        That is an execution, or a flow: if there was no such flow, hardly ever are there members of it."""
        if flow is None and (len(new) > 1 or (new[0].namespace, new[0].id) != anchor):
            return False
        first = new[0] if flow is None else flow
        try:
            self._execute(TABLES[first.KIND].insert, row_of(first))
        except (TypeError, OverflowError) as error:
            raise impossible(error) from error
        if self._connection.changes() != 1:
            return False
        for execution in new:
            self._fences.keep_new(execution)
        if flow is not None:
            self._fences.keep_row(flow)
            self._inserts[Execution] += new
            self._members.update((member.namespace, member.id) for member in new)
        return True

    def _patch(self, patched: dict[Key, Patch], its: Mine) -> None:
        """What is patched, or has something that is, is known no more until that is written."""
        for key, patch in patched.items():
            self._fences.rows.pop(key, None)
            if key.kind in _PATCHED:
                owner = key.values[:2]
                self._known.pop(owner, None)
                known = its[owner]
                if key.kind == _EXECUTION and "epoch" in patch.fields and known is not None:
                    self._begun[owner] = known.patched(patch.fields)

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
            self._known.update(self._begun)
            self._begun.clear()
        self._members.clear()

    def _insert_all(self) -> None:
        before, rows_in_all = self._connection.total_changes(), 0
        for kind, records in self._inserts.items():
            if records:
                rows_in_all += len(records)
                self._execute_many(TABLES[kind.KIND].insert, map(row_of, records))
                records.clear()
        if self._connection.total_changes() - before != rows_in_all:
            raise Met


@lru_cache(maxsize=1_000)
def applied(inbox: int | None) -> Verdict:
    """Most inboxes are empty, and verdicts do not change."""
    return Verdict(True, inbox)


def _let_go(gathered: list[list[Any]]) -> None:
    """Of a change: the last row of each of these is its own."""
    for rows in gathered:
        rows.pop()


def patch_row(key: Key, fields: dict[str, Plain | Now]) -> tuple[Any, ...]:
    """What a patch binds: the new values, then the key. The writer's cursor settles the times."""
    return (*fields.values(), *key.values)


def impossible(error: Exception) -> InvalidInput:
    return InvalidInput(f"a value that a record cannot have: {error}")
