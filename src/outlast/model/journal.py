"""The journal: one insert-only entry per durable operation of an execution, found again by its key at replay.

The key is fixed when the operation is called, not when it ends: (execution, generation, scope, name, occurrence).
`position` is the order in which the holder recorded them: replay delivers outcomes in that order, so that code which
depends on who was first takes the same way again.
"""

from __future__ import annotations

from typing import ClassVar

from outlast.model.record import Key, Record, Time

STEP, RETRY, CANCEL = "step", "retry", "cancel"
"""What an entry is of (`op`): a step's outcome, a failed try before another one, the cancel that code heard."""
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
"""How an operation ended (`outcome`); cancelled is what the code gave up."""


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


def journal_key(namespace: str, execution: str, generation: int, scope: str, name: str, occurrence: int) -> Key:
    return Key(JournalEntry.KIND, (namespace, execution, generation, scope, name, occurrence))
