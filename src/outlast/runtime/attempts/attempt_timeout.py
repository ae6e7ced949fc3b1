"""The timeout of an attempt, on the worker that runs it. On a worker that is gone, a reconciler sees to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.machine import facts
from outlast.machine.changes import Code
from outlast.model.record import settled
from outlast.runtime.timing import Timer

if TYPE_CHECKING:
    from outlast.runtime.attempts.attempt import LiveAttempt

SLACK_S = 0.01
AGAIN_S = (0.05, 0.2, 1.0, 5.0)


def set_alarm(attempt: LiveAttempt) -> Timer | None:
    """None if its attempts have no timeout."""
    deadline_at = settled(attempt.execution.attempt_deadline_at)
    if deadline_at is None:
        return None
    parts = attempt.parts
    left_s = max(0, deadline_at - parts.holder.now) / 1_000
    return parts.timing.call_later(left_s + SLACK_S, lambda: attempt.errand(_time_out(attempt)))


async def _time_out(attempt: LiveAttempt, asked: int = 0) -> None:
    """Refused when the clock is not there yet, or the session has lapsed and may be renewed: asked again, less and
    less often. Refused for any other reason, it is no longer ours."""
    if attempt.over:
        return
    parts, e = attempt.parts, attempt.execution
    fact = facts.TimeOut(change_id=attempt.lease.new_id(), epoch=e.epoch, jitter=parts.entropy.random())
    reply = await parts.holder.tell(e, fact)
    if reply.applied:
        attempt.lose("the attempt timed out")
    elif reply.refusal is None or reply.refusal.code is not Code.NOT_DUE:
        attempt.lose("the attempt ran out of time, and is not ours any more")
    else:
        pause_s = AGAIN_S[min(asked, len(AGAIN_S) - 1)]
        parts.timing.call_later(pause_s, lambda: attempt.errand(_time_out(attempt, asked + 1)))
