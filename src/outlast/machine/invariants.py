"""What is always true of an execution: checked before each commit and after each load, with a readable complaint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.errors import CorruptState
from outlast.model.execution import Execution
from outlast.model.flow import Flow, FlowState, Settled, Summary
from outlast.model.record import Key
from outlast.model.status import TERMINAL, Reason, Status, is_reason

_ACTIVE, _READY = Status.ACTIVE, Status.READY


def check(execution: Execution) -> Execution:
    """The execution itself, or `CorruptState` that names every invariant it breaks."""
    broken = violations(execution)
    if broken:
        raise CorruptState(f"execution {execution.id!r} ({execution.status}): {'; '.join(broken)}")
    return execution


def violations(execution: Execution) -> list[str]:
    """The invariants that do not hold. Asked with every decision, so it builds nothing unless one is broken."""
    broken: list[str] = []
    _always(execution, broken)
    _BY_STATUS[execution.status](execution, broken)
    return broken


def _always(e: Execution, broken: list[str]) -> None:
    status = e.status
    leased, terminal = status is _ACTIVE, status in TERMINAL
    if (e.worker is not None) != leased:
        broken.append("exactly the active hold a lease: worker")
    if (e.claim_id is not None) != leased:
        broken.append("exactly the active hold a lease: claim_id")
    if (e.claimed_at is not None) != leased:
        broken.append("exactly the active hold a lease: claimed_at")
    if not leased and e.attempt_deadline_at is not None:
        broken.append("only an active attempt can time out")
    if (e.ready_at is not None) != (status is _READY):
        broken.append("exactly the ready are in the order of claims")
    if (e.finished_at is not None) != terminal:
        broken.append("exactly the ended have an end")
    if not terminal and e.purge_at is not None:
        broken.append("retention counts from the end")
    if not terminal and e.attempt != e.failures + e.crashes + 1:
        broken.append("attempts are failures and crashes, plus one")
    if not 0 <= e.crashes_since_progress <= e.crashes_since_suspension <= e.crashes:
        broken.append("a suspension is progress, and all crashes are at least those since")
    if e.failures < 0 or e.crashes < 0 or e.ran_ms < 0:
        broken.append("counters do not go below zero")
    if not 1 <= e.journal_generation <= e.generation:
        broken.append("a journal is of this generation or an earlier one")
    if e.awaits and status is not Status.SUSPENDED:
        broken.append("only the suspended have an operation that others may end")
    if e.reason is not None and not is_reason(e.reason):
        broken.append(f"a reason of the vocabulary, not {e.reason!r}")


def _blocked(e: Execution, broken: list[str]) -> None:
    timed = e.waits in (Reason.DELAY, Reason.RETRY)
    if not e.waits and not e.held:
        broken.append("a blocked execution waits for something or is held")
    if e.waits not in ("", Reason.DEPENDENCIES, Reason.DELAY, Reason.RETRY):
        broken.append(f"cannot be blocked on {e.waits!r}")
    if e.reason != (Reason.OPERATOR if e.held else e.waits):
        broken.append("the reason says what it is blocked on")
    if (e.wake_at is not None) != timed:
        broken.append("exactly a delay and a backoff have a wake time")


def _ready(e: Execution, broken: list[str]) -> None:
    if e.reason is not None or e.waits:
        broken.append("a ready execution waits for nothing but a worker")
    if e.wake_at is not None:
        broken.append("a ready execution has no timer")
    if e.held:
        broken.append("a held execution is not ready")


def _active(e: Execution, broken: list[str]) -> None:
    if e.reason is not None or e.waits:
        broken.append("an active execution waits for nothing")
    if e.wake_at is not None:
        broken.append("an active execution has no timer")
    if e.epoch < 1:
        broken.append("a lease has an epoch")
    if not e.attempt_open:
        broken.append("an active execution has an open attempt")


def _suspended(e: Execution, broken: list[str]) -> None:
    if e.wake_at is None and not e.waits:
        broken.append("a suspended execution has something that can wake it")
    if e.reason is None:
        broken.append("a suspended execution says why")
    if not e.attempt_open:
        broken.append("a suspension is part of an attempt")


def _terminal(e: Execution, broken: list[str]) -> None:
    if e.wake_at is not None or e.deadline_at is not None:
        broken.append("an ended execution has no timer")
    if e.reason is not None or e.waits:
        broken.append("an ended execution waits for nothing")
    if e.attempt_open:
        broken.append("an ended execution has no open attempt")
    if e.held:
        broken.append("an ended execution is not held")
    if e.attempt - e.failures - e.crashes not in (0, 1):
        broken.append("at most one attempt of an ended execution is not counted")


_BY_STATUS = {
    Status.BLOCKED: _blocked,
    Status.READY: _ready,
    Status.ACTIVE: _active,
    Status.SUSPENDED: _suspended,
    Status.SUCCEEDED: _terminal,
    Status.FAILED: _terminal,
    Status.CANCELLED: _terminal,
    Status.EXPIRED: _terminal,
    Status.SKIPPED: _terminal,
}


def check_flow(key: Key, fields: Mapping[str, Any]) -> None:
    """`CorruptState` if these fields of a flow, its summary or a member break an invariant: all fields of a new record,
    or those of a patch that moves its state."""
    broken = ""
    if key.kind == Flow.KIND:
        state = fields["state"]
        if (state is FlowState.STAGING) != (fields.get("staged_at") is not None):
            broken = "exactly a flow in staging says since when"
        elif state is FlowState.STOPPED and (fields.get("policy") is None or fields.get("reason") is None):
            broken = "a stopped flow says how and why"
    elif key.kind == Summary.KIND:
        if (fields["outcome"] is None) != (fields["finished_at"] is None):
            broken = "exactly an ended flow has an end"
    elif fields["settled"] is Settled.OPEN and fields.get("upstreams") == 0:
        broken = "a member without upstreams waits for nothing"
    if broken:
        raise CorruptState(f"{key}: {broken}")
