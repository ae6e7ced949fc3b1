"""Letting go of an execution that only waits: written down, its lease released, its memory freed.

It is asked when the code is idle and nothing runs for it. What is about to be woken stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.errors import LeaseLost, LimitExceeded
from outlast.machine import facts
from outlast.model.payload import Role, Standstill
from outlast.model.status import Reason

if TYPE_CHECKING:
    from outlast.runtime.attempts.attempt import LiveAttempt
    from outlast.runtime.attempts.operation import Operation

_log = logging.getLogger(__name__)

LINES_MAX = 10
"""So many places are told of code that stands still."""


class Suspending:
    def __init__(self, attempt: LiveAttempt) -> None:
        self._attempt = attempt
        self._warned = False
        self._too_much: tuple[str, ...] | None = None
        """Waits that no suspension can name."""
        self._stands: Standstill | None = None
        """Where nothing can make the code go on but a cancel, as it was told."""
        self._resident_ms = attempt.parts.resident_ms
        self.under_way = False

    def hurry(self) -> None:
        """The worker drains: whoever only waits, for however short a time, is woken elsewhere."""
        self._resident_ms = 0
        if self._attempt.at_rest:
            self._attempt.nudge()

    def consider(self, *, outstanding: bool, lines: Callable[[], list[str]]) -> None:
        """`outstanding`: the code awaits operations. `lines`: where it stands."""
        attempt = self._attempt
        if attempt.busy or self.under_way:
            return
        pending, next_try_at = attempt.waits.pending(), attempt.performing.next_try_at
        times = [time for time in (pending.wake_at, next_try_at) if time is not None]
        if times and min(times) - attempt.parts.holder.now <= self._resident_ms:
            return  # it would be woken before it had slept
        named = [wait for wait in pending.waits if wait != Reason.TIMER]
        also = attempt.asked.waits
        if self._too_much == (*named, *also):
            return  # asking again would change nothing
        if times or pending.waits or also:
            self.under_way = True
            reason = named[0] if named else self._reason(pending.wake_at, next_try_at) or also[0]
            only = attempt.waits.only if next_try_at is None and not also else None
            attempt.errand(self.suspend(reason, (*named, *also), min(times, default=None), only=only))
        elif not outstanding:
            stands = Standstill(attempt.execution.epoch, attempt.lease.entries, tuple(lines()[:LINES_MAX]))
            if stands != self._stands:
                self._stands = stands
                attempt.errand(self._tell(stands))

    async def _tell(self, stands: Standstill) -> None:
        """In the log, and where whoever looks at the execution finds it."""
        attempt = self._attempt
        _log.warning(
            "execution %s awaits something that no durable operation can end, at %s",
            attempt.execution.id,
            ", ".join(stands.lines) or "an unknown line",
        )
        await attempt.lease.tell(
            facts.Progressed(
                change_id=attempt.lease.new_id(), epoch=stands.epoch, value=stands.encode(), role=Role.STANDSTILL
            )
        )

    def _reason(self, wake_at: int | None, next_try_at: int | None) -> str | None:
        if wake_at is not None:
            return Reason.TIMER
        return None if next_try_at is None else Reason.RETRY

    async def suspend(
        self, reason: str, waits: tuple[str, ...], wake_at: int | None, *, only: Operation | None = None
    ) -> None:
        """`only`: nothing can wake it but this operation."""
        attempt = self._attempt
        # As far as `waits` are true: what is heard while this looks and writes may be what it waits for.
        inbox = attempt.hearing.heard
        try:
            await attempt.waits.write_down()
            if not await attempt.asked.may_sleep(waits):
                self.under_way = False
                attempt.nudge()
                return
            reply = await attempt.lease.tell(
                facts.Suspend(
                    change_id=attempt.lease.new_id(),
                    epoch=attempt.execution.epoch,
                    inbox=inbox,
                    reason=reason,
                    waits=waits,
                    wake_at=wake_at,
                    awaits=attempt.waits.awaited(only),
                )
            )
        except LeaseLost as lost:
            attempt.lose(str(lost))
            return
        except LimitExceeded as error:
            if not self._warned:
                self._warned = True
                _log.warning("execution %s stays in memory while it waits: %s", attempt.execution.id, error)
            self._too_much, self.under_way = waits, False
            attempt.nudge()
            return
        if reply.applied:
            attempt.fall_asleep()
            return
        self.under_way = False
        await attempt.hearing.look()
        attempt.nudge()

    def let_go(self) -> None:
        """The attempt has ended, and nothing of this is under way."""
        del self._attempt
