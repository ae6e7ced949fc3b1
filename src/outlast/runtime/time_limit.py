"""An attempt's timeout, which also stops code on a worker that is alive and well."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from outlast.machine import facts
from outlast.machine.changes import Code
from outlast.model.record import settled

if TYPE_CHECKING:
    from outlast.runtime.attempt import LiveAttempt

AGAIN_S = (0.05, 0.2, 1.0, 5.0)


@contextmanager
def time_limit(attempt: LiveAttempt) -> Generator[None]:
    deadline_at = settled(attempt.execution.attempt_deadline_at)
    if deadline_at is None:
        yield
        return
    left_s = max(0, deadline_at - attempt.parts.engine.group.now) / 1_000
    alarm = asyncio.get_running_loop().call_later(left_s + 0.01, lambda: attempt.errand(_time_out(attempt)))
    try:
        yield
    finally:
        alarm.cancel()


async def _time_out(attempt: LiveAttempt, asked: int = 0) -> None:
    """Refused when the clock is not there yet, or the session has lapsed and may be renewed: asked again, less and
    less often. Refused for any other reason, it is no longer ours."""
    if attempt.over:
        return
    engine, execution = attempt.parts.engine, attempt.execution
    fact = facts.TimeOut(change_id=attempt.lease.new_id(), epoch=execution.epoch, jitter=engine.entropy.random())
    told = await engine.tell(execution.namespace, execution.id, fact, seen=execution)
    if told.applied:
        attempt.lose("the attempt timed out")
    elif told.refusal is None or told.refusal.code is not Code.NOT_DUE:
        attempt.lose("the attempt ran out of time, and is not ours any more")
    else:
        pause_s = AGAIN_S[min(asked, len(AGAIN_S) - 1)]
        asyncio.get_running_loop().call_later(pause_s, lambda: attempt.errand(_time_out(attempt, asked + 1)))
