"""What the journal holds of an execution, and whose turn it is when its code is replayed.

Entries are delivered in the order in which they were recorded. There is one exception: where a retry took entries out
(the failure that escaped, and what was given up because of it), the code must wait for those to run again, and what was
recorded behind the gap is delivered as the code asks for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable

from msgspec import structs

from outlast.model.journal import JournalEntry
from outlast.runtime.marks import marks_of
from outlast.runtime.operation import CANCEL, CANCELLED, RETRY, OperationKey

RETRIES = "~"
"""A step's failed tries are journaled beside it, under its scope with this mark and the number of its call."""
TOO_LATE = "!"
"""An outcome that was on its way to the journal when the code gave the operation up is followed by an entry with this
mark: the code never saw it."""


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
        self._given_up: set[OperationKey] = set()
        self.too_late: set[OperationKey] = set()
        """What has an outcome that came when the code had given it up."""

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
                scope, _, occurrence = entry.scope.rpartition(RETRIES)
                self.tries.setdefault((scope, entry.name, int(occurrence)), []).append(entry)
                continue
            if entry.scope.endswith(TOO_LATE):
                entry = structs.replace(entry, scope=entry.scope.rstrip(TOO_LATE))
                self._left = deque(one for one in self._left if key_of(one) != key_of(entry))
                self.too_late.add(key_of(entry))
            self.append(entry)
            if entry.op != CANCEL:
                self.recorded[key_of(entry)] = entry

    def append(self, entry: JournalEntry) -> None:
        self._left.append(entry)
        self.cancelled = self.cancelled or entry.op == CANCEL

    def give_up(self, key: OperationKey) -> None:
        """The code has given up what is recorded: when that is next, it is passed over."""
        self._given_up.add(key)

    def take(self, called: Container[OperationKey], *, can_move: bool) -> JournalEntry | None:
        """Take the entry whose turn it is; None if the code has not called its operation, or not given it up yet."""
        for place, entry in enumerate(self._left):
            key = key_of(entry)
            # What a timer made it give up, it gives up when the timer has run again, and not before.
            passed = key in self._given_up or (entry.outcome == CANCELLED and (self.loose or not can_move))
            if entry.op == CANCEL or passed or (entry.outcome != CANCELLED and key in called):
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

    def code_ended(self, called: Container[OperationKey]) -> None:
        """What the code gave up, left behind, or would have asked for behind a gap, it need not call again; and it may
        end before it observes a cancel.
        """
        if self.loose or all(self._may_be_left(entry, called) for entry in self._left):
            self._left.clear()

    def _may_be_left(self, entry: JournalEntry, called: Container[OperationKey]) -> bool:
        key = key_of(entry)
        return entry.op == CANCEL or entry.outcome == CANCELLED or key in called or key in self._given_up

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
        return (*(self._in_journal(key) for key in again), *tries)

    def _in_journal(self, key: OperationKey) -> OperationKey:
        """A retry need not run again what has an outcome: it is enough that the code did not give it up."""
        scope, name, occurrence = key
        return (f"{scope}{TOO_LATE}", name, occurrence) if key in self.too_late else key


def key_of(entry: JournalEntry) -> OperationKey:
    return (entry.scope, entry.name, entry.occurrence)
