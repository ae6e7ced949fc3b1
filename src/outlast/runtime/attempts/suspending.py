"""Letting go of an execution that only waits: written down, its lease released, its memory freed.

It is asked when the code is idle and nothing runs for it. What is about to be woken stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.errors import LeaseLost, LimitExceeded
from outlast.machine import facts
from outlast.machine.attempt import IdleCode, State, Suspension, when_idle
from outlast.model.payload import Role, Standstill

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

    def hurry(self) -> None:
        """The worker drains: whoever only waits, for however short a time, is woken elsewhere."""
        self._resident_ms = 0
        if self._attempt.at_rest:
            self._attempt.nudge()

    def consider(self, *, outstanding: bool, lines: Callable[[], list[str]]) -> None:
        """`outstanding`: the code awaits operations. `lines`: where it stands."""
        attempt = self._attempt
        if attempt.busy or attempt.machine.state is State.SUSPENDING:
            return
        pending = attempt.waits.pending()
        code = IdleCode(
            pending.waits, pending.wake_at, attempt.performing.next_try_at, attempt.asked.waits, outstanding
        )
        found = when_idle(code, now=attempt.parts.holder.now, resident_ms=self._resident_ms, refused=self._too_much)
        if isinstance(found, Suspension):
            only = attempt.waits.only if found.alone else None
            attempt.machine.suspend()
            attempt.errand(self.suspend(found.reason, found.waits, found.wake_at, only=only))
        elif found is not None:
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
                attempt.machine.stay()
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
            self._too_much = waits
            attempt.machine.stay()
            attempt.nudge()
            return
        if reply.applied:
            attempt.fall_asleep()
            return
        attempt.machine.stay()
        await attempt.hearing.look()
        attempt.nudge()

    def let_go(self) -> None:
        """The attempt has ended, and nothing of this is under way."""
        del self._attempt
