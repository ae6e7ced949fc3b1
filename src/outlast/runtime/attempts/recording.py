"""A step's outcome on its way to the journal. The store's answer calls back: no task waits for it, nor is woken by it.

Most outcomes are one entry and nothing else. Whatever is not answered as it mostly is (refused, repeated after a lost
reply, unrecordable, not its turn yet) is told once more, verbatim, by an errand that sees to all of that
(`record`): a change that is repeated is the same change.

An outcome holds its place in the journal until it is answered, and what stands behind waits for that. So every answer
gives the place up, also one that nobody waits for: an attempt that has ended may still note what its code gave up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from outlast.errors import InvalidInput
from outlast.model.journal import STEP
from outlast.model.record import settled
from outlast.runtime.attempts.lease import UNRECORDABLE
from outlast.runtime.attempts.mishaps import errand_failed, unrecorded
from outlast.runtime.attempts.operation import failed_with

if TYPE_CHECKING:
    from outlast.machine.facts import StepRecorded
    from outlast.runtime.attempts.attempt import LiveAttempt
    from outlast.runtime.attempts.operation import Operation, Outcome
    from outlast.runtime.holder import Submitted


def submit_first(attempt: LiveAttempt, operation: Operation, outcome: Outcome) -> None:
    """As `record`, with the next place of all: whatever else ends from now on, the code has this first."""
    attempt.machine.send(operation, None)
    placed = None
    with suppress(InvalidInput):  # said by `record`
        placed = attempt.lease.placed(operation, outcome)
    attempt.errand(record(attempt, operation, outcome, placed))


def submit(attempt: LiveAttempt, operation: Operation, outcome: Outcome) -> Coroutine[Any, Any, None] | None:
    """As `record`; None if there is nothing to wait for: the answer to a step's commit calls back (`Recording`)."""
    if operation.kind.OP != STEP or outcome.entry is not None:
        return record(attempt, operation, outcome)  # of others it is asked whether they are under way
    try:
        placed = attempt.lease.placed(operation, outcome)
    except InvalidInput:
        return record(attempt, operation, outcome)  # where that is its failure
    recording = Recording(attempt, operation, outcome, placed)
    if not attempt.lease.submit(placed, recording):
        return record(attempt, operation, outcome, placed)
    attempt.machine.send(operation, recording)
    return None


async def record(
    attempt: LiveAttempt, operation: Operation, outcome: Outcome, placed: StepRecorded | None = None
) -> None:
    """Record the outcome, then let the code have it. A result that is too large is a failure of the operation, as is a
    child whose id another one has by now."""
    machine = attempt.machine
    machine.send(operation, None)
    lease, entry = attempt.lease, outcome.entry
    try:
        if entry is None:
            entry = await lease.record_placed(placed or lease.placed(operation, outcome))
    except UNRECORDABLE as error:
        outcome = failed_with(attempt.parts.values, error, tries=outcome.tries)
        with suppress(InvalidInput):  # no room, or a name of no use: the code sees it, now and at every replay
            entry = await lease.record_placed(lease.placed(operation, outcome))
    finally:
        machine.answered(operation)
    if entry is not None:
        machine.replay.recorded[operation.key] = entry
    machine.recorded(operation, outcome, 0 if entry is None else settled(entry.recorded_at) or 0)
    attempt.nudge()


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
            if not attempt.machine.answered(self._operation):
                attempt.lease.leave(self._fact)
            elif attempt.lease.entered(self._fact, verdict):
                attempt.go_on_with(self._operation, self._outcome, at)
            else:
                self._resubmit()
        except Exception as error:
            self._broken(error)
        self._tell()

    def failed(self, error: Exception) -> None:
        attempt = self._attempt
        try:
            awaited = attempt.machine.answered(self._operation)
            if awaited and isinstance(error, UNRECORDABLE):
                self._resubmit()
            else:
                attempt.lease.leave(self._fact)
                if awaited:
                    unrecorded(attempt, self._operation, error)
        except Exception as broken:
            self._broken(broken)
        self._tell()

    def _resubmit(self) -> None:
        """It was not answered as it mostly is: the same is told once more, by an errand that sees to everything."""
        attempt = self._attempt
        attempt.machine.send(self._operation, None)
        attempt.errand(record(attempt, self._operation, self._outcome, self._fact))

    def _tell(self) -> None:
        if self._told is not None and not self._told.done():
            self._told.set_result(None)

    def _broken(self, error: Exception) -> None:
        """A callback's own failure would be told to nobody but the log."""
        self._attempt.lease.leave(self._fact)
        errand_failed(self._attempt, error, logging.ERROR)
