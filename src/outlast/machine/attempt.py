"""An attempt: what the code of an execution may do next, and what becomes of it. Pure: no task, no future, no clock.

The driver (`runtime/attempts`) tells the machine what happened, which is an *input*, and does what it answers.

Replay first. The journal's outcomes are delivered one at a time, in the order in which they were recorded, each when
the code is idle; an operation that is not in the journal is held until all of them are delivered. So code takes the
same way again, whatever was fast or slow the first time, and code that would take another way is found out before it
does anything. After a retry the order may stop to bind (`machine/replay.py`): then an outcome is delivered when its
operation is called.

Then live. What the code calls begins at once. An outcome is recorded, and only then delivered. When the code is idle
and all that it awaits is durable, the attempt suspends. When the code has ended for good, its undos run; then the
attempt ends. A lost lease, a drain or a timeout leaves the code in any state.

`MOVES` says which input leads from which state to which; `docs/state-machine.md` is drawn from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from typing import Generic, TypeVar

from msgspec import Struct

from outlast.errors import CorruptState
from outlast.machine.replay import Replay
from outlast.model.journal import CANCEL, START, JournalEntry, OperationKey
from outlast.model.status import Reason

Op = TypeVar("Op")
"""An operation of the code, as the driver knows it."""
Out = TypeVar("Out")
"""What an operation comes to."""
Way = TypeVar("Way")
"""How the driver sends an outcome to the journal."""


class State(StrEnum):
    READING = "reading"
    """The journal is read; the code has not begun."""
    REPLAYING = "replaying"
    """The code is given what is recorded, in its order."""
    LOOSE = "loose"
    """A retry may have changed the way of the code: it is given what is recorded when it calls for it."""
    LIVE = "live"
    """All that is recorded was delivered: what the code calls begins."""
    SUSPENDING = "suspending"
    """A suspension is on its way to the journal: what the code calls is held."""
    UNWINDING = "unwinding"
    """The code has ended for good, and its undos run."""
    ENDING = "ending"
    """The code has ended; it is asked whether children must end first."""
    ENDED = "ended"
    """The end is known, or the attempt left the code: the driver commits what is to be said of it."""


class Input(StrEnum):
    BEGUN = "begun"
    """The journal is loaded: the code begins."""
    CALLED = "called"
    """The code calls an operation."""
    RECORDED = "recorded"
    """An outcome is in the journal."""
    ARRIVED = "arrived"
    """A cancel or an update is in the journal: the code did not ask for it."""
    IDLE = "idle"
    """The code has nothing to run."""
    REFUSED = "refused"
    """The suspension was refused: something came from outside."""
    CODE_ENDED = "code ended"
    """The code returned or raised."""
    UNDONE = "undone"
    """All undos have their outcome."""
    LEFT = "left"
    """The attempt leaves the code: suspended, lost, drained, timed out, diverged, or ended by itself."""


S = State
_AFTER_CODE = frozenset({S.UNWINDING, S.ENDING})
_LEFT = frozenset({S.ENDED})


def _stays(state: State) -> dict[Input, frozenset[State]]:
    same = frozenset({state})
    return {Input.CALLED: same, Input.RECORDED: same, Input.ARRIVED: same}


MOVES: Mapping[State, Mapping[Input, frozenset[State]]] = {
    S.READING: {Input.BEGUN: frozenset({S.REPLAYING, S.LIVE}), Input.LEFT: _LEFT},
    S.REPLAYING: {
        **_stays(S.REPLAYING),
        Input.IDLE: frozenset({S.REPLAYING, S.LOOSE, S.LIVE}),
        Input.CODE_ENDED: _AFTER_CODE,
        Input.LEFT: _LEFT,
    },
    S.LOOSE: {
        **_stays(S.LOOSE),
        Input.IDLE: frozenset({S.LOOSE, S.LIVE, S.SUSPENDING}),
        Input.CODE_ENDED: _AFTER_CODE,
        Input.LEFT: _LEFT,
    },
    S.LIVE: {
        **_stays(S.LIVE),
        Input.IDLE: frozenset({S.LIVE, S.SUSPENDING}),
        Input.CODE_ENDED: _AFTER_CODE,
        Input.LEFT: _LEFT,
    },
    S.SUSPENDING: {
        **_stays(S.SUSPENDING),
        Input.IDLE: frozenset({S.SUSPENDING}),
        Input.REFUSED: frozenset({S.LOOSE, S.LIVE}),
        Input.CODE_ENDED: _AFTER_CODE,
        Input.LEFT: _LEFT,
    },
    S.UNWINDING: {**_stays(S.UNWINDING), Input.UNDONE: frozenset({S.ENDING}), Input.LEFT: _LEFT},
    S.ENDING: {Input.RECORDED: frozenset({S.ENDING}), Input.ARRIVED: frozenset({S.ENDING}), Input.LEFT: _LEFT},
    S.ENDED: {Input.RECORDED: _LEFT, Input.ARRIVED: _LEFT, Input.LEFT: _LEFT},
}
"""From each state, with each input, to which states. Code that was left calls nothing: durable operations raise."""

_OVER = frozenset({S.UNWINDING, S.ENDING, S.ENDED})


class Called(Enum):
    """What becomes of an operation that the code calls."""

    BEGIN = 1
    HOLD = 2
    """Until all that is recorded is delivered, or the suspension was refused."""
    REPLAY = 3
    """Its outcome is recorded: it is delivered when that is its turn."""
    DIVERGE = 4
    """The journal has another operation in its place."""


class Unmet(Struct, frozen=True):
    """The code does not call what the journal has next, and nothing can make it: it is not the code that it was."""

    entry: JournalEntry


class Replayed(Enum):
    """What a replay has next, if it is no entry."""

    WAIT = 1
    """The code may still call what is recorded."""
    NOTHING = 2
    """All that is recorded was delivered, or none of the rest binds."""


class Note(Enum):
    """Whether it is noted in the journal that the code gave an operation up."""

    NOT = 1
    NOW = 2
    LATER = 3
    """Once the code has caught up with its journal: then it is the same code."""


class CodeEnd(StrEnum):
    """How code ends by itself."""

    COMPLETED = "completed"
    CONTINUED = "continued as new"
    CANCELLED = "cancelled"
    FAILED = "failed, and is tried again"
    FAILED_FOR_GOOD = "failed for good"


# Looked up with every step: of an enum that takes longer than of a module.
_READING, _REPLAYING, _LOOSE, _LIVE = S.READING, S.REPLAYING, S.LOOSE, S.LIVE
_SUSPENDING, _ENDING, _ENDED = S.SUSPENDING, S.ENDING, S.ENDED
_BEGIN, _HOLD, _REPLAY = Called.BEGIN, Called.HOLD, Called.REPLAY


class AttemptMachine(Generic[Op, Out, Way]):
    """The `state`, and what the code awaits.

    Thousands live at once. What is mostly empty is a dict, which costs nothing as long as it is."""

    __slots__ = (
        "arrivals",
        "fired",
        "held",
        "left",
        "listens",
        "outstanding",
        "over",
        "replay",
        "settling",
        "state",
        "struck",
    )

    def __init__(self) -> None:
        self.state = _READING
        self.over = False
        self.left = False
        """Whether what the code does counts no more: durable operations raise."""
        self.listens = True
        """Whether the code is given anything."""
        self.replay = Replay()
        self.outstanding: dict[OperationKey, Op] = {}
        """What the code has called, and has no outcome of."""
        self.held: dict[Op, None] = {}
        """What of that has not begun."""
        self.settling: dict[Op, Way] = {}
        """What has an outcome that is on its way to the journal."""
        self.arrivals: list[tuple[Op, Out, int] | JournalEntry] = []
        """What the code has next: outcomes, each with the time when it was recorded, and what comes by itself."""
        self.fired: OperationKey | None = None
        """What the code was given last, if that was a timer."""
        self.struck: OperationKey | None = None
        """The timer that made the code give something up last."""

    # ---- what the state says --------------------------------------------------------------------------------------

    @property
    def lives(self) -> bool:
        """Whether the code has begun, and the attempt is not over."""
        return self.state is not _READING and self.state is not _ENDED

    @property
    def at_rest(self) -> bool:
        """Whether all that is recorded was delivered, to code that is not left."""
        return self.lives and not self.left and not self.replay and not self.arrivals

    @property
    def comes_next(self) -> bool:
        """Whether what is recorded now is what the code has next: nothing else has come, is on its way or waits."""
        return self.state is _LIVE and not (self.settling or self.arrivals or self.held)

    # ---- inputs ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The journal is loaded, and the code begins."""
        self._move(Input.BEGUN, _REPLAYING if self.replay or self.replay.unwound is not None else _LIVE)

    def call(self, operation: Op, key: OperationKey, op: str) -> Called:
        """The code calls an operation; `op` is its word in the journal."""
        entry = self.replay.recorded.get(key)
        if entry is not None and entry.op != op:
            return Called.DIVERGE
        self.outstanding[key] = operation
        if entry is not None:
            self.replay.call(key)
            return _REPLAY
        if self.replay and (self.state is _REPLAYING or self.state is _LOOSE):
            self.held[operation] = None
            return _HOLD
        return self.hold_or_begin(operation)

    def hold_or_begin(self, operation: Op) -> Called:
        """What was called before, and is to begin now."""
        if self.state is not _SUSPENDING:
            return _BEGIN
        self.held[operation] = None
        return _HOLD

    def hears_cancel(self) -> bool:
        """Whether a cancel is what the code has next: a `def` workflow hears of it at the operation that it calls."""
        return not self.replay and any(type(one) is JournalEntry and one.op == CANCEL for one in self.arrivals)

    def next_recorded(self, *, can_move: bool) -> JournalEntry | Unmet | Replayed:
        """What the code is given next of the journal. `can_move`: it may go on by itself."""
        replay = self.replay
        while replay:
            entry = replay.take(self.outstanding)
            if entry is not None:
                return entry
            if replay.loose:
                return Replayed.NOTHING
            if replay and replay.loosens(self.outstanding, can_move=can_move):
                self._move(Input.IDLE, _LOOSE)
            elif replay:
                return Replayed.WAIT if can_move else Unmet(replay.head)
        if replay.unwound is not None:  # the code has ended before; it must not go on now
            return Replayed.WAIT if can_move else Unmet(replay.unwound)
        if self.state is not _SUSPENDING:
            self._move(Input.IDLE, _LIVE)
        return Replayed.NOTHING

    @property
    def replays(self) -> bool:
        """Whether the journal may have something to deliver."""
        state = self.state
        return state is _REPLAYING or state is _LOOSE or (state is _SUSPENDING and bool(self.replay))

    def release(self) -> Sequence[Op]:
        """What was held, and begins now."""
        if not self.held or self.state is _SUSPENDING:
            return ()
        held, self.held = self.held, {}
        return [*held]

    def send(self, operation: Op, way: Way) -> None:
        """The operation has an outcome, which is on its way to the journal."""
        self.settling[operation] = way

    def answered(self, operation: Op) -> bool:
        """The store has answered. False if the attempt does not wait for that any more."""
        if operation not in self.settling:
            return False
        del self.settling[operation]
        return True

    def recorded(self, operation: Op, outcome: Out, at: int) -> None:
        """The outcome is in the journal since `at`: the code is given it when it is idle."""
        self.arrivals.append((operation, outcome, at))

    def arrived(self, entry: JournalEntry) -> None:
        """What the code did not call for has come, and is recorded."""
        self.arrivals.append(entry)

    def delivered(self, key: OperationKey, *, timer: bool) -> None:
        """The code was given an outcome."""
        self.outstanding.pop(key, None)
        self.fired = key if timer else None

    def give_up(self, operation: Op, key: OperationKey) -> bool:
        """The code gave an operation up (a timeout, a failed sibling). Whether that changes anything."""
        if self.outstanding.pop(key, None) is None or self.left:
            return False
        if self.fired is not None:
            self.struck = self.fired
        self.held.pop(operation, None)
        return True

    def note(self, key: OperationKey, op: str, *, noted: bool) -> Note:
        """What is said of an operation that the code gave up; `noted`: its kind is worth a note."""
        replay, recorded = self.replay, key in self.replay.recorded
        if recorded:
            replay.pass_over(key)
        if not noted or key in replay.given_up:
            return Note.NOT
        if not recorded or not replay:
            return Note.NOW
        return Note.LATER if op == START else Note.NOT

    def suspend(self) -> None:
        """The code is idle, and the driver writes down that it waits."""
        self._move(Input.IDLE, _SUSPENDING)

    def stay(self) -> None:
        """The suspension was refused, or cannot be written."""
        if self.state is _SUSPENDING:
            self._move(Input.REFUSED, _LOOSE if self.replay else _LIVE)

    def end_of_replay(self, *, observed_cancel: bool) -> JournalEntry | None:
        """The code has ended: what is recorded and should have come first, if anything is. Code that ends by a cancel
        may leave what it did."""
        self.replay.code_ended(self.outstanding)
        return self.replay.head if self.replay and not observed_cancel else None

    def code_ended(self, end: CodeEnd, *, undos: bool) -> bool:
        """Whether its undos run now: what succeeded, goes on as new or is tried again is not undone. Not if they began
        to run in an attempt before, whatever the code comes to now."""
        for_good = end is CodeEnd.CANCELLED or end is CodeEnd.FAILED_FOR_GOOD
        if self.replay.unwound is None and not (undos and for_good):
            return False
        self._move(Input.CODE_ENDED, S.UNWINDING)
        return True

    def finish(self, end: CodeEnd, *, has_children: bool) -> bool:
        """The code has ended, and all undos have their outcome. Whether its children must be asked for first: not if
        the execution goes on, nor behind a cancel, which ends them."""
        if not has_children or end not in (CodeEnd.COMPLETED, CodeEnd.FAILED_FOR_GOOD):
            return False
        self._move(Input.UNDONE if self.state is S.UNWINDING else Input.CODE_ENDED, _ENDING)
        return True

    def leave(self) -> bool:
        """Whether the attempt is over by this: what comes first counts."""
        if self.state is _ENDED:
            return False
        self._move(Input.LEFT, _ENDED)
        return True

    def _move(self, by: Input, to: State) -> None:
        if to not in MOVES[self.state].get(by, ()):
            raise CorruptState(f"{by} would turn an attempt that is {self.state} into one that is {to}")
        self.state = to
        self.over = to is _ENDED
        self.left = self.over or to is _ENDING
        self.listens = to not in _OVER


# ---- suspending ---------------------------------------------------------------------------------------------------


class IdleCode(Struct, frozen=True):
    """What code that is idle waits for: `waits` from outside, until `wake_at` at most; the next try of a step that
    failed; updates that it `listens` for. `outstanding`: it awaits operations at all."""

    waits: tuple[str, ...]
    wake_at: int | None
    next_try_at: int | None
    listens: tuple[str, ...]
    outstanding: bool


class Suspension(Struct, frozen=True):
    """Suspend, for a reason, until one of `waits` comes, or `wake_at`. `alone`: only the one awaited operation can wake
    the code."""

    reason: str
    waits: tuple[str, ...]
    wake_at: int | None
    alone: bool


class NoWayOn(Enum):
    """The code awaits something that no durable operation can end."""

    FOR_EVER = 1


def when_idle(
    code: IdleCode, *, now: int, resident_ms: int, refused: tuple[str, ...] | None
) -> Suspension | NoWayOn | None:
    """What becomes of code that is idle while nothing runs for it. None: it stays, because it would be woken within
    `resident_ms`, because a suspension for the same was `refused`, or because what it awaits is under way."""
    times = [time for time in (code.wake_at, code.next_try_at) if time is not None]
    if times and min(times) - now <= resident_ms:
        return None
    named = tuple(wait for wait in code.waits if wait != Reason.TIMER)
    for_what = (*named, *code.listens)
    if refused == for_what:
        return None
    if times or code.waits or code.listens:
        timed = Reason.TIMER if code.wake_at is not None else Reason.RETRY if times else None
        reason = named[0] if named else timed or code.listens[0]
        alone = code.next_try_at is None and not code.listens
        return Suspension(reason, for_what, min(times, default=None), alone)
    return None if code.outstanding else NoWayOn.FOR_EVER
