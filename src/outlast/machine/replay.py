"""The replay cursor: what the journal holds of an execution, and whose turn it is when its code is run again.

Outcomes are delivered in the order in which they were recorded, each when the code is idle. So code takes the same way
again, and what it does is compared with what it did: an outcome whose operation is not called is a divergence.

After a retry the replay may become loose. A retry takes the failure that escaped out of the journal, and what was
recorded behind it may belong to the way that the code took because of it (`except`, `finally`). So where a retried
execution does not get on, an outcome is delivered when its operation is called, and one that is not called any more is
no divergence.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from heapq import heapify, heappop, heappush

import msgspec

from outlast.model.journal import (
    CANCEL,
    ORIGIN,
    PATCH,
    RETRY,
    UNDO_SCOPE,
    UNWIND,
    WAIT,
    JournalEntry,
    OperationKey,
    Origin,
)
from outlast.model.operation import UNBIDDEN, WAITED

BESIDE = "~"
"""What belongs to a call (its failed tries, how long it may wait) stands beside it: under its scope with this mark and
the number of the call. A named timer stands under the mark alone: it is one for the whole execution."""
GIVEN_UP = "!"
"""That the code gave a call up is noted under its scope with this mark. If the call has an outcome too, that came too
late: the code never saw it."""

_wake_time = msgspec.json.Decoder(int)  # made once: making one takes longer than using it
_origin = msgspec.json.Decoder(Origin)

_NO_PATCHES = frozenset[str]()


class Replay:
    """True while something is left to deliver."""

    # Thousands live at once, most of them empty: what the collector of garbage would look at is made when it is needed.
    __slots__ = (
        "_called",
        "_gap",
        "_last",
        "_left",
        "_loose_left",
        "_origins",
        "_passed",
        "cancelled",
        "given_up",
        "loose",
        "patches",
        "recorded",
        "retried",
        "tries",
        "unwound",
        "wake_times",
    )

    def __init__(self) -> None:
        self._left: list[JournalEntry] = []
        """The next one last."""
        self._loose_left: dict[OperationKey, JournalEntry] = {}
        self._called: list[tuple[int, OperationKey]] | None = None
        """Of a loose one: what was called, the next one first."""
        self._gap: int | None = None
        self._last: int | None = None
        self.retried = False
        """Whether an attempt has failed before, or an operator opened it again."""
        self._passed: dict[OperationKey, None] = {}  # half the size of a set, and mostly empty
        self.loose = False
        """Order no longer binds."""
        self.recorded: dict[OperationKey, JournalEntry | None] = {}
        """The outcomes. None: a step of this attempt's own, which nobody reads again."""
        self.tries: dict[OperationKey, list[JournalEntry]] = {}
        self.wake_times: dict[OperationKey, int] = {}
        """Until when what waits may wait, by the store's clock."""
        self.given_up: dict[OperationKey, str] = {}
        """What is noted as given up: its word in the journal."""
        self.unwound: JournalEntry | None = None
        """That the code has ended, and how: its undos run. It must not go on."""
        self.patches = _NO_PATCHES
        """Those that its code had when it began."""
        self._origins: tuple[tuple[int, Origin], ...] = ()
        """Of a fork: who recorded what stands before each of these places."""
        self.cancelled = False
        """Whether the code has observed a cancel."""

    def __bool__(self) -> bool:
        return bool(self._left or self._loose_left)

    @property
    def head(self) -> JournalEntry:
        return self._left[-1]

    def load(self, entries: Iterable[JournalEntry], *, retried: bool = False) -> None:
        """The journal, by position."""
        self.retried = retried
        for place, entry in enumerate(entries):
            if self._gap is None and entry.position != place:
                self._gap = place
            self._last = entry.position
            if entry.op == RETRY:
                scope, _, call = entry.scope.rpartition(BESIDE)
                self.tries.setdefault((scope, entry.name, int(call)), []).append(entry)
            elif entry.op == WAIT:
                self.wake_times[waits_for(entry)] = _wake_time.decode(entry.value or b"0")
            elif entry.op == UNWIND:
                self.unwound = entry
            elif entry.scope == UNDO_SCOPE:
                self.recorded[key_of(entry)] = entry  # no code waits for it
            elif entry.op == PATCH:
                self.patches |= msgspec.json.decode(entry.value or b"[]", type=set[str])
            elif entry.op == ORIGIN:
                self._origins += ((entry.position, _origin.decode(entry.value or b"")),)
            elif entry.scope.endswith(GIVEN_UP):
                self.given_up[entry.scope.removesuffix(GIVEN_UP), entry.name, entry.occurrence] = entry.op
            else:
                self._left.append(entry)
                self.cancelled = self.cancelled or entry.op == CANCEL
                if entry.op not in UNBIDDEN:
                    self.recorded[key_of(entry)] = entry
        if self.given_up and not retried:
            self._left = [entry for entry in self._left if key_of(entry) not in self.given_up]
        self._left.reverse()

    @property
    def began_at(self) -> int | None:
        """When the code began whose journal a fork goes on with; None if this is no fork."""
        return self._origins[0][1].began_at if self._origins else None

    @property
    def origin(self) -> Origin | None:
        """Who recorded what is delivered next, if that was another one: a fork's code goes the same way through it."""
        if not self._origins or not self:
            return None
        place = self.head.position if self._left else min(entry.position for entry in self._loose_left.values())
        return next((origin for end, origin in self._origins if place < end), None)

    def unread(self) -> JournalEntry | None:
        """What the code may not have seen yet, once the journal is loaded: the end of its last wait, if nothing was
        recorded behind it."""
        last = self._left[0] if self._left else None
        return last if last is not None and last.op in WAITED and self.ends_with(last) else None

    def ends_with(self, entry: JournalEntry) -> bool:
        """Whether nothing was recorded behind it: the code has *recorded* nothing that depends on it."""
        return entry.position == self._last

    def hear(self, cancel: JournalEntry) -> None:
        """A cancel comes before any other wake-up: before what is unread, if anything is."""
        behind = 0 if self.unread() is None else 1
        self._left.insert(behind, cancel)
        self.cancelled = True

    def call(self, key: OperationKey) -> None:
        """The code has called an operation that is recorded."""
        if self._called is not None and (entry := self._loose_left.get(key)) is not None:
            heappush(self._called, (entry.position, key))

    def pass_over(self, key: OperationKey) -> None:
        """The code has given up what is recorded: when that is next, nobody waits for it."""
        self._passed[key] = None

    def take(self, called: Container[OperationKey]) -> JournalEntry | None:
        """Take the entry whose turn it is; None if the code has not called its operation yet."""
        while self._called:
            entry = self._loose_left.pop(heappop(self._called)[1], None)
            if entry is not None and (entry.op in UNBIDDEN or key_of(entry) in called):
                return entry
        while self._left:
            entry = self._left[-1]
            key = key_of(entry)
            passed = key in self._passed
            if not passed and key not in called and entry.op not in UNBIDDEN:
                return None
            self._left.pop()
            if not passed:
                return entry
        return None

    def loosens(self, called: Iterable[OperationKey], *, can_move: bool) -> bool:
        """Whether the code may go on without the head, because a retry may have changed its way before it."""
        past_gap = self._gap is not None and self.head.position >= self._gap
        waits_for_new = any(key not in self.recorded for key in called)
        if not (past_gap and waits_for_new) and not (self.retried and not can_move):
            return False
        self.loose = True
        self._loose_left = {key_of(entry): entry for entry in reversed(self._left)}
        self._called = [
            (entry.position, key)
            for key, entry in self._loose_left.items()
            if entry.op in UNBIDDEN or key in set(called)
        ]
        heapify(self._called)
        self._left.clear()
        return True

    def code_ended(self, called: Container[OperationKey]) -> None:
        """What the code left behind, or would have asked for behind a gap, it need not call again; and it may end
        before it observes a cancel.
        """
        if self and (self.loose or all(self._may_be_left(entry, called) for entry in self._left)):
            self._left.clear()
            self._loose_left.clear()

    def _may_be_left(self, entry: JournalEntry, called: Container[OperationKey]) -> bool:
        key = key_of(entry)
        return entry.op == CANCEL or key in called or key in self._passed

    def escaped(self, failed: Iterable[OperationKey]) -> tuple[OperationKey, ...]:
        """What a retry takes out of the journal: these failures, and what stands beside them; and how long all that has
        no outcome may wait, which begins anew. What the code caught and lived with replays as it was.
        """
        again: list[OperationKey] = []
        for key in failed:
            if key in self.recorded:
                again += [key, *(key_of(entry) for entry in self.tries.get(key, ()))]
                if key in self.wake_times:
                    again.append(beside(key, 0))
        again += [beside(key, 0) for key in self.wake_times if key not in self.recorded and not is_named_timer(key)]
        return tuple(again)


def key_of(entry: JournalEntry) -> OperationKey:
    return (entry.scope, entry.name, entry.occurrence)


def waits_for(entry: JournalEntry) -> OperationKey:
    """The call that may wait so long; or a named timer, which is no call's."""
    scope, mark, call = entry.scope.rpartition(BESIDE)
    return (scope, entry.name, int(call)) if call else (mark, entry.name, 0)


def is_named_timer(key: OperationKey) -> bool:
    return key[2] == 0  # calls are counted from 1


def note_of(key: OperationKey) -> OperationKey:
    """The key of the note that a call was given up."""
    scope, name, occurrence = key
    return (f"{scope}{GIVEN_UP}", name, occurrence)


def beside(key: OperationKey, number: int) -> OperationKey:
    """The key of what stands beside a call: a failed try has its number, how long it may wait has none."""
    scope, name, occurrence = key
    return (f"{scope}{BESIDE}{occurrence}", name, number)
