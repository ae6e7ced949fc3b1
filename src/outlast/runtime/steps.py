"""Perform one step: call the user's function, with its timeout and its retries, and say what came of it."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from msgspec import Struct

from outlast.codec.failures import settle_failure
from outlast.errors import FATAL, CodecHookFailed
from outlast.machine.backoff import delay_ms
from outlast.runtime.current import step_var
from outlast.runtime.operation import Operation
from outlast.runtime.parts import Parts

HOLD_MAX_MS = 5_000
"""A longer backoff suspends instead of holding the worker."""


class Outcome(Struct, frozen=True):
    """What the code will see, and its bytes for the journal."""

    data: bytes
    value: Any = None
    error: Exception | None = None
    tries: int = 1


class BackOff(Struct, frozen=True):
    """Not now: try again at `wake_at`."""

    wake_at: int
    tries: int


async def perform(parts: Parts, execution_id: str, operation: Operation, tries: int) -> Outcome | BackOff:
    """Try until it succeeds, may not be retried, or must wait for long. `tries` have failed before."""
    step = operation.step
    here = step.is_async and step.timeout_s is None  # the caller's task is made for this try
    while True:
        tries += 1
        try:
            result = await (step.fn(*operation.args, **operation.kwargs) if here else _invoke(parts, operation))
            data, value = parts.values.settle(result, step.result, f"result of {operation}")
            return Outcome(data, value=value, tries=tries)
        except CodecHookFailed:
            raise  # no outcome can be written: the step runs again when the codec is back
        except Exception as error:
            here = False
            if isinstance(error, (*step.fatal, *FATAL)) or tries >= step.retry.max_attempts:
                # The code sees what a replay would raise, live as well.
                data, settled = settle_failure(error, execution_id=execution_id, what=str(operation))
                return Outcome(parts.values.seal(data), error=settled, tries=tries)
        wait_ms = delay_ms(step.retry, tries, parts.engine.entropy.random())
        if wait_ms > HOLD_MAX_MS:
            return BackOff(parts.engine.group.now + wait_ms, tries)
        await asyncio.sleep(wait_ms / 1_000)


async def _invoke(parts: Parts, operation: Operation) -> Any:
    step = operation.step
    context = operation.context.copy()
    context.run(step_var.set, step.name)
    if step.is_async:
        body = asyncio.get_running_loop().create_task(
            step.fn(*operation.args, **operation.kwargs), context=context, name=f"outlast {step.name}"
        )
    else:
        call = functools.partial(context.run, step.fn, *operation.args, **operation.kwargs)
        body = asyncio.get_running_loop().run_in_executor(parts.threads, call)
    try:
        async with asyncio.timeout(step.timeout_s):
            return await body
    except TimeoutError as error:
        if body.cancelled() or not body.done():
            raise TimeoutError(f"step {step.name!r} took longer than {step.timeout_s:g} s") from error
        raise
