"""What an attempt waits for that is durable: wake times, events, deferreds. It can be suspended while it only waits.

A wait begins by writing down how long it may last. Then what came before is looked for; what comes later is noticed by
the inbox, which grows with every word from outside. An event is received only when the code is idle and nothing
else is on its way to it, one at a time: what the code does with one outcome may be to give another wait up, and an
event that nobody waits for must stay for the next receive.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, structs

from outlast.errors import CodecHookFailed, InvalidInput, LimitExceeded
from outlast.machine.replay import BESIDE, beside
from outlast.model.journal import BEGAN, NOTHING, WAIT, Awaited, JournalEntry, OperationKey
from outlast.model.status import Reason
from outlast.runtime.attempts.mail import Mail
from outlast.runtime.attempts.operation import Operation, Outcome, failed_with
from outlast.runtime.attempts.recording import record, submit_first
from outlast.runtime.operations.timer import Timer
from outlast.runtime.operations.wait import After, Wait
from outlast.runtime.timers import Alarm

if TYPE_CHECKING:
    from outlast.runtime.attempts.attempt import LiveAttempt

_log = logging.getLogger(__name__)


class Waiting(Struct):
    """`found` came from outside, and is not received yet."""

    kind: Wait
    wake_at: int | None = None
    alarm: Alarm | None = None
    found: Outcome | None = None


class Pending(Struct, frozen=True):
    """What a suspension must say: what can end it, and when it is over by itself."""

    waits: tuple[str, ...]
    wake_at: int | None


class Waits:
    def __init__(self, attempt: LiveAttempt) -> None:
        self._attempt = attempt
        self._waiting: dict[Operation, Waiting] = {}
        """In the order of the calls: of two receives of one name, the first one called is served first."""

    # Made when first asked for: most attempts never wait.

    @cached_property
    def _mail(self) -> Mail:
        return Mail(self._attempt.parts, self._attempt.lease)

    @cached_property
    def _one_look(self) -> asyncio.Lock:
        return asyncio.Lock()

    @cached_property
    def _one_timer(self) -> asyncio.Lock:
        return asyncio.Lock()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    # ---- beginning ------------------------------------------------------------------------------------------------

    def begin(self, operation: Operation) -> None:
        kind = operation.kind
        assert isinstance(kind, Wait)
        waiting = self._waiting[operation] = Waiting(kind)
        if isinstance(kind, Timer):
            waiting.wake_at = self._wake_time_of(operation, kind)
            self._arm(operation, waiting)
        elif kind.reason is None and (known := self._known_wake_time(operation, kind)) is not None:
            waiting.wake_at = known
            self._arm(operation, waiting)
        elif kind.limit is not None or (self._may_have_mail(kind) and not self._came_early(operation, waiting)):
            self._attempt.errand(self._begin(operation, waiting))

    def _wake_time_of(self, operation: Operation, timer: Timer) -> int:
        """By the loop's time, which a replay knows. But when the code is tried again, its timeouts begin anew."""
        replay = self._attempt.replay
        known = replay.wake_times.get(operation.key)
        if known is None and replay.retried:
            return self._attempt.parts.holder.now + timer.delay_ms
        return timer.wake_at if known is None else known

    def _may_have_mail(self, kind: Wait) -> bool:
        return kind.reason is not None and (self._attempt.lease.execution.inbox > 0 or kind.looks_first)

    def _came_early(self, operation: Operation, waiting: Waiting) -> bool:
        """Whether it came with the journal: whoever sent it waits for every turn that is taken."""
        if self._attempt.lease.early:
            with suppress(CodecHookFailed):  # said by whoever looks again
                waiting.found = waiting.kind.early(self._mail, operation)
        if waiting.found is None:
            return False
        self._attempt.nudge()
        return True

    async def _begin(self, operation: Operation, waiting: Waiting) -> None:
        try:
            waiting.wake_at = await self._wake_time(operation, waiting.kind)
        except InvalidInput as error:  # a full journal, or a name of no use: the code sees it
            if operation in self._waiting:
                await self._settle(operation, failed_with(self._attempt.parts.values, error))
            return
        if self._may_have_mail(waiting.kind):
            async with self._one_look:
                await self._find(operation, waiting)
        if waiting.found is None and not operation.dropped and operation in self._waiting:
            self._arm(operation, waiting)

    async def _wake_time(self, operation: Operation, kind: Wait) -> int | None:
        """Absolute, by the store's clock, and written down before anybody relies on it: a restart does not change it.
        Of a named timer the first one wins."""
        if kind.limit is None:
            return None
        async with self._one_timer:
            replay, timer = self._attempt.replay, kind.timer
            wake_at = self._known_wake_time(operation, kind)
            if wake_at is None:
                known = _place(operation, kind)
                now = await self._attempt.parts.holder.time() if isinstance(kind.limit, After) else 0
                wake_at = now + kind.limit.ms
                await self._write_down(beside(known, 0) if timer is None else known, wake_at)
                replay.wake_times[known] = wake_at
            return wake_at

    def _known_wake_time(self, operation: Operation, kind: Wait) -> int | None:
        """What was written down when it began."""
        return self._attempt.replay.wake_times.get(_place(operation, kind))

    async def _write_down(self, key: OperationKey, wake_at: int) -> None:
        await self._attempt.lease.record(key, WAIT, BEGAN, msgspec.json.encode(wake_at))

    def _arm(self, operation: Operation, waiting: Waiting) -> None:
        if waiting.wake_at is not None:
            parts = self._attempt.parts
            waiting.alarm = parts.timers.at(
                waiting.wake_at, lambda: self._attempt.errand(self._over(operation)), now=parts.holder.now
            )

    # ---- ending ---------------------------------------------------------------------------------------------------

    async def _over(self, operation: Operation) -> None:
        """Its time has come. What was sent until then is looked for once more: it may have come while nobody looked."""
        waiting = self._waiting.get(operation)
        if waiting is None:
            return
        if waiting.kind.reason is not None:
            async with self._one_look:
                await self._find(operation, waiting)
        if waiting.found is None and operation in self._waiting:
            attempt = self._attempt
            outcome = waiting.kind.over(attempt.parts, operation, attempt.execution.id)
            await self._settle(operation, outcome)

    def corrects(self, operation: Operation, entry: JournalEntry) -> bool:
        """Whether what is recorded for it, and cannot be read, may be recorded as its failure instead."""
        return isinstance(operation.kind, Wait) and self._attempt.replay.ends_with(entry)

    async def fails_unread(self, operation: Operation, entry: JournalEntry) -> None:
        """What was recorded with the wake-up, before the code could see it, is not of the type that it asked for."""
        attempt, kind = self._attempt, operation.kind
        assert isinstance(kind, Wait)
        outcome = kind.read(attempt.parts.values, operation, attempt.execution.id, entry.value or NOTHING)
        failed = await attempt.lease.correct(entry, outcome)
        await record(attempt, operation, structs.replace(outcome, entry=failed))

    async def look(self) -> None:
        """Something came from outside: is it for one of these?"""
        async with self._one_look:
            for operation, waiting in list(self._waiting.items()):
                if waiting.kind.reason is not None and operation in self._waiting:
                    await self._find(operation, waiting)

    async def _find(self, operation: Operation, waiting: Waiting) -> None:
        if waiting.found is not None or operation.dropped:
            return
        found = await waiting.kind.look(self._mail, operation, waiting.wake_at)
        if found is None:
            return
        if found.consumes is not None and self._longer(operation):
            # What was sent before it may have come since these were looked at; and it may itself be for one of them.
            self._mail.put_back(*found.consumes)
            for longer, before in self._longer(operation):
                await self._find(longer, before)
            found = await waiting.kind.look(self._mail, operation, waiting.wake_at)
            if found is None:
                return
        if operation not in self._waiting:  # given up while we looked
            self._put_back(found)
            return
        if waiting.alarm is not None:
            waiting.alarm.cancel()
        if found.consumes is None:
            await self._settle(operation, found)
        else:
            waiting.found = found
            self._attempt.nudge()

    def _longer(self, operation: Operation) -> list[tuple[Operation, Waiting]]:
        """Those that wait for longer than this one, and have not found anything: each was looked at by itself."""
        found: list[tuple[Operation, Waiting]] = []
        for other, waiting in self._waiting.items():
            if other is operation:
                break
            if waiting.kind.reason is not None and waiting.found is None and not other.dropped:
                found.append((other, waiting))
        return found

    async def _settle(self, operation: Operation, outcome: Outcome) -> None:
        del self._waiting[operation]
        await record(self._attempt, operation, outcome)

    def receives(self) -> bool:
        """Receive the event that was found for the first wait that has one, if any."""
        for operation, waiting in self._waiting.items():
            if waiting.found is not None:
                del self._waiting[operation]
                submit_first(self._attempt, operation, waiting.found)
                return True
        return False

    def drop(self, operation: Operation) -> None:
        """The code gave it up. What was found for it is still there for the next one."""
        waiting = self._waiting.pop(operation, None)
        if waiting is not None and waiting.alarm is not None:
            waiting.alarm.cancel()
        if waiting is not None and waiting.found is not None:
            self._put_back(waiting.found)

    def _put_back(self, found: Outcome) -> None:
        if found.consumes is not None:
            self._mail.put_back(*found.consumes)
            if self._waiting:
                self._attempt.errand(self.look())

    def close(self) -> None:
        for waiting in self._waiting.values():
            if waiting.alarm is not None:
                waiting.alarm.cancel()
        self._waiting.clear()

    # ---- suspending -----------------------------------------------------------------------------------------------

    def pending(self) -> Pending:
        waits = dict.fromkeys(waiting.kind.reason for waiting in self._waiting.values())
        times = [waiting.wake_at for waiting in self._waiting.values() if waiting.wake_at is not None]
        reasons = tuple(reason for reason in waits if reason is not None)
        return Pending((*reasons, Reason.TIMER) if times else reasons, min(times, default=None))

    @property
    def only(self) -> Operation | None:
        """The one operation that is waited for; None if there are more, or none."""
        return next(iter(self._waiting)) if len(self._waiting) == 1 else None

    def awaited(self, only: Operation | None) -> Awaited | None:
        """That operation, if it is still waited for, and the place that its outcome will have."""
        if only is None or only not in self._waiting:
            return None
        return Awaited(only.kind.OP, *only.key, self._attempt.lease.entries)

    async def write_down(self) -> None:
        """Before a suspension: the wake times that only this process knows."""
        replay = self._attempt.replay
        unknown = [
            (operation.key, waiting.wake_at)
            for operation, waiting in self._waiting.items()
            if waiting.wake_at is not None
            and isinstance(waiting.kind, Timer)
            and operation.key not in replay.wake_times
        ]
        try:
            await asyncio.gather(*(self._write_down(beside(key, 0), wake_at) for key, wake_at in unknown))
        except LimitExceeded as error:
            _log.warning("execution %s: %s", self._attempt.execution.id, error)
            return  # the loop's time, which a replay knows, gives the same
        replay.wake_times.update(unknown)

    def let_go(self) -> None:
        """The attempt has ended, and nothing of this is under way."""
        del self._attempt


def _place(operation: Operation, kind: Wait) -> OperationKey:
    """Where its wake time is known: beside its own, or by its timer's name."""
    return operation.key if kind.timer is None else (BESIDE, kind.timer, 0)
