"""Reads from an applied change what observers are told of it: ends of executions, and of attempts that are followed by
another."""

from __future__ import annotations

from outlast.codec.failures import Failure
from outlast.codec.user_line import user_line
from outlast.machine.changes import Changes, Insert, Patch
from outlast.model.attempt import Attempt, Outcome
from outlast.model.completion import Completion
from outlast.model.execution import Execution, execution_key
from outlast.model.record import Now
from outlast.observe.events import AttemptEnded, ErrorSummary, ExecutionEnded
from outlast.observe.telemetry import Telemetry

_ENDED_WELL = Outcome.SUCCEEDED
_ATTEMPT = Attempt.KIND


def tell_of_commit(
    telemetry: Telemetry, changes: Changes, execution: Execution | None = None, failure: Failure | None = None
) -> None:
    """`execution` is the one that the change is about, as it was before; `failure` is what its code raised."""
    outcome, ended = None, False
    for write in changes.writes:
        if type(write) is Insert:
            if type(write.record) is Completion:
                ended = True
                if write.record.status in telemetry.ends:
                    telemetry.tell(_execution_ended(changes, write.record, execution, failure))
        elif type(write) is Patch and write.key.kind == _ATTEMPT:
            outcome = write.fields.get("outcome")
    goes_on = outcome is not None and outcome is not _ENDED_WELL and not ended
    if goes_on and execution is not None and AttemptEnded in telemetry.hears:
        telemetry.tell(_attempt_ended(changes, execution, Outcome(str(outcome)), failure))


def _execution_ended(
    changes: Changes, completion: Completion, execution: Execution | None, failure: Failure | None
) -> ExecutionEnded:
    known = execution if execution is not None and execution.id == completion.execution else None
    fields = _patched(changes, completion.namespace, completion.execution)
    attempt, crashes = fields.get("attempt"), fields.get("crashes", 0 if known is None else known.crashes)
    return ExecutionEnded(
        namespace=completion.namespace,
        execution=completion.execution,
        workflow=completion.workflow,
        version=None if known is None else known.version,
        status=completion.status,
        cause=completion.cause,
        attempt=attempt if isinstance(attempt, int) else None,
        crashes=crashes if isinstance(crashes, int) else 0,
        error=None if known is None or failure is None else _summary(failure),
    )


def _attempt_ended(changes: Changes, e: Execution, outcome: Outcome, failure: Failure | None) -> AttemptEnded:
    fields = _patched(changes, e.namespace, e.id)
    wake_at = fields.get("wake_at")
    return AttemptEnded(
        namespace=e.namespace,
        execution=e.id,
        workflow=e.workflow,
        version=e.version,
        attempt=e.attempt,
        worker=e.worker,
        outcome=outcome,
        error=None if failure is None else _summary(failure),
        wait_ms=wake_at.plus_ms if isinstance(wake_at, Now) else 0,
        unwinds=e.cancel_requested or fields.get("cancel_requested") is True,
    )


def _patched(changes: Changes, namespace: str, execution_id: str) -> dict[str, object]:
    key = execution_key(namespace, execution_id)
    return {
        name: value
        for write in changes.writes
        if type(write) is Patch and write.key == key
        for name, value in write.fields.items()
    }


def _summary(failure: Failure) -> ErrorSummary:
    name = failure.type.rpartition(":")[2].rpartition(".")[2]
    return ErrorSummary(name, failure.message, user_line(failure.traceback))
