"""What becomes of an attempt when something fails that is no outcome of its code.

The app's codec may fail: its key service is away, or a value was written without it. Nothing is wrong with the work, so
nothing is counted, but it must not be tried again at once either. It is put off, and says why it waits.

The code may not take the arguments. If a deploy changed it, the execution waits for code that does.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from outlast.errors import CodecError, CodecHookFailed, LeaseLost, NonDeterminism
from outlast.runtime.attempts.current import inside
from outlast.runtime.attempts.diverging import place_of
from outlast.runtime.attempts.endings import Diverged, Raised
from outlast.runtime.attempts.signals import Stopped

if TYPE_CHECKING:
    from outlast.runtime.attempts.attempt import LiveAttempt
    from outlast.runtime.attempts.operation import Operation

_log = logging.getLogger(__name__)

PUT_OFF_MS = 5_000
"""So long an execution waits for a codec that fails, before it is tried again."""


async def put_off(attempt: LiveAttempt, error: CodecHookFailed) -> None:
    with suppress(LeaseLost):  # it has failed twice in an attempt, or too late: it is with another, or nobody, already
        await attempt.hand_back(wait_ms=PUT_OFF_MS, because=error)


def unfit(attempt: LiveAttempt, error: CodecError) -> Raised | Diverged:
    """The input is not what the code takes. Code that is as it was when the execution started is given something wrong
    (by a flow, for example), and fails."""
    e, workflow = attempt.execution, attempt.workflow
    if e.signature in ("", workflow.signature()):
        return Raised(error)
    actual, line = f"not take them: {error}", place_of(workflow)
    return Diverged(NonDeterminism(e.id, expected="its arguments", actual=actual, line=line))


@contextmanager
def encoding() -> Generator[None]:
    """Around what user code has encoded for it. If that fails in a workflow's own code, the code is left at once: what
    it would do with the error, no replay could repeat."""
    try:
        yield
    except CodecHookFailed as error:
        attempt = inside()
        if attempt is None:
            raise  # whoever performs the step puts it off
        if attempt.stream.on_the_loop:
            leave(attempt, error)
        else:
            with suppress(RuntimeError):  # the loop is closed
                attempt.real.call_soon_threadsafe(leave, attempt, error)
        raise Stopped from error


def leave(attempt: LiveAttempt, error: CodecHookFailed) -> None:
    """Put it off, and let its code not go on until then: it has not seen what it would have seen."""
    if not attempt.over:
        attempt.errand(put_off(attempt, error))
        attempt.lose(str(error))


def unrecorded(attempt: LiveAttempt, operation: Operation, error: BaseException) -> None:
    """The store refuses an outcome for good: nothing of this attempt can be written."""
    if not attempt.parts.refusals.explain(error):
        _log.error("execution %s: %s could not be recorded", attempt.execution.id, operation, exc_info=error)
    attempt.lose(f"{operation} could not be recorded: {error}")


def errand_failed(attempt: LiveAttempt, error: BaseException, gravity: int) -> None:
    """Something that the attempt must have done was not; `gravity` is the level at which to say so."""
    if isinstance(error, CodecHookFailed):
        attempt.errand(put_off(attempt, error))
        return
    if not isinstance(error, LeaseLost) and not attempt.parts.refusals.explain(error):
        _log.log(gravity, "execution %s: %s", attempt.execution.id, error, exc_info=error)
    attempt.lose(str(error))
