"""Commit a batch of guarded changes inside the writer's transaction.

The file has one writer at a time, so the transaction itself is the lock on every anchor, and changes apply in the
order given. Within a change all guards are read before anything is written; after that no write can fail by contract,
so a refusal needs no rollback.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, assert_never, cast

import apsw

from outlast.machine.changes import (
    Absent,
    Add,
    Changes,
    Delete,
    Guard,
    Insert,
    Matches,
    Patch,
    Put,
    TimeAhead,
    Write,
    channel_of,
)
from outlast.machine.guards import anchored_execution, fields_read, holds, signed_keys
from outlast.machine.shapes import END_FIELDS
from outlast.model.execution import Execution
from outlast.model.record import Key, Record
from outlast.store.port import Points, Verdict
from outlast.store.sqlite.fences import FENCES, FOREVER_MS, GATES, OF_FLOWS, Fences, known
from outlast.store.sqlite.gathering import Execute, Gathering, applied, impossible, patch_row
from outlast.store.sqlite.statements import TABLES, row_of

_EXECUTION = Execution.KIND


class Commit:
    """The commit of one transaction: verdicts, and the doorbells to ring once it is durable."""

    def __init__(
        self, cursor: apsw.Cursor, now: int, points: Points | None, fences: Fences, *, singly: bool = False
    ) -> None:
        execute, execute_many = cast("Execute", cursor.execute), cast("Execute", cursor.executemany)
        self._execute = execute if points is None else _watched(execute, points)
        self._execute_many = execute_many if points is None else _watched(execute_many, points)
        self._connection = cursor.connection
        self._singly = singly
        self._now = now
        self._fences = fences
        self._gates = fences.gates
        self.rings: set[str] = set()

    def apply(self, batch: Sequence[Changes]) -> list[Verdict]:
        verdicts: list[Verdict] = []
        rings = self.rings
        gathering = Gathering(self._connection, self._execute, self._execute_many, self._now, self._fences)
        for changes in batch:
            taken = None if self._singly else gathering.take(changes)
            if taken is not None:
                if changes.rings:
                    rings.update(changes.rings)
                verdicts.append(taken)
                continue
            gathering.write()
            verdicts.append(self._apply(changes))
        gathering.write()
        if rings:
            self.rings = {channel_of(ring, 0) for ring in rings}
        return verdicts

    def rehearse(self, changes: Changes) -> Verdict | None:
        """Why `changes` could not be applied now, or were before; None if they can be. Nothing is written."""
        for guard in changes.guards:
            if not self._holds(guard)[0]:
                return self._refused(changes, guard)
        for write in changes.writes:
            if type(write) is Insert and self._exists(write.record.key):
                return self._refused(changes, Absent(write.record.key))
        return None

    def _apply(self, changes: Changes) -> Verdict:
        guards, writes = changes.guards, changes.writes
        anchor = anchored_execution(changes)
        inbox: int | None = None
        for guard in guards:
            holds, seen = self._holds(guard)
            if not holds:
                return self._refused(changes, guard)
            if seen is not None and guard.key == anchor:
                inbox = seen
        taken = self._write_all(writes)
        if taken is not None:
            return self._refused(changes, Absent(taken))
        inbox = _inbox_after(writes, anchor, inbox)
        self.rings.update(changes.rings)
        if inbox is None:
            inbox = self._inbox(changes)
        return applied(inbox)

    def _write_all(self, writes: tuple[Write, ...]) -> Key | None:
        """Every write, or none: the key that an insert found taken.

        Inserts are their own guards. They go first, and if one meets a record, those before it are taken back: nobody
        has seen them, and nothing else is written yet.
        """
        inserted: list[Record] = []
        for write in writes:
            if type(write) is Insert:
                if not self._insert(write.record):
                    for record in reversed(inserted):
                        self._write(Delete(record.key))
                    return write.record.key
                inserted.append(write.record)
        for write in writes:
            if not isinstance(write, Insert):
                self._write(write)
        return None

    # ---- guards ---------------------------------------------------------------------------------------------------

    def _holds(self, guard: Guard) -> tuple[bool, int | None]:
        """Whether the guard holds, and the inbox of the execution that it read, if it read one."""
        table, fields = TABLES[guard.key.kind], fields_read(guard)
        if type(guard) is Matches and table.has_inbox and fields in FENCES:
            return self._passes(guard.key.values, guard.fields)
        if (type(guard) is Absent or type(guard) is TimeAhead) and guard.key.kind in GATES:
            until = self._gates.get(guard)
            if until is None:
                until = self._gates[guard] = self._open_until(guard)
            return until > self._now, None
        row = self._guarded(guard)
        inbox = row[-1] if row is not None and fields and table.has_inbox else None
        return holds(guard, None if row is None else row[: len(fields)], self._now), inbox

    def _passes(self, key: tuple[str | int, ...], expected: dict[str, Any]) -> tuple[bool, int | None]:
        """The fence of a holder, which is remembered."""
        seen = self._fences.get(key)
        if seen is None:
            row = self._row(TABLES[_EXECUTION].guard(END_FIELDS), key)
            if row is None:
                return False, None
            seen = self._fences.keep(key, known(*row))
        return expected == seen.held or seen.ends(expected), seen.inbox

    def _open_until(self, guard: Absent | TimeAhead) -> int:
        """The time that shuts a gate which nobody writes: 0 if it is shut."""
        row = self._guarded(guard)
        if isinstance(guard, Absent):
            return FOREVER_MS if row is None else 0
        return 0 if row is None or row[0] is None else row[0]

    def _exists(self, key: Key) -> bool:
        return self._row(TABLES[key.kind].exists, key.values) is not None

    def _guarded(self, guard: Guard) -> tuple[Any, ...] | None:
        """The fields that a guard reads, and the inbox behind those of an execution; None if there is no record."""
        table, fields = TABLES[guard.key.kind], fields_read(guard)
        return self._row(table.guard(fields) if fields else table.exists, guard.key.values)

    def _row(self, sql: str, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return self._execute(sql, values).fetchone()

    # ---- refusals -------------------------------------------------------------------------------------------------

    def _refused(self, changes: Changes, guard: Guard) -> Verdict:
        """Refused by one's own record means: applied before, and the reply was lost."""
        again = any(self._signed_by(key) == changes.id for key in signed_keys(changes))
        inbox = self._inbox(changes)
        if again:
            return Verdict(True, inbox, again=True)
        return Verdict(False, inbox, refused_by=guard, current=self._load(guard.key))

    def _signed_by(self, key: Key) -> str | None:
        """The change that wrote the record."""
        table = TABLES[key.kind]
        row = self._row(table.guard(("change_id",)), key.values) if table.has_change_id else None
        return None if row is None else row[0]

    def _inbox(self, changes: Changes) -> int | None:
        anchor = anchored_execution(changes)
        if anchor is None:
            return None
        row = self._row(TABLES[_EXECUTION].guard(("inbox",)), anchor.values)
        return None if row is None else row[0]

    def _load(self, key: Key) -> Record | None:
        table = TABLES[key.kind]
        row = self._row(table.load, key.values)
        return None if row is None else table.record(row)

    # ---- writes ---------------------------------------------------------------------------------------------------

    def _insert(self, record: Record) -> bool:
        """False if there is a record with its key, and nothing is written."""
        table = TABLES[record.KIND]
        self._run(table.insert, row_of(record))
        if self._connection.changes() != 1:
            return False
        if record.KIND in GATES:
            self._fences.written(record.key)
        if record.KIND == _EXECUTION:
            self._fences.keep_new(cast("Execution", record))
        elif type(record) in OF_FLOWS:
            self._fences.keep_row(record)
        return True

    def _write(self, write: Patch | Put | Delete | Add) -> None:
        match write:
            case Patch(key, fields):
                self._run(TABLES[key.kind].patch(tuple(fields)), patch_row(key, fields))
            case Put(record):
                key, table = record.key, TABLES[record.KIND]
                self._run(table.put, row_of(record))
            case Delete(key):
                self._run(TABLES[key.kind].delete, key.values)
            case Add(key, field, amount):
                self._run(TABLES[key.kind].add(field), (amount, *key.values))
            case _:
                assert_never(write)
        self._fences.written(key)

    def _run(self, sql: str, values: Sequence[Any]) -> None:
        try:
            self._execute(sql, values)
        except (TypeError, OverflowError) as error:
            raise impossible(error) from error


def _inbox_after(writes: tuple[Write, ...], anchor: Key | None, inbox: int | None) -> int | None:
    """The anchor's inbox once these are written, if that is known."""
    for write in writes:
        if type(write) is Insert and write.record.KIND == _EXECUTION and write.record.key == anchor:
            inbox = cast("Execution", write.record).inbox
        elif type(write) is Add and write.field == "inbox" and write.key == anchor and inbox is not None:
            inbox += write.amount
    return inbox


def _watched(execute: Execute, points: Points) -> Execute:
    """Every statement between its two crash points. Without any, a commit pays nothing for them."""

    def watched(sql: str, values: Iterable[Any]) -> apsw.Cursor:
        points("statement")
        cursor = execute(sql, values)
        points("statement done")
        return cursor

    return watched
