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

from outlast.machine.attempt import AttemptMachine
from outlast.model.execution import Execution
from outlast.model.lease import ClaimedExecution
from outlast.runtime.attempts.asked import Asked
from outlast.runtime.attempts.code import Code, ThreadCode
from outlast.runtime.attempts.endings import Asleep, Ending
from outlast.runtime.attempts.giving_up import GivingUp
from outlast.runtime.attempts.hearing import Hearing
from outlast.runtime.attempts.late_parts import LatePart
from outlast.runtime.attempts.lease import Lease
from outlast.runtime.attempts.operation import Operation, Outcome
from outlast.runtime.attempts.patches import Patches
from outlast.runtime.attempts.performing import Performing
from outlast.runtime.attempts.signals import Signal, Stopped, Suspended
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
        "_asked",
        "_code",
        "_ending",
        "_errands",
        "_giving_up",
        "_hearing",
        "_home",
        "_patches",
        "_performing",
        "_stream",
        "_suspending",
        "_until_ended",
        "_unwinding",
        "_waits",
        "begins_here",
        "growths",
        "lease",
        "machine",
        "now_ms",
        "parts",
        "random",
        "real",
        "replay",
        "thread_id",
        "workflow",
    )

    @property
    def replaying(self) -> bool:
        """Whether the code has not seen all yet that is recorded of it."""
        return bool(self.replay)

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
        self.machine: AttemptMachine[Operation, Outcome, Recording | None] = AttemptMachine()
        """What the code may do next; it knows operations, how they end, and which outcomes a callback waits for."""
        self.replay = self.machine.replay
        self.real = home.loop
        self.thread_id = threading.get_ident()
        self._errands: dict[asyncio.Task[Any], None] = {}
        self._ending: Ending | None = None
        """How it ended, once it is over."""
        self._until_ended: asyncio.Future[None] | None = None
        self._code: Code
        self.begins_here = False
        """Whether nothing was recorded before."""
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
        return self.machine.over

    @property
    def how_it_ended(self) -> Ending:
        assert self._ending is not None, "it is not over"
        return self._ending

    @property
    def signal(self) -> type[Signal]:
        """What durable operations raise in code that was left."""
        return Suspended if isinstance(self._ending, Asleep) else Stopped

    @property
    def busy(self) -> bool:
        """Whether commits are awaited."""
        return bool(self._errands or self.machine.settling)

    @property
    def at_rest(self) -> bool:
        """Whether all that is recorded was delivered, and the code has nothing to run."""
        return self.machine.at_rest and not self._code.can_move

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
        self.machine.outstanding.clear()

    # ---- for tests ------------------------------------------------------------------------------------------------

    @property
    def under_way(self) -> list[asyncio.Future[Any]]:
        """Steps that run and commits that are awaited; nothing of that while it only waits for the outside."""
        performed = () if self._performing is None else self._performing.live.values()
        undone = () if self._unwinding is None else self._unwinding.under_way
        recorded = [recording.told() for recording in self.machine.settling.values() if recording is not None]
        return [one for one in (*performed, *self._errands, *undone, *recorded) if not one.done()]

    @property
    def thinks(self) -> bool:
        """Whether a `def` workflow runs between two of its operations, in its thread."""
        return self.machine.lives and isinstance(self._code, ThreadCode) and self._code.can_move
