"""Undoing: `outlast.compensate(step, *args)` registers what takes back a step, should the workflow not succeed.

    await outlast.compensate(release, room)      # from here on: failure, cancel or expiry call release(room)
    await reserve(room)

Works in `async def` and in `def` workflows: in a `def` it blocks, and there is nothing to await.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Generator
from typing import Any, ParamSpec, cast

from outlast import limits
from outlast.authoring.inside import workflow_code
from outlast.authoring.step import AsyncStep, Step, SyncStep
from outlast.errors import InvalidArguments, InvalidInput, LimitExceeded
from outlast.runtime.operations.compensate import Compensate

P = ParamSpec("P")


def compensate(step: AsyncStep[P, Any] | SyncStep[P, Any], *args: P.args, **kwargs: P.kwargs) -> Awaitable[None]:
    """Register an undo. If the workflow fails for good, is cancelled or expires, the undos run as steps, the last one
    first; if it succeeds, they are forgotten.

    Register before you do what is to be undone: an undo must bear that there is nothing to undo.
    """
    attempt, given = workflow_code("compensate"), cast("object", step)
    if not isinstance(given, Step):
        raise InvalidInput(f"compensate takes a step (@app.step) and its arguments, not {step!r}")
    try:
        inspect.signature(given.fn).bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidArguments(f"undo {given.name!r}: {error}") from error
    if len(attempt.unwinding) >= limits.UNDOS_MAX:
        raise LimitExceeded("undos", actual=len(attempt.unwinding) + 1, limit=limits.UNDOS_MAX, unit="undos")
    undo = given.kind(args, kwargs)
    if attempt.workflow.is_async:
        future = attempt.call(Compensate(undo))
        attempt.unwinding.register(undo)
        return future
    attempt.unwinding.register(undo)
    attempt.call_from_thread(Compensate(undo))
    return _Done()


class _Done:
    """Awaitable, for whoever awaits it all the same."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield
