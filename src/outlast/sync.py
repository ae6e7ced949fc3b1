"""Waiting in a `def` workflow: as `outlast.sleep` and its like, blocking the workflow's own thread.

    outlast.sync.sleep("1h")
    plan = outlast.sync.receive("plan", Plan, timeout="3d")
    approval = outlast.sync.deferred("approval", bool)
    ok = approval.result()

While it waits, the execution is suspended: the thread is gone, and the code is replayed when it is woken.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar, overload

from outlast.authoring.inside import workflow_code
from outlast.authoring.waiting import (
    deferred_of,
    interruption,
    receive_of,
    sign,
    sleep_for,
    sleep_to,
    token_of,
)
from outlast.model.duration import Duration
from outlast.runtime.attempts.operation import Kind
from outlast.runtime.operations.deferred import AwaitDeferred
from outlast.runtime.operations.wait import Limit

T = TypeVar("T")

__all__ = ["Deferred", "deferred", "interrupted", "receive", "sleep", "sleep_until"]


def sleep(duration: Duration, name: str | None = None) -> None:
    """Wait that long, durably."""
    _blocking(sleep_for(duration, name))


def sleep_until(moment: datetime, name: str | None = None) -> None:
    """Wait until a moment (an aware datetime), durably."""
    _blocking(sleep_to(moment, name))


@overload
def receive(name: str, type: type[T], *, timeout: Duration | None = None) -> T: ...
@overload
def receive(name: str, type: Any = ..., *, timeout: Duration | None = None) -> Any: ...
def receive(name: str, type: Any = Any, *, timeout: Duration | None = None) -> Any:
    """The oldest event of that name that was not received yet; waits for one. `TimeoutError` after `timeout`."""
    return _blocking(receive_of(name, type, timeout))


class Deferred(Generic[T]):
    """A value that comes from outside, at most once: `value = deferred.result()`."""

    def __init__(self, name: str, annotation: Any, limit: Limit | None) -> None:
        self.name = name
        self._annotation = annotation
        self._limit = limit

    def result(self) -> T:
        return _blocking(AwaitDeferred(self.name, self._annotation, self._limit))

    def token(self, expires: Duration | None = None) -> str:
        """Who has it may resolve this deferred: `app.resolve_token(token, value)`."""
        return sign(self.name, _blocking(token_of(self.name, self._limit, expires)))

    def __repr__(self) -> str:
        return f"<deferred {self.name!r}>"


@overload
def deferred(name: str, type: type[T], *, timeout: Duration | None = None) -> Deferred[T]: ...
@overload
def deferred(name: str, type: Any = ..., *, timeout: Duration | None = None) -> Deferred[Any]: ...
def deferred(name: str, type: Any = Any, *, timeout: Duration | None = None) -> Deferred[Any]:
    """A named value, resolved from outside: `handle.resolve(name, value)`. The timeout counts from `result()`."""
    return Deferred(*deferred_of(name, type, timeout))


def interrupted() -> None:
    """Wait until somebody asks for a graceful stop: `handle.interrupt()`."""
    _blocking(interruption())


def _blocking(kind: Kind) -> Any:
    return workflow_code(kind.OP).call_from_thread(kind)
