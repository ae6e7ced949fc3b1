"""How an attempt in this process ended: outcomes are data, matched once, and committed here."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, structs

from outlast.codec.failures import Failure, encode_failure, failure_of
from outlast.errors import (
    CodecError,
    CodecHookFailed,
    CorruptState,
    LeaseLost,
    LimitExceeded,
    NonDeterminism,
    is_fatal,
)
from outlast.machine import facts, retry_cut
from outlast.machine.attempt import CodeEnd
from outlast.machine.decide_holder import tries_again
from outlast.model.journal import OperationKey
from outlast.model.status import Reason
from outlast.runtime.attempts.operation import ended_with
from outlast.runtime.attempts.signals import ContinuedAsNew
from outlast.runtime.holder import ChildrenToAwait

if TYPE_CHECKING:
    from outlast.runtime.attempts.attempt import LiveAttempt
    from outlast.runtime.attempts.lease import Lease
    from outlast.runtime.parts import WorkflowDefinition

_log = logging.getLogger(__name__)


class Completed(Struct, frozen=True):
    value: Any


class Raised(Struct, frozen=True):
    error: Exception
    recorded: Failure | None = None
    """The same as it was written down when the undos began."""


class Unwound(Struct, frozen=True):
    """The code observed the cancel and left."""


class Continued(Struct, frozen=True):
    """The code goes on as new."""

    input: bytes


class Asleep(Struct, frozen=True):
    """Suspended, and committed as such."""


class Gone(Struct, frozen=True):
    """The lease is lost, handed back or timed out: whatever became of it is written by others."""

    why: str


class Diverged(Struct, frozen=True):
    error: NonDeterminism


CodeEnding: TypeAlias = Completed | Raised | Unwound | Continued
"""How code ends by itself."""
Ending: TypeAlias = CodeEnding | Asleep | Gone | Diverged


LEFT_BEHIND = (Asleep, Gone)
"""The code did not end by itself: whoever goes on with it settles what it has begun."""


def gravity(ending: Ending | None) -> int:
    """The level at which to log that an errand failed: of an attempt that is gone, none of them can succeed."""
    return logging.DEBUG if isinstance(ending, Gone) else logging.ERROR


def ending_of(value: Any, error: BaseException | None, *, cancelled: bool) -> CodeEnding:
    """What the end of the code means. `cancelled`: it has observed a cancel."""
    match error:
        case None:
            return Completed(value)
        case asyncio.CancelledError() if cancelled:
            return Unwound()
        case ContinuedAsNew():
            return Continued(error.input)
        case BaseExceptionGroup() if (going_on := _going_on(error)) is not None:
            return Continued(going_on.input)
        case Exception():
            return Raised(error)
        case _:
            return Raised(ended_with("the workflow", error))


def _going_on(group: BaseExceptionGroup[BaseException]) -> ContinuedAsNew | None:
    """The code goes on as new from within a `TaskGroup`, if nothing of that failed by itself."""
    going_on, failed = group.split(ContinuedAsNew)
    while isinstance(going_on, BaseExceptionGroup):
        going_on = going_on.exceptions[0]
    return going_on if failed is None and isinstance(going_on, ContinuedAsNew) else None


async def commit_ending(attempt: LiveAttempt, ending: Ending) -> None:
    """Write down how it ended, if that is still ours to say.

    It leaves (`attempt.leaves`) when nothing else is left: not for code that is still being stopped, nor for a member
    of a flow whose room the next one takes over."""
    lease = attempt.lease
    try:
        if isinstance(ending, Completed):
            fact = _completed(attempt, ending.value)
            if isinstance(fact, facts.Complete):
                if lease.execution.flow is None or not await attempt.parts.holder.hand_on(lease.execution, fact):
                    attempt.leaves()
                    await lease.tell(fact)
                return
            ending = fact
        if not isinstance(ending, Gone):
            attempt.leaves()
        match ending:
            case Raised(error, recorded):
                await _fail(attempt, error, recorded)
            case Unwound():
                await _cancelled(attempt)
            case Continued(data):
                await _continue(lease, data)
            case Diverged(error):
                await _wait_for_version(lease, error)
            case Asleep() | Gone():
                pass
    except LeaseLost as lost:
        _log.warning("execution %s: the end came too late: %s", lease.execution.id, lost)


def _completed(attempt: LiveAttempt, value: Any) -> facts.Complete | Raised:
    """A result that cannot be stored is a failure."""
    lease, workflow = attempt.lease, attempt.workflow
    try:
        data, _ = attempt.parts.values.settle(value, workflow.arguments.result, f"result of {workflow.name}")
        return facts.Complete(change_id=lease.new_id(), epoch=lease.execution.epoch, output=data)
    except CodecHookFailed:
        raise  # nothing is wrong with the result: it is put off, and tried again
    except (CodecError, LimitExceeded) as error:
        return Raised(error)


async def _continue(lease: Lease, data: bytes) -> None:
    """What comes from outside until it is written may be an interrupt: then it is looked for once more."""
    while True:
        inbox = lease.execution.inbox
        interrupt = await lease.interrupt() if inbox else None
        reply = await lease.tell(
            facts.Continue(
                change_id=lease.new_id(), epoch=lease.execution.epoch, input=data, inbox=inbox, interrupt=interrupt
            )
        )
        if reply.refusal is None:
            return


async def _cancelled(attempt: LiveAttempt) -> None:
    """A cancel of an earlier generation is taken out when it is retried. One that was left there must not make the code
    unwind for ever."""
    lease = attempt.lease
    reply = await lease.tell(facts.Cancelled(change_id=lease.new_id(), epoch=lease.execution.epoch))
    if reply.refusal is not None:
        error = CorruptState(f"execution {lease.execution.id!r} has recorded a cancel that nobody asked for: retry it")
        await _fail(attempt, error, failure_of(error))


async def _fail(attempt: LiveAttempt, error: Exception, recorded: Failure | None) -> None:
    parts, lease = attempt.parts, attempt.lease
    keys = frozenset(attempt.escaped(error)) if recorded is None else frozenset[OperationKey]()
    again = retry_cut.escaped(await lease.recorded(), keys) if keys else []
    failure = recorded or structs.replace(failure_of(error), again=retry_cut.places_of(again))
    retryable = recorded is None and is_retryable(attempt.workflow, error)
    ahead, last = retry_cut.parts(again)
    if tries_again(lease.execution, retryable=retryable):
        for entries in ahead:
            await lease.tell(facts.Supersede(change_id=lease.new_id(), epoch=lease.execution.epoch, entries=entries))
    await lease.tell(
        facts.Fail(
            change_id=lease.new_id(),
            epoch=lease.execution.epoch,
            failure=parts.values.seal(encode_failure(failure)),
            retryable=retryable,
            supersedes=last,
            jitter=parts.entropy.random(),
        ),
        failure=failure,
    )


def is_retryable(workflow: WorkflowDefinition, error: Exception) -> bool:
    return not is_fatal(error, workflow.fatal)


def kind_of(lease: Lease, workflow: WorkflowDefinition, ending: Ending) -> CodeEnd:
    """What the machine must know of how the code ended. A failure that was written down when the undos began is one for
    good."""
    match ending:
        case Completed():
            return CodeEnd.COMPLETED
        case Continued():
            return CodeEnd.CONTINUED
        case Raised(error, recorded):
            again = recorded is None and tries_again(lease.execution, retryable=is_retryable(workflow, error))
            return CodeEnd.FAILED if again else CodeEnd.FAILED_FOR_GOOD
        case _:
            return CodeEnd.CANCELLED


async def suspended_for_children(lease: Lease) -> bool:
    """The code has ended by itself. If it must wait for children, suspend it until one of them ends: then the code is
    replayed to its end, and this is asked again. False if there is nothing to wait for."""
    while not lease.execution.cancel_requested:
        inbox = lease.execution.inbox
        waits = await lease.ask(ChildrenToAwait())
        if not waits:
            return False
        fact = facts.Suspend(
            change_id=lease.new_id(), epoch=lease.execution.epoch, inbox=inbox, reason=waits[0], waits=waits
        )
        if (await lease.tell(fact)).applied:
            return True
    return False


async def _wait_for_version(lease: Lease, error: NonDeterminism) -> None:
    """The work is not failed for the code's sake: it waits for code that fits its journal."""
    _log.error("%s", error)
    await lease.tell(
        facts.Suspend(
            change_id=lease.new_id(),
            epoch=lease.execution.epoch,
            inbox=lease.execution.inbox,
            reason=Reason.VERSION,
            waits=(Reason.VERSION,),
        )
    )
