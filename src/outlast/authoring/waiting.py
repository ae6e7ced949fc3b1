"""Waiting in a workflow: for time, for an event, for a value from outside. While it waits it holds no worker.

    await outlast.sleep("1h")
    plan = await outlast.receive("plan", Plan, timeout="3d")
    approval = outlast.deferred("approval", bool, timeout="7d")
    ok = await approval

`outlast.sync` has the same for `def` workflows.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import datetime
from typing import Any, Generic, TypeVar, cast, overload

from outlast import limits
from outlast.authoring.inside import workflow_code
from outlast.authoring.options import parse_lasting
from outlast.errors import InvalidDuration, InvalidInput
from outlast.model.duration import Duration, to_ms
from outlast.model.names import INTERRUPT, check_user_name
from outlast.runtime.attempts.attempt import LiveAttempt
from outlast.runtime.attempts.operation import Kind, Operation
from outlast.runtime.operations.deferred import AwaitDeferred
from outlast.runtime.operations.receive import Receive
from outlast.runtime.operations.sleep import Sleep
from outlast.runtime.operations.token import IssueToken
from outlast.runtime.operations.wait import After, At, Limit
from outlast.tokens import Claims

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


def sleep(duration: Duration, name: str | None = None) -> Coroutine[Any, Any, None]:
    """Wait that long, durably. A sleep with a `name` is one timer for the whole execution: its first wake time wins."""
    return awaited("sleep", sleep_for(duration, name))


def sleep_until(moment: datetime, name: str | None = None) -> Coroutine[Any, Any, None]:
    """Wait until a moment (an aware datetime, at most a hundred years away), durably."""
    return awaited("sleep_until", sleep_to(moment, name))


@overload
def receive(name: str, type: type[T], *, timeout: Duration | None = None) -> Coroutine[Any, Any, T]: ...
@overload
def receive(name: str, type: Any = ..., *, timeout: Duration | None = None) -> Coroutine[Any, Any, Any]: ...
def receive(name: str, type: Any = Any, *, timeout: Duration | None = None) -> Coroutine[Any, Any, Any]:
    """The oldest event of that name that was not received yet; waits for one. `TimeoutError` after `timeout`."""
    return awaited("receive", receive_of(name, type, timeout))


class Deferred(Generic[T]):
    """A value that comes from outside, at most once: `value = await deferred`."""

    def __init__(self, name: str, annotation: Any, limit: Limit | None) -> None:
        self.name = name
        self._annotation = annotation
        self._limit = limit

    def __await__(self) -> Generator[Any, None, T]:
        kind = AwaitDeferred(self.name, self._annotation, self._limit)
        return cast("Generator[Any, None, T]", awaited("deferred", kind).__await__())

    def token(self, expires: Duration | None = None) -> Coroutine[Any, Any, str]:
        """Who has it may resolve this deferred: `app.resolve_token(token, value)`. It is good for `expires`, else for
        as long as the deferred waits, else for `token_ttl`."""
        kind = token_of(self.name, self._limit, expires)
        return awaited("token", kind, lambda expires_at: sign(self.name, expires_at))

    def __repr__(self) -> str:
        return f"<deferred {self.name!r}>"


@overload
def deferred(name: str, type: type[T], *, timeout: Duration | None = None) -> Deferred[T]: ...
@overload
def deferred(name: str, type: Any = ..., *, timeout: Duration | None = None) -> Deferred[Any]: ...
def deferred(name: str, type: Any = Any, *, timeout: Duration | None = None) -> Deferred[Any]:
    """A named value, resolved from outside: `handle.resolve(name, value)`. The timeout counts from the await."""
    return Deferred(*deferred_of(name, type, timeout))


def interrupted() -> Coroutine[Any, Any, None]:
    """Wait until somebody asks for a graceful stop: `handle.interrupt()`."""
    return awaited("interrupted", interruption())


@overload
async def race(first: Awaitable[A], second: Awaitable[B], /) -> A | B: ...
@overload
async def race(first: Awaitable[A], second: Awaitable[B], third: Awaitable[C], /) -> A | B | C: ...
@overload
async def race(
    first: Awaitable[A], second: Awaitable[B], third: Awaitable[C], fourth: Awaitable[D], /
) -> A | B | C | D: ...
@overload
async def race(*awaitables: Awaitable[Any]) -> Any: ...
async def race(*awaitables: Awaitable[Any]) -> Any:
    """What the first one to finish gives, or raises; the others are given up.

    plan = await outlast.race(outlast.receive("plan", Plan), outlast.sleep("3d"))    # a Plan, or None: too late
    """
    workflow_code("race")
    if not awaitables:
        raise InvalidInput("a race needs somebody who runs")
    _check_awaitable(awaitables)
    branches = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(branches, return_when=asyncio.FIRST_COMPLETED)
        winner = next(branch for branch in branches if branch.done())
    finally:
        losers = [branch for branch in branches if not branch.done()]
        for branch in losers:
            branch.cancel()
        await asyncio.gather(*losers, return_exceptions=True)
    return winner.result()


def _check_awaitable(awaitables: tuple[object, ...]) -> None:
    """Before any of them begins: what has begun would go on, and take events."""
    wrong = [one for one in awaitables if not inspect.isawaitable(one)]
    if wrong:
        for one in awaitables:
            if inspect.iscoroutine(one):
                one.close()
        raise InvalidInput(
            f"a race is between awaitables, not {wrong[0]!r}: outlast.receive(…), outlast.sleep(…), step()"
        )


# ---- what both faces share ----------------------------------------------------------------------------------------


def sleep_for(duration: Duration, name: str | None) -> Sleep:
    return Sleep(After(to_ms(duration, what="sleep")), _timer(name))


def sleep_to(moment: datetime, name: str | None) -> Sleep:
    given = cast("object", moment)
    if not isinstance(given, datetime) or given.utcoffset() is None:
        raise InvalidInput(f"sleep_until needs an aware datetime (with a time zone), not {moment!r}")
    wake_at = max(0, round(given.timestamp() * 1_000))
    if wake_at - workflow_code("sleep_until").now_ms > limits.DURATION_MAX_MS:
        raise InvalidDuration(f"sleep_until: {moment} is over a hundred years away")
    return Sleep(At(wake_at), _timer(name))


def receive_of(name: str, annotation: Any, timeout: Duration | None) -> Receive:
    return Receive(*_named("receive", "event", name, annotation, timeout))


def deferred_of(name: str, annotation: Any, timeout: Duration | None) -> tuple[str, Any, Limit | None]:
    return _named("deferred", "deferred", name, annotation, timeout)


def _named(call: str, what: str, name: str, annotation: Any, timeout: Duration | None) -> tuple[str, Any, Limit | None]:
    """What a value from outside is called, read as, and waited for: checked before anything is taken."""
    attempt = workflow_code(call)
    limit = limit_of(timeout)
    attempt.parts.values.refuse_unreadable(annotation, f"{what} {check_user_name(what, name)!r}")
    return name, annotation, limit


def token_of(name: str, limit: Limit | None, expires: Duration | None) -> IssueToken:
    lasts_ms = workflow_code("token").parts.token_ttl_ms
    if expires is not None:
        lasts_ms = parse_lasting("expires", expires)
    elif isinstance(limit, After):
        lasts_ms = limit.ms
    sign(name, 0)  # without a key it fails here, before anything is recorded
    return IssueToken(name, lasts_ms)


def sign(name: str, expires_at: int) -> str:
    """Signed anew whenever the code runs: the token itself is stored nowhere."""
    attempt = workflow_code("token")
    e = attempt.execution
    return attempt.parts.tokens.sign(Claims(e.namespace, e.id, e.journal_generation, name, expires_at))


def interruption() -> AwaitDeferred:
    return AwaitDeferred(INTERRUPT, None, None)


def limit_of(timeout: Duration | None) -> Limit | None:
    return None if timeout is None else After(to_ms(timeout, what="timeout"))


def _timer(name: str | None) -> str | None:
    return None if name is None else check_user_name("timer", name)


def awaited(call: str, kind: Kind, made: Callable[[Any], Any] | None = None) -> Coroutine[Any, Any, Any]:
    """Which one it is, is fixed at the call. It waits from when it is awaited: what nobody awaits takes no event, and
    Python warns of it by the name of the call. `made` is what is made of its outcome."""
    attempt = workflow_code(call)
    outcome = _outcome(attempt, attempt.prepare(kind), made)
    outcome.__qualname__ = call
    return outcome


async def _outcome(attempt: LiveAttempt, operation: Operation, made: Callable[[Any], Any] | None) -> Any:
    outcome = await attempt.begin(operation)
    return outcome if made is None else made(outcome)
