"""What is always true of an execution: checked before each commit and after each load, with a readable complaint."""

from __future__ import annotations

from outlast.errors import CorruptState
from outlast.model.execution import Execution
from outlast.model.status import Reason, Status, is_reason


def check(execution: Execution) -> Execution:
    """The execution itself, or `CorruptState` that names every invariant it breaks."""
    broken = violations(execution)
    if broken:
        raise CorruptState(f"execution {execution.id!r} ({execution.status}): {'; '.join(broken)}")
    return execution


def violations(execution: Execution) -> list[str]:
    """The invariants that do not hold."""
    rules = [*_always(execution), *_BY_STATUS[execution.status](execution)]
    return [text for holds, text in rules if not holds]


Rules = list[tuple[bool, str]]


def _always(e: Execution) -> Rules:
    leased, terminal = e.status is Status.ACTIVE, e.status.terminal
    return [
        ((e.worker is not None) == leased, "exactly the active hold a lease: worker"),
        ((e.claim_id is not None) == leased, "exactly the active hold a lease: claim_id"),
        ((e.claimed_at is not None) == leased, "exactly the active hold a lease: claimed_at"),
        (leased or e.attempt_deadline_at is None, "only an active attempt can time out"),
        ((e.ready_at is not None) == (e.status is Status.READY), "exactly the ready are in the order of claims"),
        ((e.finished_at is not None) == terminal, "exactly the ended have an end"),
        (terminal or e.purge_at is None, "retention counts from the end"),
        (terminal or e.attempt == e.failures + e.crashes + 1, "attempts are failures and crashes, plus one"),
        (e.failures >= 0 and e.crashes >= 0 and e.ran_ms >= 0, "counters do not go below zero"),
        (1 <= e.journal_generation <= e.generation, "a journal is of this generation or an earlier one"),
        (e.reason is None or is_reason(e.reason), f"a reason of the vocabulary, not {e.reason!r}"),
    ]


def _blocked(e: Execution) -> Rules:
    timed = e.waits in (Reason.DELAY, Reason.RETRY)
    return [
        (bool(e.waits) or e.held, "a blocked execution waits for something or is held"),
        (e.waits in ("", Reason.DEPENDENCIES, Reason.DELAY, Reason.RETRY), f"cannot be blocked on {e.waits!r}"),
        (e.reason == (Reason.OPERATOR if e.held else e.waits), "the reason says what it is blocked on"),
        ((e.wake_at is not None) == timed, "exactly a delay and a backoff have a wake time"),
    ]


def _ready(e: Execution) -> Rules:
    return [
        (e.reason is None and not e.waits, "a ready execution waits for nothing but a worker"),
        (e.wake_at is None, "a ready execution has no timer"),
        (not e.held, "a held execution is not ready"),
    ]


def _active(e: Execution) -> Rules:
    return [
        (e.reason is None and not e.waits, "an active execution waits for nothing"),
        (e.wake_at is None, "an active execution has no timer"),
        (e.epoch >= 1, "a lease has an epoch"),
        (e.attempt_open, "an active execution has an open attempt"),
    ]


def _suspended(e: Execution) -> Rules:
    return [
        (e.wake_at is not None or bool(e.waits), "a suspended execution has something that can wake it"),
        (e.reason is not None, "a suspended execution says why"),
        (e.attempt_open, "a suspension is part of an attempt"),
    ]


def _terminal(e: Execution) -> Rules:
    return [
        (e.wake_at is None and e.deadline_at is None, "an ended execution has no timer"),
        (e.reason is None and not e.waits, "an ended execution waits for nothing"),
        (not e.attempt_open, "an ended execution has no open attempt"),
        (not e.held, "an ended execution is not held"),
        (e.attempt - e.failures - e.crashes in (0, 1), "at most one attempt of an ended execution is not counted"),
    ]


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
