"""A step's outcome on its way to the journal. The store's answer calls back: no task waits for it, nor is woken by it.

Most outcomes are one entry and nothing else. Whatever is not answered as it mostly is (refused, repeated after a lost
reply, unrecordable, not its turn yet) is told once more, verbatim, by an errand that sees to all of that
(`LiveAttempt.settle`): a change that is repeated is the same change.

An outcome holds its place in the journal until it is answered, and what stands behind waits for that. So every answer
gives the place up, also one that nobody waits for: an attempt that has ended may still note what its code gave up.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from msgspec import Struct

from outlast.runtime.attempts.lease import UNRECORDABLE
from outlast.runtime.attempts.mishaps import errand_failed, unrecorded

if TYPE_CHECKING:
    from outlast.machine.facts import StepRecorded
    from outlast.runtime.attempts.attempt import LiveAttempt
    from outlast.runtime.attempts.operation import Operation, Outcome
    from outlast.store.port import Verdict


class Recording(Struct, frozen=True, eq=False):
    """Called back by the future of its commit."""

    attempt: LiveAttempt
    operation: Operation
    outcome: Outcome
    fact: StepRecorded

    def __call__(self, asked: asyncio.Future[tuple[Verdict, int]]) -> None:
        try:
            self._take(asked)
        except Exception as error:  # a callback's would be told to nobody but the log
            self.attempt.lease.leave(self.fact)
            errand_failed(self.attempt, error, logging.ERROR)

    def _take(self, asked: asyncio.Future[tuple[Verdict, int]]) -> None:
        attempt, operation, fact = self.attempt, self.operation, self.fact
        error = asyncio.CancelledError() if asked.cancelled() else asked.exception()
        if not attempt.answered(operation):
            attempt.lease.leave(fact)
        elif error is None:
            verdict, committed_at = asked.result()
            if attempt.lease.entered(fact, verdict):
                attempt.settled(operation, self.outcome, committed_at)
            else:
                attempt.settles_again(operation, self.outcome, fact)
        elif isinstance(error, UNRECORDABLE):
            attempt.settles_again(operation, self.outcome, fact)
        else:
            attempt.lease.leave(fact)
            unrecorded(attempt, operation, error)
