"""What whoever awaits an execution is raised if it did not succeed."""

from __future__ import annotations

from outlast.client.waiters import End
from outlast.codec.failures import decode_failure, raised_again
from outlast.codec.values import Values
from outlast.errors import ExecutionExpired, ExecutionSkipped
from outlast.model.status import Status
from outlast.runtime.attempts.operation import was_cancelled
from outlast.runtime.inbox_reader import cancelled_because
from outlast.store.port import Store


async def error_of(end: End, store: Store, values: Values, namespace: str, execution_id: str) -> BaseException:
    match end.status:
        case Status.CANCELLED:
            return was_cancelled(execution_id, await cancelled_because(store, namespace, execution_id))
        case Status.EXPIRED:
            return ExecutionExpired(f"execution {execution_id!r} {end.status}: {end.cause}")
        case Status.SKIPPED:
            return ExecutionSkipped(f"execution {execution_id!r} was skipped: {end.cause}")
        case _:
            assert end.value is not None
            failure = decode_failure(values.unseal(end.value))
            return raised_again(failure, execution_id=execution_id, what=f"workflow {end.workflow!r}")
