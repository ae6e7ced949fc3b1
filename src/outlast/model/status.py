"""Where an execution is (`Status`), and why it is not running (`Reason`)."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Where an execution is: a string, so that `info.status == "succeeded"` holds. `terminal` if it has ended."""

    BLOCKED = "blocked"
    READY = "ready"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"

    # A member is looked up in tables at every decision; an enum's own hash is a call into Python. So is an attribute of
    # its class, in Python 3.11: where one is asked for at every decision, a module holds it under a name of its own.
    __hash__ = str.__hash__

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED, Status.SKIPPED})
OPEN = frozenset(Status) - TERMINAL


class Reason:
    """Why an execution is not running. Some name what is awaited: `Reason.event("plan")` is `event:plan`."""

    DEPENDENCIES = "dependencies"
    DELAY = "delay"
    RETRY = "retry"
    TIMER = "timer"
    VERSION = "version"
    OPERATOR = "operator"

    @staticmethod
    def event(name: str) -> str:
        return f"event:{name}"

    @staticmethod
    def deferred(name: str) -> str:
        return f"deferred:{name}"

    @staticmethod
    def child(execution_id: str) -> str:
        return f"child:{execution_id}"

    @staticmethod
    def quota(name: str) -> str:
        return f"quota:{name}"

    @staticmethod
    def capability(word: str) -> str:
        return f"capability:{word}"


PLAIN_REASONS = frozenset(
    {Reason.DEPENDENCIES, Reason.DELAY, Reason.RETRY, Reason.TIMER, Reason.VERSION, Reason.OPERATOR}
)
TIMED_REASONS = frozenset({Reason.TIMER, Reason.DELAY, Reason.RETRY})
"""Those that end when a wake time comes."""
NAMED_REASONS = ("event:", "deferred:", "child:", "quota:", "budget:", "capability:")


def is_reason(text: str) -> bool:
    """Whether `text` is one of the reasons that the vocabulary knows."""
    return text in PLAIN_REASONS or text.startswith(NAMED_REASONS)
