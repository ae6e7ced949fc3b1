"""The operations of an attempt that are being performed: in tasks of the real loop, with their retries.

An operation runs outside of the workflow's code. One that must wait long before its next try gives its place up, and
the execution can be suspended if all else waits too.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from outlast.errors import CodecHookFailed, InvalidInput, LeaseLost
from outlast.machine.replay import beside
from outlast.model.journal import FAILED, RETRY
from outlast.runtime.attempts.current import operation_var
from outlast.runtime.attempts.mishaps import put_off, unrecorded
from outlast.runtime.attempts.operation import Operation, Outcome, failed_with
from outlast.runtime.attempts.recording import submit
from outlast.runtime.operations.performed import BackOff, Performed
from outlast.runtime.operations.step import exited
from outlast.runtime.operations.transaction import TransactionCall
from outlast.runtime.spawning import spawn
from outlast.runtime.timers import Alarm

if TYPE_CHECKING:
    from outlast.runtime.attempts.attempt import LiveAttempt

_log = logging.getLogger(__name__)

CLEAN_UP_S = 10.0
"""So long a step that was given up may take to come to its end before what it did is undone."""


class Performing:
    __slots__ = ("_attempt", "_backing_off", "_leaving", "_real", "live")

    def __init__(self, attempt: LiveAttempt) -> None:
        self._attempt = attempt
        self._real = attempt.real
        self.live: dict[Operation, asyncio.Task[None]] = {}
        self._leaving: dict[Operation, asyncio.Task[None]] = {}
        """What the code gave up, and has not come to its end yet."""
        self._backing_off: dict[Operation, Alarm] = {}

    def begin(self, operation: Operation) -> None:
        tries, done = self._attempt.replay.tries.get(operation.key), 0
        if tries:
            wake_at = msgspec.json.decode(tries[-1].value or b"0", type=int)
            if wake_at > self._attempt.parts.holder.now:
                self._back_off(operation, wake_at)
                return
            done = tries[-1].occurrence  # those with a short backoff have no entry
        # The step's code runs in this task, in the context of its call; another try gets a task and a context anew.
        operation.doing = self.live[operation] = spawn(
            self._real, self._perform(operation, done), f"outlast {operation.key[1]}", operation.context.copy()
        )

    async def _perform(self, operation: Operation, tries: int) -> None:
        attempt, kind = self._attempt, operation.kind
        assert isinstance(kind, Performed)
        operation_var.set(operation)
        if attempt.parts.on_perform is not None:
            attempt.parts.on_perform(attempt.execution, operation.key)
        settled = False
        try:
            if self._leaving:
                await self._decided()  # this may be what takes it back
            try:
                outcome = await kind.perform(attempt.parts, attempt.lease.execution, operation, tries)
            except GeneratorExit as raised:
                outcome = exited(attempt.parts.values, operation, raised)
            if isinstance(outcome, BackOff):
                full = await self._record_try(operation, outcome)
                if full is None:
                    self._back_off(operation, outcome.wake_at)
                    return
                outcome = full
            if attempt.owes_frames:
                await attempt.stream.flushed()  # what it emitted comes before its outcome
            settling = submit(attempt, operation, outcome)
            if settling is not None:
                await settling
            settled = True
        except LeaseLost as lost:
            attempt.lose(str(lost))
        except CodecHookFailed as error:
            attempt.errand(put_off(attempt, error))
        except asyncio.CancelledError:
            if not operation.dropped:
                attempt.lose(f"{operation} was cancelled from outside")
            raise
        except Exception as error:
            unrecorded(attempt, operation, error)
        finally:
            self.live.pop(operation, None)
            operation.doing = None  # no circle: its context knows the operation
            if not settled:
                attempt.nudge()

    async def _record_try(self, operation: Operation, back_off: BackOff) -> Outcome | None:
        """None; or what it comes to if that cannot be recorded: there is no next try that anybody could count."""
        attempt, tries, value = self._attempt, back_off.tries, msgspec.json.encode(back_off.wake_at)
        try:
            entry = await attempt.lease.record(beside(operation.key, tries), RETRY, FAILED, value)
        except InvalidInput as error:
            return failed_with(attempt.parts.values, error, tries=tries)
        attempt.replay.tries.setdefault(operation.key, []).append(entry)
        return None

    # ---- long backoffs --------------------------------------------------------------------------------------------

    def _back_off(self, operation: Operation, wake_at: int) -> None:
        """A long backoff holds nobody: if all else waits too, the execution is suspended until then."""
        parts = self._attempt.parts
        self._backing_off[operation] = parts.timers.at(wake_at, lambda: self._back_on(operation), now=parts.holder.now)

    def _back_on(self, operation: Operation) -> None:
        if self._backing_off.pop(operation, None) is None or self._attempt.over or operation.future.done():
            return
        self._attempt.begin_or_hold(operation)

    @property
    def next_try_at(self) -> int | None:
        return min((alarm.wake_at for alarm in self._backing_off.values()), default=None)

    # ---- the end --------------------------------------------------------------------------------------------------

    def drop(self, operation: Operation, *, stop: bool) -> asyncio.Task[None] | None:
        """The code gave it up: what is under way of it. Without `stop` its outcome is on its way to the journal."""
        alarm = self._backing_off.pop(operation, None)
        if alarm is not None:
            alarm.cancel()
        task = self.live.pop(operation, None)
        if task is not None:
            self._leaving[operation] = task
            task.add_done_callback(lambda _: self._leaving.pop(operation, None))
            if stop:
                task.cancel()
        return task

    async def quiet(self) -> None:
        """Until what the code gave up has come to its end. A step that does not stop when it is told to is left."""
        await self._decided()
        if self._leaving:
            await asyncio.wait(self._leaving.values(), timeout=CLEAN_UP_S)
        for operation, task in self._leaving.items():
            if not task.done():
                _log.warning("execution %s: %s was given up, and does not end", self._attempt.execution.id, operation)

    async def _decided(self) -> None:
        """Until it is known what became of each transaction that was given up: one that is being committed may be."""
        undecided = [task for operation, task in self._leaving.items() if isinstance(operation.kind, TransactionCall)]
        if undecided:
            await asyncio.wait(undecided)

    def close(self) -> None:
        for operation, task in list(self.live.items()):
            operation.dropped = True
            task.cancel()
        for alarm in self._backing_off.values():
            alarm.cancel()

    def let_go(self) -> None:
        """The attempt has ended, and nothing of this is under way."""
        del self._attempt
