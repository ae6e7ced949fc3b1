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

from outlast.runtime.attempts.lease import UNRECORDABLE
from outlast.runtime.attempts.mishaps import errand_failed, unrecorded

if TYPE_CHECKING:
    from outlast.machine.facts import StepRecorded
    from outlast.runtime.attempts.attempt import LiveAttempt
    from outlast.runtime.attempts.operation import Operation, Outcome
    from outlast.runtime.holder import Submitted


class Recording:
    """Called back with the verdict on its commit."""

    __slots__ = ("_attempt", "_fact", "_operation", "_outcome", "_told")

    def __init__(self, attempt: LiveAttempt, operation: Operation, outcome: Outcome, fact: StepRecorded) -> None:
        self._attempt = attempt
        self._operation = operation
        self._outcome = outcome
        self._fact = fact
        self._told: asyncio.Future[None] | None = None

    def told(self) -> asyncio.Future[None]:
        """Done when the answer has been taken."""
        if self._told is None:
            self._told = self._attempt.real.create_future()
        return self._told

    # ---- called by the group commit -------------------------------------------------------------------------------

    def answered(self, verdict: Submitted, at: int) -> None:
        attempt = self._attempt
        try:
            if not attempt.answered(self._operation):
                attempt.lease.leave(self._fact)
            elif attempt.lease.entered(self._fact, verdict):
                attempt.settled(self._operation, self._outcome, at)
            else:
                attempt.settles_again(self._operation, self._outcome, self._fact)
        except Exception as error:
            self._broken(error)
        self._tell()

    def failed(self, error: Exception) -> None:
        attempt = self._attempt
        try:
            awaited = attempt.answered(self._operation)
            if awaited and isinstance(error, UNRECORDABLE):
                attempt.settles_again(self._operation, self._outcome, self._fact)
            else:
                attempt.lease.leave(self._fact)
                if awaited:
                    unrecorded(attempt, self._operation, error)
        except Exception as broken:
            self._broken(broken)
        self._tell()

    def _tell(self) -> None:
        if self._told is not None and not self._told.done():
            self._told.set_result(None)

    def _broken(self, error: Exception) -> None:
        """A callback's own failure would be told to nobody but the log."""
        self._attempt.lease.leave(self._fact)
        errand_failed(self._attempt, error, logging.ERROR)
