"""An attempt under way in this process: the user's code, its replay, its operations, and what becomes of it.

Replay first. The journal's outcomes are delivered one at a time, in the order in which they were recorded, each when
the code is idle; an operation that is not in the journal begins only when all of them are delivered. So code takes the
same way again, whatever was fast or slow the first time, and code that would take another way is found out before it
does anything: `NonDeterminism`, and the execution waits for a fixed deploy.

A retry takes entries out of the journal: the failure that escaped, so that it runs again. What was recorded after such
a gap may belong to the way that the code took because of the failure (`finally`, `except`), so from there on the replay
is loose: an outcome is delivered when its operation is called, and one that is not called any more is no divergence.

Then live. An operation runs outside of the workflow's code, its outcome is committed (fenced by the lease), and only
then delivered. Every commit says what came from outside (`inbox`): a cancel is seen at the next step.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from typing import Any

import msgspec

from outlast.codec.failures import decode_failure, encode_failure, failure_of, raised_again
from outlast.errors import CodecError, CodecHookFailed, LeaseLost, LimitExceeded, NonDeterminism, WrongPlace
from outlast.machine import facts
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.model.record import settled
from outlast.model.status import Reason
from outlast.runtime.code import AsyncCode, Code, ThreadCode
from outlast.runtime.current import attempt_var, step_var
from outlast.runtime.endings import (
    Asleep,
    Completed,
    Diverged,
    Ending,
    Gone,
    Raised,
    Unwound,
    commit_ending,
)
from outlast.runtime.lease import Lease
from outlast.runtime.marks import marked
from outlast.runtime.operation import (
    CANCEL,
    CANCELLED,
    FAILED,
    RETRY,
    STEP,
    SUCCEEDED,
    Operation,
    OperationKey,
    StepDefinition,
    calling_place,
    described,
)
from outlast.runtime.parts import Parts, WorkflowDefinition
from outlast.runtime.replay import RETRIES, TOO_LATE, Replay, key_of
from outlast.runtime.signals import Signal, Stopped, Suspended
from outlast.runtime.steps import BackOff, Outcome, perform
from outlast.runtime.workflow_loop import scope_var
from outlast.store.port import ClaimedExecution

_log = logging.getLogger(__name__)


class LiveAttempt:
    """`ending = await LiveAttempt(parts, claimed, workflow).run()`."""

    def __init__(self, parts: Parts, claimed: ClaimedExecution, workflow: WorkflowDefinition) -> None:
        self._parts = parts
        self._lease = Lease(parts, claimed.execution, heard=self.hear)
        self._input = claimed.input
        self._workflow = workflow
        self._real = asyncio.get_running_loop()
        self._replay = Replay()
        self._outstanding: dict[OperationKey, Operation] = {}
        self._held: list[Operation] = []
        self._given_up: list[OperationKey] = []
        """What the code gave up since an outcome was last delivered to it."""
        self._arrivals: deque[tuple[Operation, Outcome] | JournalEntry] = deque()
        self._live: dict[Operation, asyncio.Task[None]] = {}
        self._backing_off: dict[Operation, tuple[int, asyncio.TimerHandle]] = {}
        self._settling: set[Operation] = set()
        """What has its outcome, which is on its way to the journal."""
        self._errands: set[asyncio.Task[Any]] = set()
        self._looking = False
        self._suspending = False
        self._warned = False
        self._signal: type[Signal] | None = None
        self._ended: asyncio.Future[Ending] = self._real.create_future()
        self._code: Code
        self._begun = False

    @property
    def execution(self) -> Execution:
        return self._lease.execution

    # ---- life -----------------------------------------------------------------------------------------------------

    async def run(self) -> Ending:
        """From the claim to the end, committed. Never raises what user code raised."""
        try:
            self._replay.load(await self._lease.journal())
            if self.execution.cancel_requested and not self._replay.cancelled:
                self._replay.append(await self._record_cancel())
            args, kwargs = self._workflow.arguments.decode(self._parts.values, self._input)
        except CodecHookFailed:
            raise  # nothing is wrong with the work: it is handed back, and tried again
        except CodecError as error:
            ending: Ending = Raised(error)
            await self._commit(ending)
            return ending
        except LeaseLost as lost:
            return Gone(str(lost))
        if self._ended.done():  # lost or handed back before the code began
            return self._ended.result()
        context = contextvars.copy_context()
        context.run(attempt_var.set, self)
        colour = AsyncCode if self._workflow.is_async else ThreadCode
        self._code = colour(self._workflow.fn, args, kwargs, context, idle=self._idle, ended=self._code_ended)
        self._begun = True
        self._code.begin()
        alarm = self._set_alarm()
        try:
            ending = await self._ended
        finally:
            if alarm is not None:
                alarm.cancel()
        if isinstance(ending, Raised):
            await self._settle_errands()  # what was given up must be recorded before a retry runs it again
        await self._commit(ending)
        await self._settle_errands()
        return ending

    def lose(self, why: str) -> None:
        """The lease is gone: stop the user's code at once. Nothing that it does is written any more."""
        self._end(Gone(why), Stopped)

    async def hand_back(self) -> None:
        """Leave it to another worker, counting nothing."""
        self._end(Gone("handed back"), Stopped)
        await self._lease.tell(facts.HandBack(change_id=self._lease.new_id(), epoch=self.execution.epoch))

    def hear(self, inbox: int) -> None:
        """Something came from outside; `inbox` is the newest number. It counts as known once it was looked at."""
        if inbox > self._lease.inbox and not self._looking and not self._ended.done():
            self._looking = True
            self._errand(self._look_outside())

    # ---- called by user code --------------------------------------------------------------------------------------

    def step(self, step: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> asyncio.Future[Any]:
        """An operation of `async def` code. Its key is fixed here, at the call."""
        code = self._code
        if not isinstance(code, AsyncCode):
            raise WrongPlace(f"step {step.name!r} was awaited in a def workflow: call {step.name}.sync(...)")
        future = code.loop.create_future()
        operation = self._operation(step, args, kwargs, future)
        future.add_done_callback(lambda done: self._future_done(operation, done))
        self._call(operation)
        return future

    def step_from_thread(self, step: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation of `def` code: blocks its thread until the outcome is durable."""
        code = self._code
        if not isinstance(code, ThreadCode):
            raise WrongPlace(
                f"step {step.name!r} is a def and would block the workflow: write `await {step.name}.aio(...)`"
            )
        if threading.current_thread() is not code.thread:
            raise WrongPlace(
                f"step {step.name!r} was called in a thread of the workflow's own, whose order nobody can replay: "
                "call it in the workflow's thread, or make it an async def workflow and use asyncio.gather"
            )
        future: ThreadFuture[Any] = ThreadFuture()
        operation = self._operation(step, args, kwargs, future)
        self._real.call_soon_threadsafe(self._call_from_thread, code, operation)
        return future.result()

    def _call_from_thread(self, code: ThreadCode, operation: Operation) -> None:
        assert isinstance(operation.future, ThreadFuture)
        if self._signal is not None:
            operation.future.set_exception(self._signal())
            return
        if code.takes_cancel(operation.future):
            return
        if not self._replay and any(isinstance(arrival, JournalEntry) for arrival in self._arrivals):
            self._outstanding[operation.key] = operation  # a cancel came while it was busy: this is where it hears
        else:
            self._call(operation)
        code.waits(operation.future)

    def _operation(
        self,
        step: StepDefinition,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: asyncio.Future[Any] | ThreadFuture[Any],
    ) -> Operation:
        if self._signal is not None:
            raise self._signal
        scope = scope_var.get()
        key = (scope.path, step.name, scope.occurrence(step.name))
        return Operation(key, step, args, kwargs, future, contextvars.copy_context(), calling_place())

    def _call(self, operation: Operation) -> None:
        entry = self._replay.recorded.get(operation.key)
        if entry is not None and entry.op != STEP:
            self._diverge(entry, str(operation), operation.line)
            return
        self._outstanding[operation.key] = operation
        if entry is None:
            if self._replay or self._suspending:
                self._held.append(operation)
            else:
                self._begin(operation)

    # ---- replay and delivery --------------------------------------------------------------------------------------

    def _idle(self) -> bool:
        """The code has nothing to run: deliver the next outcome. True if there was one."""
        if self._ended.done() or self._signal is not None:
            return False
        while self._replay:
            entry = self._replay.take(self._outstanding, can_move=self._code.can_move)
            if entry is None and self._replay.loose:
                break
            if entry is None:
                if self._replay.loosens(self._outstanding, can_move=self._code.can_move):
                    continue
                return self._stuck_replay(self._replay.head)
            if entry.op == CANCEL:
                self._cancel_code()
                return True
            operation = self._outstanding.get(key_of(entry))
            if entry.outcome != CANCELLED and operation is not None:
                return self._deliver_recorded(operation, entry)
        if self._held and not self._suspending:
            held, self._held = self._held, []
            for operation in held:
                if not operation.future.done():
                    self._begin(operation)
        if self._arrivals:
            arrival = self._arrivals.popleft()
            if isinstance(arrival, JournalEntry):
                self._cancel_code()
            else:
                self._deliver(*arrival)
            return True
        if not self._live and not self._code.can_move:
            self._nothing_runs()
        return False

    def _stuck_replay(self, entry: JournalEntry) -> bool:
        """The journal's next operation was not called. If nothing else can make the code call it, it never will be."""
        if not self._code.can_move:
            actual = self._held[0] if self._held else None
            self._diverge(
                entry,
                str(actual) if actual else "nothing",
                actual.line if actual else ", ".join(self._code.lines()) or "at its end",
            )
        return False

    def _deliver_recorded(self, operation: Operation, entry: JournalEntry) -> bool:
        try:
            outcome = self._outcome_of(entry)
        except CodecHookFailed as error:
            _log.warning("execution %s is handed back: %s", self.execution.id, error)
            self._errand(self.hand_back())
            return False
        except CodecError as error:
            # Its type was changed under it. That is the deploy's fault, not the work's.
            self._diverge(entry, f"something else: {error}", operation.line)
            return False
        self._deliver(operation, outcome)
        return True

    def _deliver(self, operation: Operation, outcome: Outcome) -> None:
        if operation.future.done():
            return  # the code gave it up
        self._given_up.clear()
        self._outstanding.pop(operation.key, None)
        if isinstance(self._code, ThreadCode):
            self._code.delivered()
        if outcome.error is not None:
            operation.future.set_exception(outcome.error)
        else:
            operation.future.set_result(outcome.value)

    def _cancel_code(self) -> None:
        """Where the journal says that the cancel was observed: a replay unwinds from the same place."""
        if isinstance(self._code, ThreadCode):
            for operation in list(self._outstanding.values()):
                self._give_up(operation)
        self._code.cancel()

    def _outcome_of(self, entry: JournalEntry) -> Outcome:
        """What a recorded operation comes to, decoded as it was the first time."""
        operation = self._outstanding[key_of(entry)]
        data = entry.value or b"null"
        if entry.outcome == SUCCEEDED:
            value = self._parts.values.decode(data, operation.step.result, f"result of {operation}")
            return Outcome(data, value=value)
        failure = decode_failure(self._parts.values.unseal(data))
        error = raised_again(failure, execution_id=self.execution.id, what=str(operation))
        return Outcome(data, error=marked(error, operation.key))

    def _diverge(self, entry: JournalEntry, actual: str, line: str) -> None:
        expected = described(entry.op, key_of(entry))
        error = NonDeterminism(self.execution.id, expected=expected, actual=actual, line=line)
        self._end(Diverged(error), Stopped)

    # ---- live operations ------------------------------------------------------------------------------------------

    def _begin(self, operation: Operation) -> None:
        tries = self._replay.tries.get(operation.key, [])
        if tries:
            wake_at = msgspec.json.decode(tries[-1].value or b"0", type=int)
            if wake_at > self._parts.engine.group.now:
                self._back_off(operation, wake_at)
                return
        self._go(operation, len(tries))

    def _go(self, operation: Operation, tries: int) -> None:
        step = operation.step
        # The step's code runs in this task, in the context of its call; another try gets a task and a context anew.
        context = operation.context.copy()
        context.run(step_var.set, step.name)
        self._live[operation] = self._real.create_task(
            self._perform(operation, tries), name=f"outlast {step.name}", context=context
        )

    async def _perform(self, operation: Operation, tries: int) -> None:
        _log.debug("performing %s of execution %s", operation.key, self.execution.id)
        try:
            outcome = await perform(self._parts, self.execution.id, operation, tries)
            if isinstance(outcome, BackOff):
                await self._record_try(operation, outcome)
                self._back_off(operation, outcome.wake_at)
                return
            await self._settle(operation, outcome)
        except LeaseLost as lost:
            self.lose(str(lost))
        except asyncio.CancelledError:
            if not operation.dropped:
                self.lose(f"{operation} was cancelled from outside")
            raise
        except Exception as error:
            # The store refuses for good: nothing of this attempt can be written.
            _log.exception("execution %s: %s could not be recorded", self.execution.id, operation)
            self.lose(f"{operation} could not be recorded: {error}")
        finally:
            self._live.pop(operation, None)
            self._nudge()

    async def _settle(self, operation: Operation, outcome: Outcome) -> None:
        """Record the outcome, then let the code have it. A result that is too large is a failure of the step."""
        self._settling.add(operation)
        try:
            await self._record(operation, FAILED if outcome.error else SUCCEEDED, outcome.data, outcome.tries)
        except LimitExceeded as error:
            data = self._parts.values.seal(encode_failure(failure_of(error)))
            outcome = Outcome(data, error=error, tries=outcome.tries)
            with suppress(LimitExceeded):  # a full journal: the code sees it, now and at every replay
                await self._record(operation, FAILED, data, outcome.tries)
        if outcome.error is not None:
            marked(outcome.error, operation.key)
        self._settling.discard(operation)
        self._arrivals.append((operation, outcome))

    def _back_off(self, operation: Operation, wake_at: int) -> None:
        """A long backoff holds nobody: if all else waits too, the execution is suspended until then."""
        delay_s = max(0, wake_at - self._parts.engine.group.now) / 1_000
        self._backing_off[operation] = (wake_at, self._real.call_later(delay_s, self._back_on, operation))

    def _back_on(self, operation: Operation) -> None:
        if self._backing_off.pop(operation, None) is None or self._ended.done() or operation.future.done():
            return
        if self._suspending:
            self._held.append(operation)
        else:
            self._go(operation, len(self._replay.tries.get(operation.key, [])))

    def _future_done(self, operation: Operation, future: asyncio.Future[Any]) -> None:
        """The code gave the operation up (a timeout, a failed sibling): that is an outcome too, and journaled."""
        if future.cancelled():
            self._give_up(operation)

    def _give_up(self, operation: Operation) -> None:
        if self._outstanding.pop(operation.key, None) is None or self._signal is not None or self._ended.done():
            return
        operation.dropped = True
        backing_off = self._backing_off.pop(operation, None)
        if backing_off is not None:
            backing_off[1].cancel()
        if operation in self._held:
            self._held.remove(operation)
        task = self._live.pop(operation, None)
        if operation in self._settling:
            self._replay.too_late.add(operation.key)
        elif task is not None:
            task.cancel()
        if operation.key in self._replay.recorded:
            self._replay.give_up(operation.key)
        else:
            self._given_up.append(operation.key)
            self._errand(self._record_given_up(operation))

    async def _record_given_up(self, operation: Operation) -> None:
        scope, name, occurrence = operation.key
        if operation.key in self._replay.too_late:
            scope = f"{scope}{TOO_LATE}"
        try:
            entry = await self._lease.record(scope, name, occurrence, STEP, CANCELLED, None)
            self._replay.recorded[operation.key] = entry
        except LeaseLost as lost:
            self.lose(str(lost))

    # ---- suspension -----------------------------------------------------------------------------------------------

    def _nothing_runs(self) -> None:
        if self._backing_off and not self._suspending:
            self._suspending = True
            self._errand(self._suspend(min(wake_at for wake_at, _ in self._backing_off.values())))
        elif not self._outstanding and not self._errands and not self._suspending and not self._warned:
            self._warned = True
            _log.warning(
                "execution %s awaits something that no durable operation can end, at %s",
                self.execution.id,
                ", ".join(self._code.lines()) or "an unknown line",
            )

    async def _suspend(self, wake_at: int) -> None:
        fact = facts.Suspend(
            change_id=self._lease.new_id(),
            epoch=self.execution.epoch,
            inbox=self._lease.inbox,
            reason=Reason.RETRY,
            wake_at=wake_at,
        )
        try:
            verdict = await self._lease.tell(fact)
        except LeaseLost as lost:
            self.lose(str(lost))
            return
        if verdict is not None and verdict.applied:
            self._end(Asleep(), Suspended)
            return
        self._suspending = False
        await self._look_outside()
        self._nudge()

    # ---- the end --------------------------------------------------------------------------------------------------

    def _code_ended(self, value: Any, error: BaseException | None) -> None:
        if self._ended.done():
            return
        self._replay.code_ended(self._outstanding)
        if self._replay and not isinstance(error, asyncio.CancelledError):
            self._diverge(self._replay.head, "nothing", "at its end")
        elif error is None:
            self._end(Completed(value), Stopped)
        elif isinstance(error, asyncio.CancelledError) and self._replay.cancelled:
            self._end(Unwound(), Stopped)
        elif isinstance(error, Exception):
            self._end(Raised(error), Stopped)
        else:
            wrapped = RuntimeError(f"the workflow ended with {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            self._end(Raised(wrapped), Stopped)

    def _end(self, ending: Ending, signal: type[Signal]) -> None:
        if self._ended.done():
            return
        self._signal = signal
        self._ended.set_result(ending)
        for operation, task in list(self._live.items()):
            operation.dropped = True
            task.cancel()
        for _, timer in self._backing_off.values():
            timer.cancel()
        # Not from within the code's own callbacks.
        if self._begun:
            self._real.call_soon(self._code.close)

    async def _commit(self, ending: Ending) -> None:
        try:
            await commit_ending(self._parts, self._lease, self._workflow, ending, escaped=self._escaped)
        except LeaseLost as lost:
            _log.warning("execution %s: the end came too late: %s", self.execution.id, lost)

    def _escaped(self, error: BaseException) -> tuple[OperationKey, ...]:
        return self._replay.escaped(error, self._given_up)

    # ---- the store ------------------------------------------------------------------------------------------------

    async def _record(self, operation: Operation, outcome: str, value: bytes | None, tries: int) -> None:
        entry = await self._lease.record(*operation.key, STEP, outcome, value, max(tries, 1))
        self._replay.recorded[operation.key] = entry

    async def _record_try(self, operation: Operation, back_off: BackOff) -> None:
        scope, name, occurrence = operation.key
        value = msgspec.json.encode(back_off.wake_at)
        entry = await self._lease.record(f"{scope}{RETRIES}{occurrence}", name, back_off.tries, RETRY, FAILED, value)
        self._replay.tries.setdefault(operation.key, []).append(entry)

    async def _record_cancel(self) -> JournalEntry:
        return await self._lease.record("", "outlast:cancel", 1, CANCEL, SUCCEEDED, None)

    async def _look_outside(self) -> None:
        try:
            fresh = await self._lease.look()
        except LeaseLost as lost:
            self.lose(str(lost))
            return
        finally:
            self._looking = False
        if fresh.cancel_requested and not self._replay.cancelled:
            self._replay.cancelled = True
            self._arrivals.append(await self._record_cancel())

    # ---- odds and ends --------------------------------------------------------------------------------------------

    def _set_alarm(self) -> asyncio.TimerHandle | None:
        """The attempt's timeout also stops code on a worker that is alive and well."""
        deadline_at = settled(self.execution.attempt_deadline_at)
        if deadline_at is None:
            return None
        left_s = max(0, deadline_at - self._parts.engine.group.now) / 1_000
        return self._real.call_later(left_s + 0.01, lambda: self._errand(self._time_out()))

    async def _time_out(self) -> None:
        if self._ended.done():
            return
        jitter = self._parts.engine.entropy.random()
        fact = facts.TimeOut(change_id=self._lease.new_id(), epoch=self.execution.epoch, jitter=jitter)
        told = await self._parts.engine.tell(self.execution.namespace, self.execution.id, fact, seen=self.execution)
        if told.applied:
            self.lose("the attempt timed out")
        elif not self._ended.done():
            self._real.call_later(0.05, lambda: self._errand(self._time_out()))

    def _errand(self, coro: Coroutine[Any, Any, Any]) -> None:
        task = self._real.create_task(coro)
        self._errands.add(task)
        task.add_done_callback(self._errand_done)

    def _errand_done(self, task: asyncio.Task[Any]) -> None:
        self._errands.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("execution %s: %s", self.execution.id, error, exc_info=error)
            self.lose(str(error))
        self._nudge()

    async def _settle_errands(self) -> None:
        pending = [task for task in (*self._errands, *self._live.values()) if not task.done()]
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)

    def _nudge(self) -> None:
        if not self._ended.done():
            self._code.nudge()

    # ---- for tests ------------------------------------------------------------------------------------------------

    @property
    def under_way(self) -> list[asyncio.Task[Any]]:
        """Steps that run and commits that are awaited; nothing of that while it only waits for the outside."""
        return [task for task in (*self._live.values(), *self._errands) if not task.done()]

    @property
    def thinks(self) -> bool:
        """Whether a `def` workflow runs between two of its operations, in its thread."""
        return self._begun and not self._ended.done() and isinstance(self._code, ThreadCode) and self._code.can_move
