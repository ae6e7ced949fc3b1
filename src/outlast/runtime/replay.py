"""What the journal holds of an execution, and whose turn it is when its code is replayed.

Entries are delivered in the order in which they were recorded. There is one exception: where a retry took entries out
(the failure that escaped, and what was given up because of it), the code must wait for those to run again, and what was
recorded behind the gap is delivered as the code asks for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable

from outlast.model.journal import JournalEntry
from outlast.runtime.marks import marks_of
from outlast.runtime.operation import CANCEL, CANCELLED, RETRY, OperationKey

RETRIES = "~"
"""A step's failed tries are journaled beside it, under its scope with this mark."""


class Replay:
    """True while something is left to deliver."""

    def __init__(self) -> None:
        self._left: deque[JournalEntry] = deque()
        self._gap: int | None = None
        self.loose = False
        """Behind a gap: order no longer binds."""
        self.recorded: dict[OperationKey, JournalEntry] = {}
        self.tries: dict[OperationKey, list[JournalEntry]] = {}
        self.cancelled = False
        """Whether the code has observed a cancel."""

    def __bool__(self) -> bool:
        return bool(self._left)

    @property
    def head(self) -> JournalEntry:
        return self._left[0]

    def load(self, entries: Iterable[JournalEntry]) -> None:
        for place, entry in enumerate(entries):
            if self._gap is None and entry.position != place:
                self._gap = place
            if entry.op == RETRY:
                scope, name, occurrence = entry.scope.rstrip(RETRIES), *entry.name.rsplit("#", 1)
                self.tries.setdefault((scope, name, int(occurrence)), []).append(entry)
                continue
            self.append(entry)
            if entry.op != CANCEL:
                self.recorded[key_of(entry)] = entry

    def append(self, entry: JournalEntry) -> None:
        self._left.append(entry)
        self.cancelled = self.cancelled or entry.op == CANCEL

    def take(self, called: Container[OperationKey]) -> JournalEntry | None:
        """Take the entry whose turn it is; None if the code has not called its operation."""
        for place, entry in enumerate(self._left):
            if entry.op == CANCEL or entry.outcome == CANCELLED or key_of(entry) in called:
                del self._left[place]
                return entry
            if not self.loose:
                break
        return None

    def loosens(self, called: Iterable[OperationKey], *, can_move: bool) -> bool:
        """Whether the code may wait for what a retry runs again, before it gets to the head, if it ever does."""
        if self._gap is None or self.head.position < self._gap:
            return False
        awaited = [self.recorded.get(key) for key in called]
        self.loose = any(one is None or one.outcome != CANCELLED for one in awaited) or not can_move
        return self.loose

    def code_ended(self) -> None:
        """What the code gave up, or would have asked for behind a gap, it need not call again."""
        if self.loose or all(entry.outcome == CANCELLED for entry in self._left):
            self._left.clear()

    def escaped(self, error: BaseException, given_up: Iterable[OperationKey]) -> tuple[OperationKey, ...]:
        """What a retry runs again: the journaled failures that this error is or comes from, and what the code gave up
        because of them, or of an error of its own. Failures that it caught and lived with replay as they were.
        """
        failed = [key for key in marks_of(error) if key in self.recorded]
        again = dict.fromkeys([*failed, *given_up])
        if failed:
            first = min(self.recorded[key].position for key in failed)
            abandoned = [key for key, entry in self.recorded.items() if entry.outcome == CANCELLED]
            again |= dict.fromkeys(key for key in abandoned if self.recorded[key].position > first)
        tries = [key_of(entry) for key in again for entry in self.tries.get(key, ())]
        return (*again, *tries)


def key_of(entry: JournalEntry) -> OperationKey:
    return (entry.scope, entry.name, entry.occurrence)
