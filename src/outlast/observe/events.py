"""What observers are told: one plain, frozen record for each kind of event. It holds what the engine knew anyway."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from outlast.model.attempt import Outcome
from outlast.model.status import Status


class ErrorSummary(Struct, frozen=True, gc=False):
    """An error of user code in three words: its type without the module, its message, and the line of user code that
    it came from (`shop.py:41 in charge`; empty if it is not known)."""

    type: str
    message: str
    line: str = ""


class ExecutionEnded(Struct, frozen=True, kw_only=True, gc=False):
    """The commit that ended an execution was applied. `error` is None if no user code raised one: `cause` says then why
    it ended. `version` and `attempt` are None where whoever ended it had not read them."""

    namespace: str
    execution: str
    workflow: str
    version: str | None
    status: Status
    cause: str | None
    attempt: int | None
    crashes: int
    error: ErrorSummary | None


class AttemptEnded(Struct, frozen=True, kw_only=True, gc=False):
    """An attempt failed, timed out or was interrupted, and its execution goes on with another one. Interrupted: its
    worker died or lost the lease, and another may claim the execution."""

    namespace: str
    execution: str
    workflow: str
    version: str
    attempt: int
    worker: str | None
    outcome: Outcome
    error: ErrorSummary | None
    wait_ms: int
    """So long after this the next attempt may begin."""
    unwinds: bool
    """The next attempt only undoes what the execution did."""


class StepRetried(Struct, frozen=True, kw_only=True, gc=False):
    """A try of a step failed, and another one follows."""

    namespace: str
    execution: str
    workflow: str
    version: str
    attempt: int
    step: str
    tries: int
    """Including the one that failed."""
    error: ErrorSummary
    wait_ms: int


class WorkerStarted(Struct, frozen=True, gc=False):
    worker: str
    lanes: tuple[str, ...]
    capabilities: frozenset[str]
    concurrency: int


class WorkerDrains(Struct, frozen=True, gc=False):
    """A worker claims nothing more, and waits for what it runs."""

    worker: str
    running: tuple[str, ...]
    drain_ms: int


class WorkerDrained(Struct, frozen=True, gc=False):
    """A worker has stopped. `handed_back` did not finish in time: other workers may claim it."""

    worker: str
    handed_back: tuple[str, ...]


Event: TypeAlias = ExecutionEnded | AttemptEnded | StepRetried | WorkerStarted | WorkerDrains | WorkerDrained
