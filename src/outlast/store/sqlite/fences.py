"""What the writer knows of the executions that it writes for, so that a step need not read its fence again.

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

from outlast.model.execution import Execution
from outlast.model.record import Key
from outlast.store.sqlite.statements import statement

KNOWN_MAX = 20_000
FIELDS = ("status", "epoch", "has_children")
"""What the fences of a holder ask for: the first two with every write, all of them at the end."""
FENCES = frozenset({FIELDS[:2], FIELDS})


class Known(Struct, frozen=True, gc=False):
    """Of one execution: its fields as the two fences ask for them, and its inbox."""

    held: dict[str, Any]
    ends: dict[str, Any]
    inbox: int


def known(status: str, epoch: int, has_children: bool | int, inbox: int) -> Known:
    return Known(
        {"status": status, "epoch": epoch}, {"status": status, "epoch": epoch, "has_children": has_children}, inbox
    )


class Fences:
    """Of one connection that writes."""

    def __init__(self) -> None:
        self.known: dict[tuple[str | int, ...], Known] = {}
        self._version: int | None = None

    def begin(self, cursor: apsw.Cursor) -> None:
        """At the beginning of each transaction: has anybody else written since the last one?"""
        version: Any = cursor.execute(statement("data_version")).fetchone()
        if version != self._version or len(self.known) > KNOWN_MAX:
            self._version = version
            self.known.clear()

    def clear(self) -> None:
        self.known.clear()

    def get(self, key: tuple[str | int, ...]) -> Known | None:
        return self.known.get(key)

    def keep(self, key: tuple[str | int, ...], known: Known) -> Known:
        self.known[key] = known
        return known

    def keep_new(self, execution: Execution) -> None:
        e = execution
        self.known[e.namespace, e.id] = known(e.status, e.epoch, e.has_children, e.inbox)

    def drop(self, key: Key) -> None:
        """Its row is written."""
        if key.kind == Execution.KIND:
            self.known.pop(key.values, None)
