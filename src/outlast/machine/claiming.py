"""What a claim writes, wherever it is decided: by itself, or in the commit of the start."""

from __future__ import annotations

from outlast.machine import facts
from outlast.machine.changes import Insert, Patch, Write
from outlast.machine.guards_and_writes import Fields
from outlast.model.attempt import Attempt, attempt_key
from outlast.model.execution import Execution
from outlast.model.record import NOW, Now
from outlast.model.status import Status


def claim_fields(execution: Execution, fact: facts.Claim) -> Fields:
    left_ms = None if execution.timeout_ms is None else max(0, execution.timeout_ms - execution.ran_ms)
    return {
        "status": Status.ACTIVE,
        "reason": None,
        "epoch": execution.epoch + fact.leap,
        "worker": fact.worker,
        "claim_id": fact.change_id,
        "claimed_at": NOW,
        "attempt_deadline_at": None if left_ms is None else Now(left_ms),
        "ready_at": None,
        "attempt_open": True,
        "change_id": fact.change_id,
    }


def attempt_begun(execution: Execution, fact: facts.Claim) -> Write:
    """A new attempt's record; a resumed one goes on under its new holder."""
    epoch = execution.epoch + fact.leap
    if execution.attempt_open:
        key = attempt_key(execution.namespace, execution.id, execution.generation, execution.attempt)
        return Patch(key, {"epoch": epoch, "worker": fact.worker, "change_id": fact.change_id})
    return new_attempt(execution, epoch, fact.worker, fact.change_id)


def new_attempt(execution: Execution, epoch: int, worker: str, change_id: str) -> Insert:
    return Insert(
        Attempt(
            namespace=execution.namespace,
            execution=execution.id,
            generation=execution.generation,
            number=execution.attempt,
            epoch=epoch,
            worker=worker,
            started_at=NOW,
            change_id=change_id,
        )
    )
