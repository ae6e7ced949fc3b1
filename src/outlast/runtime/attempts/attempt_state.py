"""What an attempt knows and has: its hold on the execution, its journal, what its code awaits, and its parts.

Many live at once, and the collector of garbage looks at every object of each, again and again. So a part is made when
it is first asked for (`late_parts.py`), and what is mostly empty is a dict, which costs nothing as long as it is.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from outlast.machine.replay import Replay
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry, OperationKey
from outlast.model.lease import ClaimedExecution
from outlast.runtime.attempts.asked import Asked
from outlast.runtime.attempts.code import Code, ThreadCode
from outlast.runtime.attempts.endings import Ending
from outlast.runtime.attempts.giving_up import GivingUp
from outlast.runtime.attempts.hearing import Hearing
from outlast.runtime.attempts.late_parts import LatePart
from outlast.runtime.attempts.lease import Lease
from outlast.runtime.attempts.operation import Operation, Outcome
from outlast.runtime.attempts.patches import Patches
from outlast.runtime.attempts.performing import Performing
from outlast.runtime.attempts.signals import Signal
from outlast.runtime.attempts.stream import Stream
from outlast.runtime.attempts.suspending import Suspending
from outlast.runtime.attempts.unwinding import Unwinding
from outlast.runtime.attempts.waits import Waits
from outlast.runtime.operations.grow import Growing
from outlast.runtime.parts import Parts, WorkflowDefinition

if TYPE_CHECKING:
    from outlast.runtime.attempts.attempt import LiveAttempt
    from outlast.runtime.attempts.recording import Recording


class Home(Protocol):
    """Where attempts live."""

    loop: asyncio.AbstractEventLoop
    """The process's real one. To ask which one runs takes a system call in Python 3.11."""

    def leaves(self, attempt: LiveAttempt) -> None:
        """Its code has ended, and only its end is on its way to the store."""
        ...


class AttemptState:
    __slots__ = (
        "__weakref__",
        "_arrivals",
        "_asked",
        "_begun",
        "_caught_up",
        "_code",
        "_ending",
        "_errands",
        "_fired",
        "_giving_up",
        "_hearing",
        "_held",
        "_home",
        "_outstanding",
        "_patches",
        "_performing",
        "_settling",
        "_signal",
        "_stream",
        "_struck",
        "_suspending",
        "_until_ended",
        "_unwinding",
        "_waits",
        "begins_here",
        "growths",
        "lease",
        "now_ms",
        "parts",
        "random",
        "real",
        "replay",
        "thread_id",
        "workflow",
    )

    asked = LatePart(Asked)
    giving_up = LatePart(GivingUp)
    hearing = LatePart(Hearing)
    patches = LatePart(Patches)
    performing = LatePart(Performing)
    stream = LatePart(Stream)
    suspending = LatePart(Suspending)
    unwinding = LatePart(Unwinding)
    waits = LatePart(Waits)

    def __init__(self, parts: Parts, claimed: ClaimedExecution, workflow: WorkflowDefinition, home: Home) -> None:
        self.parts = parts
        self.workflow = workflow
        self._home = home
        self.lease = Lease(parts, claimed, listener=self)
        self.replay = Replay()
        self.real = home.loop
        self.thread_id = threading.get_ident()
        self._outstanding: dict[OperationKey, Operation] = {}
        self._held: dict[Operation, None] = {}
        self._arrivals: list[tuple[Operation, Outcome, int] | JournalEntry] = []
        """What the code has next: outcomes, each with the time when it was recorded, and what comes by itself."""
        self._settling: dict[Operation, Recording | None] = {}
        """What has its outcome, which is on its way to the journal; and who is called back with the
        verdict on that, if no task waits for it."""
        self._errands: dict[asyncio.Task[Any], None] = {}
        self._fired: OperationKey | None = None
        """What the code has seen last, if that was a timer."""
        self._struck: OperationKey | None = None
        """The timer that made the code give something up last."""
        self._signal: type[Signal] | None = None
        self._ending: Ending | None = None
        self._until_ended: asyncio.Future[None] | None = None
        self._code: Code
        self._begun = False
        self.begins_here = False
        """Whether nothing was recorded before."""
        self._caught_up = False
        """Whether all that was recorded before is delivered."""
        self.now_ms = 0
        """The code's time."""
        self.random: dict[str, Random] = {}
        """The random numbers of each branch of the code, by what they grew from."""
        self.growths: tuple[Growing, ...] = ()
        """What the code adds to its flow."""
        self._asked: Asked | None = None
        self._giving_up: GivingUp | None = None
        self._hearing: Hearing | None = None
        self._patches: Patches | None = None
        self._performing: Performing | None = None
        self._stream: Stream | None = None
        self._suspending: Suspending | None = None
        self._unwinding: Unwinding | None = None
        self._waits: Waits | None = None

    @property
    def execution(self) -> Execution:
        return self.lease.execution

    @property
    def context(self) -> contextvars.Context:
        return self.parts.context

    @property
    def over(self) -> bool:
        return self._ending is not None

    @property
    def how_it_ended(self) -> Ending:
        assert self._ending is not None, "it is not over"
        return self._ending

    @property
    def lives(self) -> bool:
        """Whether its code has begun, and not ended."""
        return self._begun and self._ending is None

    @property
    def _comes_next(self) -> bool:
        """Whether what is recorded now is what the code has next: it lives, and nothing else has come, is on its way or
        waits for a look. Code that may have to be undone is looked at more closely (`idle`)."""
        before = self._settling or self._arrivals or self._held
        alive = self._ending is None and self._signal is None and self._unwinding is None
        return alive and self._caught_up and not before

    @property
    def busy(self) -> bool:
        """Whether commits are awaited."""
        return bool(self._errands or self._settling)

    @property
    def at_rest(self) -> bool:
        """Whether all that is recorded was delivered, and the code has nothing to run."""
        delivered = not self.replay and not self._arrivals
        return self.lives and self._signal is None and delivered and not self._code.can_move

    @property
    def owes_frames(self) -> bool:
        """Whether something that its code or its steps have shown waits to be written."""
        return self._stream is not None and self._stream.owes

    def hear(self, inbox: int) -> None:
        """Something came from outside; `inbox` is the newest number."""
        if inbox > self.lease.claimed_inbox:
            self.hearing.hear(inbox)

    def _let_go(self) -> None:
        """Leave no circle behind: what has ended is freed now, and not by a collection of garbage."""
        for part in (self._hearing, self._patches, self._performing, self._waits, self._unwinding):
            if part is not None:
                part.let_go()
        for part in (self._giving_up, self._suspending, self._asked):
            if part is not None:
                part.let_go()
        self.lease.let_go()
        self.begins_here = False  # what code that is still being stopped asks for is not made for it any more
        self._outstanding.clear()

    # ---- for tests ------------------------------------------------------------------------------------------------

    @property
    def under_way(self) -> list[asyncio.Future[Any]]:
        """Steps that run and commits that are awaited; nothing of that while it only waits for the outside."""
        performed = () if self._performing is None else self._performing.live.values()
        undone = () if self._unwinding is None else self._unwinding.under_way
        recorded = [recording.told() for recording in self._settling.values() if recording is not None]
        return [one for one in (*performed, *self._errands, *undone, *recorded) if not one.done()]

    @property
    def thinks(self) -> bool:
        """Whether a `def` workflow runs between two of its operations, in its thread."""
        return self.lives and isinstance(self._code, ThreadCode) and self._code.can_move
