"""A step: call the user's function, with its timeout and its retries, and say what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from typing import Any, ClassVar

from msgspec import Struct, structs

from outlast.codec.failures import message_of, settle_failure
from outlast.codec.user_line import raised_at
from outlast.codec.values import Values
from outlast.errors import CodecHookFailed, is_fatal
from outlast.machine.backoff import delay_ms
from outlast.model.execution import Execution
from outlast.model.journal import STEP
from outlast.model.retry import RetryPolicy
from outlast.observe.events import ErrorSummary, StepRetried
from outlast.runtime.attempts.current import attempt_var, operation_var
from outlast.runtime.attempts.operation import Operation, Outcome, ResultOf, ended_with, failed_with
from outlast.runtime.operations.performed import BackOff, Performed
from outlast.runtime.parts import Parts

HOLD_MAX_MS = 5_000
"""A longer backoff suspends instead of holding the worker."""


class StepDefinition(Struct, frozen=True, kw_only=True):
    """What the runtime must know of a step."""

    name: str
    fn: Callable[..., Any]
    is_async: bool
    result: Any
    retry: RetryPolicy
    fatal: tuple[type[Exception], ...]
    timeout_s: float | None


class StepCall(Performed):
    """One call of a step."""

    __slots__ = ("args", "kwargs", "step")

    OP: ClassVar = STEP

    def __init__(self, step: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.step = step
        self.args = args
        self.kwargs = kwargs

    @property
    def name(self) -> str:
        return self.step.name

    def decode(self, values: Values, data: bytes, what: object) -> Any:
        return values.decode(data, self.step.result, what)

    async def perform(self, parts: Parts, execution: Execution, operation: Operation, tries: int) -> Outcome | BackOff:
        """Try until it succeeds, may not be retried, or must wait for long."""
        if parts.stand_ins:
            self.step = stood_in(parts, self.step)
        step = self.step
        task = operation.doing or asyncio.current_task()  # the latter where the loop's tasks begin at once
        assert task is not None
        here = step.is_async and step.timeout_s is None  # the caller's task is made for this try
        while True:
            tries += 1
            try:
                result = await (step.fn(*self.args, **self.kwargs) if here else self._invoke(parts, operation))
                if operation.dropped:
                    raise asyncio.CancelledError  # its own code caught the one that it was sent
                if task.cancelling():
                    await asyncio.sleep(0)  # its own code sent it one, which is not raised yet
                data, value = parts.values.settle(result, step.result, ResultOf(operation))
                return Outcome(data, value=value, tries=tries)
            except CodecHookFailed:
                raise  # no outcome can be written: the step runs again when the codec is back
            except BaseException as raised:
                error = own_error(operation, raised)
            if task.cancelling():
                await _hear_out(operation)
            here = False
            ended = await self.failed(parts, execution, operation, error, tries)
            if ended is not None:
                return ended

    async def failed(
        self, parts: Parts, execution: Execution, operation: Operation, error: Exception, tries: int
    ) -> Outcome | BackOff | None:
        """A try failed. None: the wait before the next one is over."""
        step = self.step
        if is_fatal(error, step.fatal) or tries >= step.retry.max_attempts:
            # The code sees what a replay would raise, live as well.
            data, settled = settle_failure(error, execution_id=execution.id, what=str(operation))
            return Outcome(parts.values.seal(data), error=settled, tries=tries)
        wait_ms = delay_ms(step.retry, tries, parts.entropy.random())
        if StepRetried in (telemetry := parts.telemetry).hears:
            telemetry.tell(
                StepRetried(
                    namespace=execution.namespace,
                    execution=execution.id,
                    workflow=execution.workflow,
                    version=execution.version,
                    attempt=execution.attempt,
                    step=step.name,
                    tries=tries,
                    error=ErrorSummary(type(error).__name__, message_of(error), raised_at(error)),
                    wait_ms=wait_ms,
                )
            )
        if wait_ms > HOLD_MAX_MS:
            return BackOff(await parts.holder.time() + wait_ms, tries)
        await parts.timing.sleep(wait_ms / 1_000)
        return None

    async def _invoke(self, parts: Parts, operation: Operation) -> Any:
        step = self.step
        context = operation.context.copy()
        context.run(operation_var.set, operation)
        loop = asyncio.get_running_loop()
        limit = parts.timing.limit(step.timeout_s if step.is_async else None)

        def begun() -> None:
            """A step that waits for a thread does not run yet: its time counts from here."""
            if step.timeout_s is not None and not body.done():
                limit.restart(step.timeout_s)

        called: ThreadFuture[Any] | None = None
        if step.is_async:
            body = loop.create_task(self._awaited(), context=context, name=f"outlast {step.name}")
        else:
            called = parts.threads.submit(lambda: context.run(self._called, loop, begun))
            body = asyncio.wrap_future(called, loop=loop)
        try:
            async with limit:
                return await body
        except TimeoutError as error:
            if limit.expired():
                raise TimeoutError(f"step {step.name!r} took longer than {step.timeout_s:g} s") from error
            raise
        finally:
            if called is not None:
                parts.threads.forsake(called)

    async def _awaited(self) -> Any:
        try:
            return await self.step.fn(*self.args, **self.kwargs)
        except (Exception, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as raised:  # a task that ends with SystemExit takes the loop along
            if is_closing(raised):
                raise
            raise ended_with(f"step {self.step.name!r}", raised) from raised

    def _called(self, loop: asyncio.AbstractEventLoop, begun: Callable[[], None]) -> Any:
        """In a thread. A future cannot carry StopIteration, and a loop ends with SystemExit."""
        step = self.step
        if step.timeout_s is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(begun)
        try:
            return step.fn(*self.args, **self.kwargs)
        except BaseException as raised:
            if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
                raise
            raise ended_with(f"step {step.name!r}", raised) from raised


def stood_in(parts: Parts, step: StepDefinition) -> StepDefinition:
    """The step itself, or what a test calls in its place: with its type, its retries and its timeout."""
    fn = parts.stand_ins.get(step.name)
    return step if fn is None else structs.replace(step, fn=fn, is_async=True)


def own_error(operation: Operation, raised: BaseException) -> Exception:
    """What the step failed with; what tells this task to stop is raised again."""
    if isinstance(raised, KeyboardInterrupt) or is_closing(raised):
        raise raised
    if operation.dropped:
        raise asyncio.CancelledError from raised  # whatever its code made of that
    if isinstance(raised, Exception):
        return raised
    if isinstance(raised, asyncio.CancelledError) and _all_stops():
        raise raised
    return ended_with(f"step {operation.kind.name!r}", raised)


def is_closing(raised: BaseException) -> bool:
    """Whether the coroutine that caught this is being closed, and may not await any more. A GeneratorExit that the
    step's own code raises comes from a frame below."""
    trace = raised.__traceback__
    return isinstance(raised, GeneratorExit) and (trace is None or trace.tb_next is None)


def exited(values: Values, operation: Operation, raised: GeneratorExit) -> Outcome:
    """What a step comes to whose task was made to exit, by something that it awaited; it is not tried again. Raised
    again if the task itself is thrown away, with its loop for example."""
    try:
        runs = asyncio.current_task() is not None and operation_var.get() is operation
    except RuntimeError:  # no loop runs
        runs = False
    if not runs:
        raise raised
    return failed_with(values, ended_with(f"step {operation.kind.name!r}", raised))


def _all_stops() -> bool:
    """Whether the attempt is over too, with its loop for example. A cancel of this task alone was the step's own."""
    attempt = attempt_var.get()
    return attempt is None or attempt.over


async def _hear_out(operation: Operation) -> None:
    """Nothing that the engine awaits may end with a cancel that the step's code has sent to its own task."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        if operation.dropped or _all_stops():
            raise
