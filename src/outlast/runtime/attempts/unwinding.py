"""The undos of an execution whose code has ended for good: run one after the other, the last registered first.

That the undoing began, and with which end, is written down before the first one. From then on the code never goes on:
a replay only finds out again what there is to undo, and with which arguments. Each undo is a step of its own in the
journal: it is retried as its step says, its outcome is recorded, and a crash repeats none that was recorded. One that
fails for good is recorded as failed, and the next one is run: the execution ends as it would have ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.codec.failures import decode_failure, encode_failure, failure_of, raised_again
from outlast.errors import CodecError, CodecHookFailed, LeaseLost, LimitExceeded, WrongPlace
from outlast.machine.replay import beside
from outlast.model.journal import CANCELLED, FAILED, RETRY, SUCCEEDED, UNDO_SCOPE, UNWIND, JournalEntry, OperationKey
from outlast.model.status import Reason
from outlast.runtime.attempts.current import attempt_var, operation_var
from outlast.runtime.attempts.endings import CodeEnding, Completed, Continued, Ending, Raised, Unwound, kind_of
from outlast.runtime.attempts.mishaps import put_off
from outlast.runtime.attempts.operation import Operation, Outcome
from outlast.runtime.operations.performed import BackOff, Performed
from outlast.runtime.operations.step import exited

if TYPE_CHECKING:
    from outlast.runtime.attempts.attempt import LiveAttempt
    from outlast.runtime.parts import WorkflowDefinition

_log = logging.getLogger(__name__)

BEGAN = ("", "outlast:unwind", 1)


class Unwinding:
    """Of one attempt. `register` is called by workflow code, in the order of the program."""

    def __init__(self, attempt: LiveAttempt) -> None:
        self._attempt = attempt
        self._real = attempt.real
        self._undos: list[Performed] = []
        self._running: asyncio.Task[None] | None = None
        self._awaited: asyncio.Task[Any] | None = None
        """The undo that is being performed, for which `_running` waits."""
        self._rests = False
        """Whether it waits for time only."""

    def __bool__(self) -> bool:
        """Whether there is something to undo."""
        return bool(self._undos)

    def __len__(self) -> int:
        return len(self._undos)

    def register(self, undo: Performed) -> None:
        self._undos.append(undo)

    @property
    def under_way(self) -> list[asyncio.Task[Any]]:
        """What runs now, if anything does: of two tasks of which one waits for the other, that other one."""
        running = self._awaited or self._running
        return [] if running is None or self._rests else [running]

    def refuse_new_page(self) -> None:
        """`continue_as_new` would forget what to undo: the journal that says so, and the code that knows how."""
        if self:
            raise WrongPlace(
                f"continue_as_new was called with {len(self)} undo{'s' if len(self) > 1 else ''} registered, which the "
                "next generation could not run: return instead, or compensate in a child of its own"
            )

    def code_ended(self, ending: CodeEnding, workflow: WorkflowDefinition) -> None:
        """What succeeded, or will be tried again, ends so. Anything else is undone first."""
        attempt = self._attempt
        if isinstance(ending, Continued):
            try:
                self.refuse_new_page()  # registered behind the call, in a `finally`
            except WrongPlace as error:
                ending = Raised(error)
        if isinstance(ending, Completed) and attempt.growths:
            ending = self._all_done(ending)
        if isinstance(ending, Completed) and self:
            ending = self._storable(ending, workflow)
        if attempt.machine.code_ended(kind_of(attempt.lease, workflow, ending), undos=bool(self)):
            self.begin(ending if isinstance(ending, Raised) else Unwound())
        else:
            attempt.finish(ending)

    def _all_done(self, ending: Completed) -> Completed | Raised:
        """Code that returns without what it began to add to its flow has forgotten something."""
        undone = [growth.left_undone() for growth in self._attempt.growths]
        return next((Raised(error) for error in undone if error is not None), ending)

    def _storable(self, ending: Completed, workflow: WorkflowDefinition) -> Completed | Raised:
        """A result that cannot be stored is a failure: it is found out before it is too late to undo anything."""
        values, what = self._attempt.parts.values, f"result of {workflow.name}"
        try:
            values.settle(ending.value, workflow.arguments.result, what)
        except CodecHookFailed:
            return ending  # that is no reason to undo anything: whoever writes it down asks again
        except (CodecError, LimitExceeded) as error:
            return Raised(error)
        return ending

    def begin(self, ending: Raised | Unwound) -> None:
        """The code has ended; undo what it registered, then let the attempt end so."""
        self._running = self._real.create_task(self._run(ending), name="outlast unwinding")

    def close(self) -> None:
        if self._running is not None and self._running is not asyncio.current_task(self._real):
            self._running.cancel()

    def let_go(self) -> None:
        """The attempt has ended, and nothing of this is under way."""
        del self._attempt

    # ---- running --------------------------------------------------------------------------------------------------

    async def _run(self, ending: Raised | Unwound) -> None:
        attempt = self._attempt
        try:
            await attempt.quiet()  # nothing that is still under way may come after its undo
            ended = await self._begun(ending)
            for number in range(len(self._undos), 0, -1):
                await self._undo(number, self._undos[number - 1])
                if attempt.over:
                    return
            attempt.finish(ended)
        except LeaseLost as lost:
            attempt.lose(str(lost))
        except CodecHookFailed as error:
            attempt.errand(put_off(attempt, error))
        except asyncio.CancelledError:
            attempt.lose("the undoing was cancelled from outside")
            raise
        except Exception as error:
            if not attempt.parts.outages.explain(error):
                _log.exception("execution %s: its undos could not go on", attempt.execution.id)
            attempt.lose(f"its undos could not go on: {error}")

    async def _begun(self, ending: Raised | Unwound) -> Ending:
        """How it will end, as it is written down."""
        attempt, values = self._attempt, self._attempt.parts.values
        began = attempt.replay.unwound
        if began is None and isinstance(ending, Raised):
            failure = failure_of(ending.error)
            await self._record(BEGAN, UNWIND, FAILED, values.seal(encode_failure(failure)))
            return Raised(ending.error, failure)
        if began is None:
            await self._record(BEGAN, UNWIND, CANCELLED)
            return ending
        if began.outcome == CANCELLED:
            return Unwound()
        failure = decode_failure(values.unseal(began.value or b"{}"))
        what = f"workflow {attempt.execution.workflow!r}"
        return Raised(raised_again(failure, execution_id=attempt.execution.id, what=what), failure)

    async def _record(
        self, key: OperationKey, op: str, outcome: str, value: bytes | None = None, *, tries: int = 1
    ) -> bool:
        """Whether there was room for it. In a full journal it is undone all the same, if need be twice."""
        try:
            await self._attempt.lease.record(key, op, outcome, value, tries=tries)
        except LimitExceeded as error:
            _log.warning("execution %s: %s", self._attempt.execution.id, error)
            return False
        return True

    async def _undo(self, number: int, kind: Performed) -> None:
        attempt = self._attempt
        key = (UNDO_SCOPE, kind.name, number)
        if key in attempt.replay.recorded:
            return
        tries = attempt.replay.tries.get(key, [])
        done = tries[-1].occurrence if tries else 0  # those with a short backoff have no entry
        if tries:
            await self._back_off(_wake_at(tries[-1]))
        while not attempt.over:
            outcome = await self._perform(key, kind, done)
            if isinstance(outcome, BackOff):
                value = msgspec.json.encode(outcome.wake_at)
                counted = await self._record(beside(key, outcome.tries), RETRY, FAILED, value)
                await self._back_off(outcome.wake_at, stays=not counted)
                done = outcome.tries
                continue
            if outcome.error is not None:
                _log.error("execution %s: undo %r failed for good: %r", attempt.execution.id, kind.name, outcome.error)
            if outcome.entry is None:
                word = FAILED if outcome.error else SUCCEEDED
                await self._record(key, kind.OP, word, outcome.data, tries=max(outcome.tries, 1))
            return

    async def _perform(self, key: OperationKey, kind: Performed, tries: int) -> Outcome | BackOff:
        attempt = self._attempt
        context = contextvars.copy_context()
        place = (self._perform.__func__.__code__, 0)
        operation = Operation(key, kind, self._real.create_future(), context, place)
        context.run(attempt_var.set, attempt)
        context.run(operation_var.set, operation)
        _log.debug("performing %s of execution %s", key, attempt.execution.id)
        doing = operation.doing = self._real.create_task(
            self._outcome(operation, kind, tries),
            name=f"outlast undo {kind.name}",
            context=context,
        )
        self._awaited = doing
        try:
            outcome = await doing
        except asyncio.CancelledError:
            operation.dropped = True
            doing.cancel()
            raise
        finally:
            self._awaited = operation.doing = None
        if attempt.owes_frames:
            await attempt.stream.flushed()
        return outcome

    async def _outcome(self, operation: Operation, kind: Performed, tries: int) -> Outcome | BackOff:
        parts, execution = self._attempt.parts, self._attempt.execution
        try:
            return await kind.perform(parts, execution, operation, tries)
        except GeneratorExit as raised:
            return exited(parts.values, operation, raised)

    async def _back_off(self, wake_at: int, *, stays: bool = False) -> None:
        """A long one holds nobody: the execution is suspended until then. But it `stays` if only this attempt knows how
        often the undo was tried."""
        attempt, parts = self._attempt, self._attempt.parts
        while not stays and not attempt.over and wake_at - parts.holder.now > parts.resident_ms:
            await attempt.suspending.suspend(Reason.RETRY, (), wake_at)
        if not attempt.over and wake_at > parts.holder.now:
            woken: asyncio.Future[None] = self._real.create_future()

            def wake() -> None:
                if not woken.done():
                    woken.set_result(None)

            parts.timers.at(wake_at, wake, now=parts.holder.now)
            self._rests = True
            try:
                await woken
            finally:
                self._rests = False


def _wake_at(entry: JournalEntry) -> int:
    return msgspec.json.decode(entry.value or b"0", type=int)
