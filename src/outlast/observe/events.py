"""What observers are told: one plain, frozen record for each kind of event. It holds what the engine knew anyway."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

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


Event: TypeAlias = ExecutionEnded
