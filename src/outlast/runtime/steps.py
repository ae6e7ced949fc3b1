"""Perform one step: call the user's function, with its timeout and its retries, and say what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Struct, structs

from outlast.codec.failures import settle_failure
from outlast.errors import FATAL, CodecHookFailed
from outlast.machine.backoff import delay_ms
from outlast.runtime.current import step_var
from outlast.runtime.operation import Operation, StepDefinition
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
    step = operation.step = _stood_in(parts, operation.step)
    here = step.is_async and step.timeout_s is None  # the caller's task is made for this try
    while True:
        tries += 1
        try:
            result = await (step.fn(*operation.args, **operation.kwargs) if here else _invoke(parts, operation))
            if operation.dropped:
                raise asyncio.CancelledError  # its own code caught the one that it was sent
            data, value = parts.values.settle(result, step.result, f"result of {operation}")
            return Outcome(data, value=value, tries=tries)
        except CodecHookFailed:
            raise  # no outcome can be written: the step runs again when the codec is back
        except BaseException as raised:
            error = _own_error(operation, raised)
            here = False
            if isinstance(error, (*step.fatal, *FATAL)) or tries >= step.retry.max_attempts:
                # The code sees what a replay would raise, live as well.
                data, settled = settle_failure(error, execution_id=execution_id, what=str(operation))
                return Outcome(parts.values.seal(data), error=settled, tries=tries)
        wait_ms = delay_ms(step.retry, tries, parts.engine.entropy.random())
        if wait_ms > HOLD_MAX_MS:
            return BackOff(await parts.engine.store.now() + wait_ms, tries)
        await parts.engine.timing.sleep(wait_ms / 1_000)


def _stood_in(parts: Parts, step: StepDefinition) -> StepDefinition:
    """The step itself, or what a test calls in its place: with its type, its retries and its timeout."""
    fn = parts.stand_ins.get(step.name)
    return step if fn is None else structs.replace(step, fn=fn, is_async=True)


def _own_error(operation: Operation, raised: BaseException) -> Exception:
    """What the step failed with; what tells this task to stop is raised again."""
    if isinstance(raised, KeyboardInterrupt | GeneratorExit):
        raise raised
    if operation.dropped:
        raise asyncio.CancelledError from raised  # whatever its code made of that
    if isinstance(raised, Exception):
        return raised
    if isinstance(raised, asyncio.CancelledError) and _stops_here():
        raise raised
    return _ended_with(operation.step.name, raised)


def _stops_here() -> bool:
    """Whether somebody cancelled this task, and not only something that the step awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _ended_with(name: str, raised: BaseException) -> RuntimeError:
    error = RuntimeError(f"step {name!r} ended with {type(raised).__name__}: {raised}")
    error.__cause__ = raised
    return error


async def _invoke(parts: Parts, operation: Operation) -> Any:
    step = operation.step
    context = operation.context.copy()
    context.run(step_var.set, step.name)
    loop = asyncio.get_running_loop()
    limit = parts.engine.timing.limit(step.timeout_s if step.is_async else None)

    def begun() -> None:
        """A step that waits for a thread does not run yet: its time counts from here."""
        if step.timeout_s is not None and not body.done():
            limit.restart(step.timeout_s)

    if step.is_async:
        body = loop.create_task(_awaited(operation), context=context, name=f"outlast {step.name}")
    else:
        body = loop.run_in_executor(parts.threads, lambda: context.run(_called, operation, loop, begun))
    try:
        async with limit:
            return await body
    except TimeoutError as error:
        if body.cancelled() or not body.done():
            raise TimeoutError(f"step {step.name!r} took longer than {step.timeout_s:g} s") from error
        raise


async def _awaited(operation: Operation) -> Any:
    try:
        return await operation.step.fn(*operation.args, **operation.kwargs)
    except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as raised:  # a task that ends with SystemExit takes the loop along
        raise _ended_with(operation.step.name, raised) from raised


def _called(operation: Operation, loop: asyncio.AbstractEventLoop, begun: Callable[[], None]) -> Any:
    """In a thread. A future cannot carry StopIteration, and a loop ends with SystemExit."""
    step = operation.step
    if step.timeout_s is not None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(begun)
    try:
        return step.fn(*operation.args, **operation.kwargs)
    except BaseException as raised:
        if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
            raise
        raise _ended_with(step.name, raised) from raised
