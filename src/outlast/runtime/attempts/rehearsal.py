"""Replay a recorded journal against the code as it is now, and touch nothing: does the code still do what it did?

Everything is as in an attempt, up to the end of the journal: what the code calls there is not begun, and nothing is
written down. Of an execution that sleeps, the one operation that it waits in belongs to that: whatever ends the wait
records it, and then the code must call it.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from msgspec import Struct, structs

from outlast.codec.failures import Failure
from outlast.errors import CodecHookFailed
from outlast.machine import facts
from outlast.model.execution import Execution
from outlast.model.journal import BEGAN, CANCELLED, PATCH, Awaited, JournalEntry, OperationKey
from outlast.model.lease import ClaimedExecution
from outlast.model.operation import WAITED
from outlast.runtime.attempts.asked import Asked
from outlast.runtime.attempts.attempt import LiveAttempt
from outlast.runtime.attempts.diverging import place_of
from outlast.runtime.attempts.endings import CodeEnding, Diverged, Ending, Gone, Raised
from outlast.runtime.attempts.lease import Lease
from outlast.runtime.attempts.operation import Operation
from outlast.runtime.attempts.stream import Progress, Stream
from outlast.runtime.attempts.unwinding import Unwinding
from outlast.runtime.attempts.waits import Waits
from outlast.runtime.holder import AsClaimed, Body, HolderQuestion, LeaseHolder, Recorder, Reply, TransactionReply
from outlast.runtime.parts import Parts, WorkflowDefinition

T = TypeVar("T")

PATIENCE_S = 10.0
"""A replay has nothing to wait for: one that takes longer waits for something that is not durable."""


class Divergence(Struct, frozen=True, kw_only=True):
    """What the journal has, what the code does instead, and where (`file:line`)."""

    expected: str
    actual: str
    line: str


class Rehearsed(Struct, frozen=True, kw_only=True):
    """`entries` is how long the journal is; without a divergence, all of them were met."""

    entries: int
    divergence: Divergence | None = None


async def rehearse(parts: Parts, execution: Execution, workflow: WorkflowDefinition) -> Rehearsed:
    """Reads the input and the journal, and writes nothing. `CodecHookFailed` if the codec
    cannot read them: that says nothing of the code."""
    claimed = await as_claimed(parts, execution)
    if claimed is None:
        return Rehearsed(entries=0)
    journal = claimed.journal or []
    woken = structs.replace(claimed, journal=[*journal, *_awaited(execution, journal, await parts.holder.time())])
    attempt = Rehearsal(parts, woken, workflow)
    ending, lines = await played(attempt, PATIENCE_S)
    return Rehearsed(entries=len(journal), divergence=_divergence(attempt, ending, workflow, lines))


def _awaited(execution: Execution, journal: list[JournalEntry], now: int) -> list[JournalEntry]:
    """The entry that will end its wait, without an outcome. None, if nobody records one but its holder (several waits,
    a flow), or if it has been woken since it was seen."""
    if not execution.awaits:
        return []
    awaited = Awaited.decode(execution.awaits)
    if awaited.op not in WAITED or (journal and journal[-1].position >= awaited.position):
        return []
    key = (awaited.scope, awaited.name, awaited.occurrence)
    return [_entry(execution, key, awaited.op, BEGAN, None, position=awaited.position, recorded_at=now)]


def _entry(
    e: Execution, key: OperationKey, op: str, outcome: str, value: bytes | None, *, position: int, recorded_at: int
) -> JournalEntry:
    """As it would be written down."""
    return JournalEntry(
        namespace=e.namespace,
        execution=e.id,
        generation=e.journal_generation,
        scope=key[0],
        name=key[1],
        occurrence=key[2],
        op=op,
        outcome=outcome,
        value=value,
        epoch=e.epoch,
        position=position,
        recorded_at=recorded_at,
        change_id="",
    )


async def played(attempt: Rehearsal, patience_s: float) -> tuple[Ending | None, list[str]]:
    """How it ended, or None if it does not; and where its code stood then. It does not go on, however this ends."""
    running = asyncio.ensure_future(attempt.run())
    try:
        await asyncio.wait((running,), timeout=patience_s)
        if attempt.unreadable is not None:
            raise attempt.unreadable
        return (running.result() if running.done() else None), attempt.lines()
    finally:
        attempt.lose("it took too long")
        await asyncio.wait((running,))


async def as_claimed(parts: Parts, execution: Execution) -> ClaimedExecution | None:
    """The execution and its input, as a worker would have them. None: its code has not begun, because it has no input
    yet (a member of a flow that waits for an output)."""
    claimed = await parts.holder.ask(execution, AsClaimed())
    if claimed is None:
        return None
    # A cancel that the code has not observed is not in the journal, and a first claim would not look for one. The time
    # that runs out is that of whoever holds it.
    changed = structs.replace(execution, cancel_requested=False, resumed=True, attempt_deadline_at=None)
    return structs.replace(claimed, execution=changed)


def _divergence(
    attempt: Rehearsal, ending: Ending | None, workflow: WorkflowDefinition, lines: list[str]
) -> Divergence | None:
    match ending:
        case Diverged(error):
            return Divergence(expected=error.expected, actual=error.actual, line=error.line)
        case Raised(error) if not attempt.began:
            return Divergence(expected="its arguments", actual=f"not take them: {error}", line=place_of(workflow))
        case None | Gone() if not attempt.reached_end:
            line = place_of(workflow, lines)
            return Divergence(expected="the next operation", actual="nothing: it waits for ever", line=line)
        case _:
            return None


class _Nowhere:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def leaves(self, attempt: LiveAttempt) -> None:
        return None


class Rehearsal(LiveAttempt):
    def __init__(self, parts: Parts, claimed: ClaimedExecution, workflow: WorkflowDefinition) -> None:
        super().__init__(parts, claimed, workflow, _Nowhere())
        self.lease = Lease(parts, claimed, listener=self, holder=_NothingWritten(parts.holder))
        self._stream = _Silence(self)
        self._asked = _NobodyAnswered(self)
        self._unwinding = _NothingUndone(self)
        self._waits = _NothingCorrected(self)
        self.began = self.reached_end = False
        self.unreadable: CodecHookFailed | None = None
        """What a worker would put it off for."""

    @property
    def replaying(self) -> bool:
        """What runs here is only looked at: it has run, or will, where it counts."""
        return True

    def _begin_code(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.began = True
        super()._begin_code(args, kwargs)

    def lines(self) -> list[str]:
        return self._code.lines() if self.machine.lives else []

    def _begin(self, operation: Operation) -> None:
        """All that is recorded was met: the rest would be new."""
        self.reached_end = True
        self._end(Gone(f"would go on with {operation}"))

    def nothing_runs(self) -> None:
        """All that is recorded was met here, too: code that can be told to change waits for that."""
        if self.asked.updates:
            self.reached_end = True
            self._end(Gone("would wait for an update"))
        else:
            super().nothing_runs()

    def _deliver_recorded(self, operation: Operation, entry: JournalEntry) -> bool:
        """What it waits in has no outcome yet: the code has called it, and that is all that is recorded."""
        if entry.outcome != BEGAN:
            return super()._deliver_recorded(operation, entry)
        self.reached_end = True
        self._end(Gone(f"would wait in {operation}"))
        return False

    def hear(self, inbox: int) -> None:
        return None

    async def hand_back(self, *, wait_ms: int = 0, because: CodecHookFailed | None = None) -> None:
        self.unreadable = because
        self._end(Gone("would be put off"))

    def finish(self, ending: Ending) -> None:
        """Of its children nobody is waited for."""
        self._end(ending)

    async def _commit(self, ending: Ending) -> None:
        return None


class _NobodyAnswered(Asked):
    def takes(self, *, can_move: bool) -> bool:
        return False

    async def settled(self) -> None:
        return None


class _NothingUndone(Unwinding):
    def code_ended(self, ending: CodeEnding, workflow: WorkflowDefinition) -> None:
        self._attempt.finish(ending)


class _NothingCorrected(Waits):
    def corrects(self, operation: Operation, entry: JournalEntry) -> bool:
        """Whoever holds the execution may have read it, and gone on."""
        return False


class _Silence(Stream):
    def emit(self, frame: object, operation: OperationKey | None) -> None:
        return None

    def show(self, progress: Progress) -> None:
        return None


class _NothingWritten:
    """What the lease of a replay asks. What the code gives up is noted by an attempt, and which patches it has when it
    begins; here that is only said to be. All else that would be written has no reply."""

    now = 0

    def __init__(self, holder: LeaseHolder) -> None:
        self._holder = holder

    async def ask(self, seen: Execution, question: HolderQuestion[T]) -> T:
        return await self._holder.ask(seen, question)

    async def tell(
        self,
        seen: Execution,
        fact: facts.HolderFact | facts.TimeOut | facts.Supersede,
        *,
        failure: Failure | None = None,
    ) -> Reply:
        if not isinstance(fact, facts.StepRecorded):
            return Reply(False, 0)
        if fact.op != PATCH and fact.outcome != CANCELLED:
            raise AssertionError(f"a replay would record {fact}")
        return Reply(True, 0)

    def submit(self, seen: Execution, fact: facts.StepRecorded, recorder: Recorder) -> bool:
        raise AssertionError(f"a replay would record {fact}")

    async def transact(
        self, seen: Execution, check: facts.StepRecorded, body: Body, *, limit_ms: int
    ) -> TransactionReply:
        raise AssertionError(f"a replay would transact {check}")
