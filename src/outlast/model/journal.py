"""The journal: one insert-only entry per durable operation of an execution, found again by its key at replay.

The key is fixed when the operation is called, not when it ends: (execution, generation, scope, name, occurrence).
`position` is the order in which the holder recorded them: replay delivers outcomes in that order, so that code which
depends on who was first takes the same way again.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec
from msgspec import Struct

from outlast.model.record import Key, Record, Time

SUCCEEDED, FAILED, CANCELLED, BEGAN = "succeeded", "failed", "cancelled", "began"
"""What became of an operation. `cancelled`: the code gave it up. `began`: it waits, at most until its value."""

STEP, RETRY, CANCEL, WAIT, PATCH, UNWIND = "step", "retry", "cancel", "wait", "patch", "unwind"
UPDATE, ORIGIN, START = "update", "origin", "start"
"""What an entry is about: an operation (each kind has its word, `step` is one), a failed try of a step, the cancel that
the code observed, how long a wait may last, which patches (`patched(name)`) the execution has, that the code has
ended and its undos run, an update that was accepted, the start of a child or a flow, or, in a fork, who recorded what
stands before it."""
SLEEP, TIMER, RECEIVE, DEFERRED, CHILD = "sleep", "timer", "receive", "deferred", "child"
"""Operations that wait. What each word means is in the table of `model/operation.py`."""
NOTHING = b"null"
"""The value of what has none."""

UPDATE_SCOPE = "update."
"""Where accepted updates stand: no branch of the code calls them."""
UNDO_SCOPE = "undo."
"""Where the undos stand that were run: beside all branches of the code."""

OperationKey: TypeAlias = tuple[str, str, int]
"""(scope, name, occurrence): with the execution and its generation, the journal's key."""


class JournalEntry(Record, frozen=True, kw_only=True):
    KIND: ClassVar[str] = "journal"
    KEY: ClassVar[tuple[str, ...]] = ("namespace", "execution", "generation", "scope", "name", "occurrence")
    TIMES: ClassVar[tuple[str, ...]] = ("recorded_at",)

    namespace: str
    execution: str
    generation: int
    scope: str
    name: str
    occurrence: int
    op: str
    outcome: str
    value: bytes | None
    tries: int = 1
    epoch: int
    position: int = 0
    recorded_at: Time
    change_id: str


class Origin(Struct, frozen=True, array_like=True, gc=False):
    """Who recorded what a fork has kept, and when its code had begun: while that is replayed, the fork's code sees the
    same time and the same random numbers."""

    id: str
    generation: int
    began_at: int | None


class Awaited(Struct, frozen=True, array_like=True, gc=False):
    """An operation that code waits for, and the place that its outcome will have in the journal."""

    op: str
    scope: str
    name: str
    occurrence: int
    position: int

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> Awaited:
        return _awaited.decode(text)


_awaited = msgspec.json.Decoder(Awaited)  # made once: making one takes longer than using it


def journal_key(namespace: str, execution: str, generation: int, scope: str, name: str, occurrence: int) -> Key:
    return Key(JournalEntry.KIND, (namespace, execution, generation, scope, name, occurrence))
