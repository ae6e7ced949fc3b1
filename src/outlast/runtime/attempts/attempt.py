"""An attempt under way in this process: the user's code, its replay, its operations, and what becomes of it.

What the code may do next is the machine's to say (`machine/attempt.py`); this is its driver. It runs the code, performs
operations outside of it (`performing.py`) or waits for something durable (`waits.py`), and records what they come to
before the code has it (`recording.py`). Every answer says how far the inbox has grown, so a cancel is seen at the next
step.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future as ThreadFuture
from typing import Any

from outlast.errors import CodecError, CodecHookFailed, LeaseLost, NonDeterminism, WrongPlace
from outlast.machine import facts
from outlast.machine.attempt import Called, Replayed, Unmet
from outlast.machine.replay import UNBIDDEN, key_of
from outlast.model.journal import CANCEL, JournalEntry, OperationKey
from outlast.runtime.attempts import faces, lost_children
from outlast.runtime.attempts.attempt_state import AttemptState
from outlast.runtime.attempts.attempt_timeout import set_alarm
from outlast.runtime.attempts.code import AsyncCode, ThreadCode
from outlast.runtime.attempts.current import attempt_var
from outlast.runtime.attempts.diverging import called_instead, ended_instead, place_of
from outlast.runtime.attempts.endings import (
    LEFT_BEHIND,
    Asleep,
    Diverged,
    Ending,
    Gone,
    Raised,
    commit_ending,
    ending_of,
    gravity,
    kind_of,
    suspended_for_children,
)
from outlast.runtime.attempts.marks import marked, origins_of
from outlast.runtime.attempts.mishaps import errand_failed, put_off, unfit
from outlast.runtime.attempts.operation import (
    Kind,
    Operation,
    Outcome,
    calling_place,
    carried,
    described,
    recorded_outcome,
)
from outlast.runtime.attempts.workflow_loop import Scope, next_key, scope_var
from outlast.runtime.operations.timer import Timer, fires
from outlast.runtime.operations.wait import Wait

_log = logging.getLogger(__name__)

_BEGIN = Called.BEGIN


class LiveAttempt(AttemptState):
    """`ending = await LiveAttempt(parts, claimed, workflow, home).run()`."""

    __slots__ = ()

    # ---- life -----------------------------------------------------------------------------------------------------

    async def run(self) -> Ending:
        """From the claim to the end, committed. Never raises what user code raised."""
        e = self.execution
        try:
            if e.never_ran:
                self.begins_here = True
            else:
                journal = await self.lease.journal()
                self.begins_here = not journal
                self.replay.load(journal, retried=e.failures > 0 or e.generation > e.journal_generation)
            args, kwargs = self.workflow.arguments.decode(self.parts.values, self.lease.input)
            # Not before: code that does not take the arguments has not begun.
            if self.begins_here and (patches := self.workflow.patches()):
                await self.patches.begin(patches)
            if self.execution.cancel_requested and not self.replay.cancelled:
                self.replay.hear(await self.lease.record_cancel(before=self.replay.unread()))
        except CodecHookFailed:
            raise  # nothing is wrong with the work: it is put off, and tried again
        except CodecError as error:
            ending: Ending = unfit(self, error)
            await self._commit(ending)
            return ending
        except LeaseLost as lost:
            return Gone(str(lost))
        if self.over:  # lost or handed back before the code began
            return self.how_it_ended
        self._begin_code(args, kwargs)
        if self._hearing is not None:
            self.hear(self._hearing.told)  # not before: what is recorded of it stands behind all that was read
        if not self.over:
            alarm = set_alarm(self)  # its timeout also stops code on a worker that is alive and well
            self._until_ended = self.real.create_future()
            try:
                await self._until_ended
            except asyncio.CancelledError:
                self._end(Gone("its loop ended"))  # the code is not left behind
                self._code.close()
                raise
            finally:
                if alarm is not None:
                    alarm.cancel()
        ending = self.how_it_ended
        self._code.close()
        del self._code  # the end may be on its way for long: nothing of the code is kept for it
        if not isinstance(ending, LEFT_BEHIND):
            if self._stream is not None:
                await self._stream.flushed()
            if self._asked is not None:
                await self._asked.settled()
            if self._giving_up is not None:
                await self._giving_up.settled()
        if isinstance(ending, Raised):
            await self._settle_errands()  # what is on its way to the journal must be there before a retry reads it
        await self._commit(ending)
        if self._errands or (self._performing is not None and self._performing.live):
            await self._settle_errands()
        self._let_go()
        return ending

    def _begin_code(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        context = contextvars.copy_context()
        context.run(_enter, self)
        colour = AsyncCode if self.workflow.is_async else ThreadCode
        self._code = colour(self.workflow.fn, args, kwargs, context, self, self.real)
        self.now_ms = self.replay.began_at or self.lease.began_at
        self.machine.begin()
        self._code.begin()

    def lose(self, why: str) -> None:
        """The lease is gone: stop the user's code at once. Nothing that it does is written any more."""
        self._end(Gone(why))

    async def hand_back(self, *, wait_ms: int = 0, because: CodecHookFailed | None = None) -> None:
        """Leave it to another worker, counting nothing."""
        if because is not None:
            _log.warning("execution %s is put off for %g s: %s", self.execution.id, wait_ms / 1_000, because)
        self._end(Gone("handed back"))
        fact = facts.HandBack(change_id=self.lease.new_id(), epoch=self.execution.epoch, wait_ms=wait_ms)
        await self.lease.tell(fact)

    # ---- called by user code --------------------------------------------------------------------------------------

    def prepare(self, kind: Kind, *, below: int = 0) -> Operation:
        """An operation of `async def` code. Its key is fixed here, at the call: so many frames below are Outlast's."""
        if self.machine.left:
            raise self.signal
        code = self._code
        if type(code) is not AsyncCode:
            raise WrongPlace(f"{kind.OP} {kind.name!r} was awaited in a def workflow: call {faces.blocking(kind)}")
        return self.operation(kind, asyncio.Future(loop=code.loop), below)

    async def outcome(self, operation: Operation) -> Any:
        """From now on it is performed: what it comes to, once that is durable. If the code gives it up, it does so
        here: nobody else has the future."""
        if self.machine.left:
            raise self.signal
        future = operation.future
        assert type(future) is asyncio.Future
        self.begin_call(operation)
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self.give_up(operation)
            raise

    def begin(self, operation: Operation) -> asyncio.Future[Any]:
        """From now on it is performed or waited for, and its future has its outcome once that is durable."""
        future = operation.future
        assert type(future) is asyncio.Future
        if self.machine.left:
            raise self.signal
        operation.watcher = self
        future.add_done_callback(operation, context=operation.context)
        self.begin_call(operation)
        return future

    def call(self, kind: Kind) -> asyncio.Future[Any]:
        """Both at once."""
        return self.begin(self.prepare(kind))

    def call_from_thread(self, kind: Kind) -> Any:
        """An operation of `def` code: blocks its thread until the outcome is durable."""
        if self.machine.left:
            raise self.signal
        code = self._code
        if not isinstance(code, ThreadCode):
            raise WrongPlace(f"{faces.subject(kind)} would block the workflow: write {faces.awaited(kind)}")
        return code.call(kind)

    def set_timer(self, when_s: float, fire: Callable[[], None]) -> asyncio.Future[Any]:
        """asyncio sets a timer in workflow code: it is durable, like a sleep. Cancelling the future cancels it."""
        assert isinstance(self._code, AsyncCode)
        delay_s = max(0.0, when_s - self._code.loop.time())
        future = self.call(Timer(math.ceil(round(when_s * 1_000, 3)), math.ceil(round(delay_s * 1_000, 3))))
        future.add_done_callback(fires(fire))
        return future

    def operation(self, kind: Kind, future: asyncio.Future[Any] | ThreadFuture[Any], below: int = 0) -> Operation:
        if self._asked is not None and self._asked.handling is not None:
            self._asked.refuse_operation(f"{kind.OP} {kind.name!r}")
        return Operation(next_key(kind.name), kind, future, contextvars.copy_context(), calling_place(2 + below))

    def begin_call(self, operation: Operation) -> None:
        called = self.machine.call(operation, operation.key, operation.kind.OP)
        if called is _BEGIN:
            self._begin(operation)
        elif called is Called.DIVERGE:
            entry = self.replay.recorded[operation.key]
            assert entry is not None
            self._diverge(entry, str(operation), operation.line)

    def begin_or_hold(self, operation: Operation) -> None:
        if self.machine.hold_or_begin(operation) is Called.BEGIN:
            self._begin(operation)

    def _begin(self, operation: Operation) -> None:
        if isinstance(operation.kind, Wait):
            self.waits.begin(operation)
        else:
            (self._performing or self.performing).begin(operation)

    # ---- replay and delivery --------------------------------------------------------------------------------------

    def idle(self) -> bool:
        """The code has nothing to run: deliver the next outcome. True if there was one."""
        machine = self.machine
        try:
            if not machine.listens:
                return False
            if machine.replays:
                found = machine.next_recorded(can_move=self._code.can_move)
                if found is not Replayed.NOTHING:
                    return self._deliver_entry(found) if isinstance(found, JournalEntry) else self._wait_for(found)
                self._replayed()
            if machine.held:
                for operation in machine.release():
                    if not operation.future.done():
                        self._begin(operation)
            if machine.arrivals:
                self._deliver_arrival()
                return True
            if not machine.settling and not self.lease.transacts:
                asked, waits = self._asked, self._waits
                if asked is not None and asked.updates and asked.takes(can_move=self._code.can_move):
                    return False
                if waits is not None and waits.receives():
                    return False
            runs = machine.settling or (self._performing is not None and self._performing.live)
            if not runs and not self._code.can_move:
                self.nothing_runs()
            return False
        except Exception as error:  # the loop that asks has nobody to tell
            errand_failed(self, error, logging.ERROR)
            return False

    def _replayed(self) -> None:
        """The code has caught up with its journal."""
        if self._stream is not None:
            self._stream.replayed()
        if self._giving_up is not None:
            self._giving_up.replayed()

    def _wait_for(self, found: Unmet | Replayed) -> bool:
        """The code does not call what the journal has next; if it is `Unmet`, it never will."""
        if isinstance(found, Unmet):
            machine, entry = self.machine, found.entry
            actual = called_instead(entry, machine.outstanding.values(), machine.held)
            line = actual.line if actual else place_of(self.workflow, self._code.lines())
            self._diverge(entry, str(actual or "nothing"), line)
        return False

    def _deliver_entry(self, entry: JournalEntry) -> bool:
        self._show_time(entry)
        if entry.op in UNBIDDEN:
            return self._deliver_unbidden(entry)
        return self._deliver_recorded(self.machine.outstanding[key_of(entry)], entry)

    def _deliver_unbidden(self, entry: JournalEntry) -> bool:
        """A cancel, or an update: the code did not ask for it."""
        if entry.op == CANCEL:
            self._cancel_code()
            return True
        call, actual = self.asked.call_of(entry)
        if call is None:
            self._diverge(entry, actual, place_of(self.workflow, self._code.lines()))
            return False
        self._code.interject(call)
        return True

    def _deliver_recorded(self, operation: Operation, entry: JournalEntry) -> bool:
        try:
            outcome = recorded_outcome(self.parts.values, self.execution.id, operation, entry)
        except CodecHookFailed as error:
            self.errand(put_off(self, error))
            return False
        except CodecError as error:
            if self.waits.corrects(operation, entry):
                self.errand(self.waits.fails_unread(operation, entry))
            else:  # its type was changed under it: that is the deploy's fault, not the work's
                self._diverge(entry, f"something else: {error}", operation.line)
            return False
        self._deliver(operation, outcome, 0)
        return True

    def _deliver_arrival(self) -> None:
        arrival = self.machine.arrivals.pop(0)
        if isinstance(arrival, JournalEntry):
            self._show_time(arrival)
            self._deliver_unbidden(arrival)
        else:
            self._deliver(*arrival)

    def _deliver(self, operation: Operation, outcome: Outcome, recorded_at: int) -> None:
        if operation.future.done():
            return  # the code gave it up: a replay does not show it
        if recorded_at > self.now_ms:
            self.now_ms = recorded_at
        self.machine.delivered(operation.key, timer=isinstance(operation.kind, Timer))
        if operation.watcher is not None:
            operation.unwatch()
        if type(self._code) is ThreadCode:
            self._code.delivered()
        if outcome.error is not None:
            operation.future.set_exception(carried(operation, marked(outcome.error, operation.key)))
        else:
            operation.future.set_result(outcome.value)

    def _show_time(self, entry: JournalEntry) -> None:
        """The code's time is that of the last outcome that it saw: the same when it is replayed."""
        now = entry.recorded_at
        if isinstance(now, int) and now > self.now_ms:
            self.now_ms = now

    def _cancel_code(self) -> None:
        """Where the journal says that the cancel was observed: a replay unwinds from the same place."""
        if isinstance(self._code, ThreadCode):
            for operation in list(self.machine.outstanding.values()):
                self.give_up(operation)
        self._code.cancel()

    def _diverge(self, entry: JournalEntry, actual: str, line: str) -> None:
        expected = described(entry.op, key_of(entry))
        error = NonDeterminism(self.execution.id, expected=expected, actual=actual, line=line)
        self._end(Diverged(error))

    # ---- outcomes -------------------------------------------------------------------------------------------------

    def go_on_with(self, operation: Operation, outcome: Outcome, committed_at: int) -> None:
        """It is recorded, by its callback. The code may go on at once, in the context in which it is looked after,
        unless more is on its way to it, which it has in the same turn. Mostly it rests, and has nothing before this."""
        self.replay.recorded[operation.key] = None
        # Code that may have to be undone is looked at more closely (`idle`).
        code = self._code if self.machine.comes_next and self._unwinding is None else None
        if type(code) is AsyncCode and code.loop.go_on(self._deliver, operation, outcome, committed_at):
            return
        self.machine.recorded(operation, outcome, committed_at)
        if self.machine.settling:
            self.nudge()
        elif not self.machine.over:
            self._code.look()

    def give_up(self, operation: Operation) -> None:
        """The code gave the operation up (a timeout, a failed sibling)."""
        if not self.machine.give_up(operation, operation.key):
            return
        operation.dropped = True
        operation.unwatch()
        if self._waits is not None:
            self._waits.drop(operation)
        stop = operation not in self.machine.settling
        task = None if self._performing is None else self._performing.drop(operation, stop=stop)
        self.giving_up.note(operation, task)

    # ---- the end --------------------------------------------------------------------------------------------------

    def code_ended(self, value: Any, error: BaseException | None) -> None:
        if self.machine.over:
            return
        unmet = self.machine.end_of_replay(observed_cancel=isinstance(error, asyncio.CancelledError))
        if unmet is not None:
            self._diverge(unmet, *ended_instead(self.workflow, error))
            return
        if self._giving_up is not None:
            self._giving_up.replayed()
        ending = ending_of(value, error, cancelled=self.replay.cancelled)
        if self._unwinding is None and not self.growths and self.replay.unwound is None:
            self.finish(ending)  # nothing was registered that could be undone, or must be done
        else:
            self.unwinding.code_ended(ending, self.workflow)

    async def quiet(self) -> None:
        """The code has ended: give up what it left under way, and let what is on its way to the journal arrive."""
        for operation in list(self.machine.outstanding.values()):
            self.give_up(operation)
        await self.performing.quiet()
        on_their_way = [recording.told() for recording in self.machine.settling.values() if recording is not None]
        if on_their_way:
            await asyncio.wait(on_their_way)
        await self._settle_errands()

    def finish(self, ending: Ending) -> None:
        """The code has ended, and all undos have their outcome. Children that it must wait for come first."""
        end = kind_of(self.lease, self.workflow, ending)
        if self.machine.finish(end, has_children=self.execution.has_children):
            self.errand(self._end_after_children(ending))
        else:
            self._end(ending)

    async def _end_after_children(self, ending: Ending) -> None:
        await self.asked.settled()
        await self.giving_up.settled()
        waits = await suspended_for_children(self.lease)
        self._end(Asleep() if waits else ending)

    def _end(self, ending: Ending) -> None:
        """What comes first counts. `run` closes the code: not from within the code's own callbacks."""
        if not self.machine.leave():
            return
        self._ending = ending
        for part in (self._performing, self._waits, self._unwinding):
            if part is not None:
                part.close()
        # As what is performed: nobody waits for the answer any more. What is on its way to the journal arrives there.
        settling = self.machine.settling
        for operation, recording in list(settling.items()):
            if recording is not None and not operation.dropped:
                operation.dropped = True
                del settling[operation]
        if self._until_ended is not None and not self._until_ended.done():
            self._until_ended.set_result(None)

    def _commit(self, ending: Ending) -> Awaitable[None]:
        return commit_ending(self, ending)

    def leaves(self) -> None:
        """Nothing is left but its end, on its way to the store."""
        self._home.leaves(self)

    def escaped(self, error: BaseException) -> tuple[OperationKey, ...]:
        """What a retry runs again: the failures that escaped; of timeouts that the code itself set, the last that
        made it give something up, if that is what escaped; the starts of called children that it gave up."""
        origins = origins_of(error)
        struck = [self.machine.struck] if origins.timed_out and self.machine.struck is not None else []
        lost = lost_children.given_up(self.parts.values, self.execution.id, self.replay)
        return (*self.replay.escaped([*origins.failures, *struck]), *lost)

    # ---- odds and ends --------------------------------------------------------------------------------------------

    def errand(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.accompany(self.real.create_task(coro))

    def accompany(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """The attempt waits for it before it waits for anything else; if it fails, the attempt is lost."""
        self._errands[task] = None
        task.add_done_callback(self._errand_done)
        return task

    def _errand_done(self, task: asyncio.Task[Any]) -> None:
        self._errands.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            errand_failed(self, error, gravity(self._ending))
        self.nudge()

    async def _settle_errands(self) -> None:
        performed = () if self._performing is None else self._performing.live.values()
        pending = [task for task in (*self._errands, *performed) if not task.done()]
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)

    def nudge(self) -> None:
        if not self.machine.over:
            self._code.nudge()

    def nothing_runs(self) -> None:
        """The code is idle, and nothing is performed for it."""
        self.suspending.consider(outstanding=bool(self.machine.outstanding), lines=self._code.lines)

    def arrives(self, entry: JournalEntry) -> None:
        """What the code did not call for has come, and is recorded."""
        self.machine.arrived(entry)
        self.nudge()

    def fall_asleep(self) -> None:
        self._end(Asleep())


def _enter(attempt: LiveAttempt) -> None:
    """From now on, what runs in this context is its code."""
    attempt_var.set(attempt)
    scope_var.set(Scope())
