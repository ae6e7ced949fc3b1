"""What the writer knows of the rows that it is asked about most, so that a step need not read its fence again.

The file has one writer at a time. What this connection read or wrote stays true until somebody else commits, which
SQLite tells (`data_version`), or until this connection writes the row itself, which `Commit` and claim tell. Everything
else that writes (purge, …) makes the writer forget all of it. So a zombie is found out as ever: whoever
took over wrote the row, here or elsewhere.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import apsw
from msgspec import Struct

from outlast.machine.changes import Guard, Matches
from outlast.machine.shapes import END_FIELDS, HOLDER_FIELDS
from outlast.model.execution import Execution
from outlast.model.flow import Flow, Member, Summary
from outlast.model.lane import Lane
from outlast.model.record import Key, Record
from outlast.model.session import Session

KNOWN_MAX = 20_000
FOREVER_MS = 2**62
"""Later than every time, and more than any number of rows."""
_NO_VALUE = object()
FENCES = frozenset({HOLDER_FIELDS, END_FIELDS})
GATES = frozenset({Lane.KIND, Session.KIND})
"""Gates that starts ask: looked at once, and again when one of them is written."""
OF_FLOWS = frozenset({Flow, Summary, Member})
"""What an end in a flow asks for beside executions: remembered as it was inserted, until it is written again."""
ROWS_MAX = 10_000


class Known(Struct, frozen=True, gc=False):
    """Of one execution: its fields as the fence of every write asks for them, what that of its end asks for beside
    them, and its inbox."""

    held: dict[str, Any]
    has_children: bool | int
    inbox: int

    def ends(self, fields: dict[str, Any]) -> bool:
        """Whether the fence of an end lets it pass."""
        return fields == {**self.held, "has_children": self.has_children}

    def patched(self, fields: dict[str, Any]) -> Known:
        """Of the same execution, when these are its new values."""
        return known(
            fields.get("status", self.held["status"]),
            fields.get("epoch", self.held["epoch"]),
            fields.get("has_children", self.has_children),
            fields.get("inbox", self.inbox),
        )


def known(status: str, epoch: int, has_children: bool | int, inbox: int) -> Known:
    return Known({"status": status, "epoch": epoch}, has_children, inbox)


class Fences:
    """Of one connection that writes."""

    def __init__(self) -> None:
        self.known: dict[tuple[str | int, ...], Known] = {}
        self.gates: dict[Guard, int] = {}
        """Until when each is open, as far as that is known: 0 if it is shut."""
        self.rows: dict[Key, Record] = {}
        """Of flows: whole records, as they were inserted."""
        self._version: int | None = None

    def begin(self, connection: apsw.Connection) -> bool:
        """When a transaction holds the lock: has nobody else written since the last one? Otherwise nothing is known."""
        if connection.data_version() == self._version and len(self.known) + len(self.gates) <= KNOWN_MAX:
            return True
        self.clear()
        return False

    def committed(self, connection: apsw.Connection) -> None:
        """The number grows with one's own commits, too, and with another's only once the next transaction begins."""
        self._version = connection.data_version()

    def undone(self) -> None:
        """The transaction was rolled back: what it knew was not to be."""
        self.clear()
        self._version = None

    def clear(self) -> None:
        self.known.clear()
        self.gates.clear()
        self.rows.clear()

    def get(self, key: tuple[str | int, ...]) -> Known | None:
        return self.known.get(key)

    def keep(self, key: tuple[str | int, ...], known: Known) -> Known:
        self.known[key] = known
        return known

    def keep_new(self, execution: Execution) -> None:
        e = execution
        self.known[e.namespace, e.id] = Known({"status": e.status, "epoch": e.epoch}, e.has_children, e.inbox)
        if e.flow is not None and e.waits:
            self.keep_row(e)

    def keep_row(self, record: Record) -> None:
        """In place of the oldest, if there are many: nothing says when a flow asks for it no more."""
        if len(self.rows) >= ROWS_MAX:
            del self.rows[next(iter(self.rows))]
        self.rows[record.key] = record

    def matches(self, guard: Matches) -> bool:
        """Whether it is known to hold by a whole record. A time that was relative to the commit equals none."""
        row = self.rows.get(guard.key)
        return row is not None and all(getattr(row, name, _NO_VALUE) == value for name, value in guard.fields.items())

    def written(self, key: Key) -> None:
        """Its row is another now."""
        self.rows.pop(key, None)
        if key.kind == Execution.KIND:
            self.known.pop(key.values, None)
        elif key.kind in GATES:
            self.gates.clear()
