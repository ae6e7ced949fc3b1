"""Called children that were cancelled because the code gave them up, or because their parent ended.

A retry that waited for them again could never succeed. So it takes their starts out of the journal, and others are
started in their place. Nobody but the call holds such a child, and its name comes from its place in the code. One that
the code holds by a handle, or that has an id of its own, stays the same: what it was told is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from outlast import limits
from outlast.codec.values import Values
from outlast.machine.replay import Replay, key_of, note_of
from outlast.model.execution import Execution, execution_key
from outlast.model.journal import CANCELLED, CHILD, START, JournalEntry, OperationKey
from outlast.model.status import Status
from outlast.runtime.operations.child import started_by
from outlast.store.port import Store


def given_up(values: Values, parent: str, replay: Replay) -> list[OperationKey]:
    """The starts of those that the code of an attempt gave up, and the notes of starts that it gave up themselves:
    whoever is started there next, may be given up as well."""
    lost = {name for _, name, _ in replay.given_up.keys() - replay.recorded.keys()}
    if not lost and START not in replay.given_up.values():
        return []
    starts = {key: _called(values, parent, entry) for key, entry in replay.recorded.items() if entry is not None}
    again = [key for key, child in starts.items() if child is not None and (child in lost or key in replay.given_up)]
    return [*again, *(note_of(key) for key, op in replay.given_up.items() if op == START)]


async def cancelled(
    store: Store, values: Values, parent: Execution, journal: Sequence[JournalEntry]
) -> list[JournalEntry]:
    """The starts of those whose end the code of one that has ended never saw, and the notes of starts."""
    notes = {key_of(entry): entry for entry in journal if entry.op == START and entry.outcome == CANCELLED}
    noted = {entry.name for entry in journal if entry.op == CHILD and entry.outcome == CANCELLED}
    seen = {entry.name for entry in journal if entry.op == CHILD and entry.outcome != CANCELLED}
    called = ((_called(values, parent.id, entry), entry) for entry in journal)
    unseen = ((child, entry) for child, entry in called if child is not None and child not in seen)
    lost = list(notes.values())
    while some := list(islice(unseen, limits.LOAD_MAX_KEYS)):
        heads = await store.load([execution_key(parent.namespace, child) for child, _ in some])
        found = zip(some, heads, strict=True)
        lost += [
            entry
            for (child, entry), head in found
            if child in noted or note_of(key_of(entry)) in notes or _is_cancelled(head)
        ]
    return lost


def _called(values: Values, parent: str, entry: JournalEntry) -> str | None:
    """The child that a call of this execution has started, under the name of its place; None for any other entry."""
    started = started_by(values, parent, entry)
    return started.id if started is not None and started.called else None


def _is_cancelled(head: object) -> bool:
    return isinstance(head, Execution) and head.status is Status.CANCELLED
