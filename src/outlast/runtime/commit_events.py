"""Reads from an applied change what observers are told of it."""

from __future__ import annotations

from outlast.codec.failures import Failure
from outlast.codec.user_line import user_line
from outlast.machine.changes import Changes, Insert, Patch
from outlast.model.completion import Completion
from outlast.model.execution import Execution, execution_key
from outlast.observe.events import ErrorSummary, ExecutionEnded
from outlast.observe.telemetry import Telemetry


def tell_of_commit(
    telemetry: Telemetry, changes: Changes, execution: Execution | None = None, failure: Failure | None = None
) -> None:
    """`execution` is the one that the change is about, as it was before; `failure` is what its code raised."""
    for write in changes.writes:
        if type(write) is Insert and type(write.record) is Completion and write.record.status in telemetry.ends:
            telemetry.tell(_ended(changes, write.record, execution, failure))


def _ended(
    changes: Changes, completion: Completion, execution: Execution | None, failure: Failure | None
) -> ExecutionEnded:
    known = execution if execution is not None and execution.id == completion.execution else None
    key = execution_key(completion.namespace, completion.execution)
    [fields] = [write.fields for write in changes.writes if type(write) is Patch and write.key == key]
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
        error=None if known is None or failure is None else summary_of(failure),
    )


def summary_of(failure: Failure) -> ErrorSummary:
    return ErrorSummary(
        failure.type.rpartition(":")[2].rpartition(".")[2], failure.message, user_line(failure.traceback)
    )
