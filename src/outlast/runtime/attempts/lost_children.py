"""Called children that were cancelled because the code gave them up, or because their parent ended.

A retry that waited for them again could never succeed. So it takes their starts out of the journal, and others are
started in their place. Nobody but the call holds such a child, and its name comes from its place in the code. One that
the code holds by a handle, or that has an id of its own, stays the same: what it was told is recorded.
"""

from __future__ import annotations

from outlast.codec.values import Values
from outlast.machine.replay import Replay, note_of
from outlast.model.journal import START, JournalEntry, OperationKey
from outlast.runtime.operations.child import started_by


def given_up(values: Values, parent: str, replay: Replay) -> list[OperationKey]:
    """The starts of those that the code of an attempt gave up, and the notes of starts that it gave up themselves:
    whoever is started there next, may be given up as well."""
    lost = {name for _, name, _ in replay.given_up.keys() - replay.recorded.keys()}
    if not lost and START not in replay.given_up.values():
        return []
    starts = {key: called_by(values, parent, entry) for key, entry in replay.recorded.items() if entry is not None}
    again = [key for key, child in starts.items() if child is not None and (child in lost or key in replay.given_up)]
    return [*again, *(note_of(key) for key, op in replay.given_up.items() if op == START)]


def called_by(values: Values, parent: str, entry: JournalEntry) -> str | None:
    """The child that a call of this execution has started, under the name of its place; None for any other entry."""
    started = started_by(values, parent, entry)
    return started.id if started is not None and started.called else None
