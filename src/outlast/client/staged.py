"""A flow that is being accepted in parts is not there before the last of them, and neither are its members."""

from __future__ import annotations

from outlast.errors import ExecutionNotFound
from outlast.model.execution import Execution
from outlast.model.flow import Flow, flow_key
from outlast.model.status import Status
from outlast.runtime.engine import Engine


async def look(engine: Engine, namespace: str, execution_id: str) -> Execution | None:
    """The execution, if it is there."""
    execution = await engine.look(namespace, execution_id)
    return None if execution is None or await _is_staged(engine, execution) else execution


async def seen(engine: Engine, namespace: str, execution_id: str) -> Execution | None:
    """What may be a member, before something is told to it; `ExecutionNotFound` if it is not there yet. Of all else
    nothing is read."""
    if "/" not in execution_id:
        return None
    execution = await engine.look(namespace, execution_id)
    if execution is not None and await _is_staged(engine, execution):
        raise ExecutionNotFound(namespace, execution_id)
    return execution


async def _is_staged(engine: Engine, execution: Execution) -> bool:
    """Asked only of a member that nobody has run."""
    if execution.flow is None or not execution.never_ran or execution.status is Status.ACTIVE:
        return False
    [flow] = await engine.store.load([flow_key(execution.namespace, execution.flow)])
    return isinstance(flow, Flow) and flow.staged_at is not None
