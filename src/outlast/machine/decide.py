"""`decide(view, fact, now)`: the one door into the machine. Every fact in every status has an answer.

`now` is the store's time as last seen; it only measures (how long an attempt ran), and says which answer to try first
(whether a wait may still be met). What a change writes about time is relative to its commit, and what it decides about
time is a guard that the store checks with its own clock.
"""

from __future__ import annotations

from typing import assert_never

from outlast.errors import CorruptState
from outlast.machine import decide_clock, decide_fork, decide_holder, decide_outside, decide_start, facts
from outlast.machine.changes import Changes, Code, Refusal, View, outline_after
from outlast.machine.invariants import check
from outlast.machine.transitions import allowed
from outlast.model.execution import Execution
from outlast.model.status import Status

_ACTIVE = Status.ACTIVE

# The end that a fact asks for: when it is already there, the fact's effect stands.
_ENDS: dict[type[facts.Fact], Status] = {
    facts.Complete: Status.SUCCEEDED,
    facts.Fail: Status.FAILED,
    facts.Cancelled: Status.CANCELLED,
    facts.CancelRequested: Status.CANCELLED,
    facts.DeadlinePassed: Status.EXPIRED,
    facts.TimeOut: Status.EXPIRED,
    facts.LeaseLost: Status.EXPIRED,
    facts.Skip: Status.SKIPPED,
}


def decide(view: View, fact: facts.AnyFact, now: int) -> Changes | Refusal:
    """The changes to commit, or why there are none."""
    execution = view.execution
    if (
        type(fact) is facts.StepRecorded
        and execution is not None
        and execution.status is _ACTIVE
        and execution.epoch == fact.epoch
    ):
        # The commonest fact of all, and the one that changes no status: nothing else to look up or check.
        return decide_holder.step_recorded(view, execution, fact)
    if type(fact) is facts.Start:
        answer = decide_start.start(view, fact)
    elif type(fact) is facts.Fork:
        answer = decide_fork.fork(view, fact)
    elif execution is None:
        return Refusal(Code.UNKNOWN, "there is no such execution")
    else:
        answer = _refused(execution, fact) or _decide(view, execution, fact, now)
    if type(answer) is Changes:
        _check_answer(view, fact, answer)
    return answer


def _refused(execution: Execution, fact: facts.AnyFact) -> Refusal | None:
    """What can be answered from the status and the epoch alone."""
    status = execution.status
    epoch: int | None = getattr(fact, "epoch", None)
    moves = allowed(type(fact), status)
    holds = epoch is None or (epoch == execution.epoch and (status is _ACTIVE or status.terminal))
    if moves and holds:
        return None
    if not moves and status.terminal:
        if _ENDS.get(type(fact)) is status and epoch in (None, execution.epoch):
            return Refusal(Code.ALREADY, f"is {status}")
        return Refusal(Code.TERMINAL, f"has ended: it is {status}")
    if not holds:
        return Refusal(Code.NOT_HOLDER, f"is {status} at epoch {execution.epoch}, not held at epoch {epoch}")
    if isinstance(fact, facts.Release):
        return Refusal(Code.ALREADY, "is not held")  # what is held is not ready: it was released before
    if isinstance(fact, facts.Retry):
        return Refusal(Code.NOT_ALLOWED, f"is {status}: only what has ended is retried")
    return Refusal(Code.NOT_ALLOWED, f"is {status}, which {type(fact).__name__} does not apply to")


def _decide(view: View, execution: Execution, fact: facts.AnyFact, now: int) -> Changes | Refusal:
    match fact:
        case facts.Complete():  # first: it comes with almost every execution
            return decide_holder.complete(view, execution, fact)
        case facts.Claim():
            return decide_holder.claim(view, execution, fact)
        case facts.Answered():
            return decide_holder.answered(view, execution, fact)
        case facts.Progressed():
            return decide_holder.progressed(view, execution, fact)
        case facts.Suspend():
            return decide_holder.suspend(view, execution, fact, now)
        case facts.Fail():
            return decide_holder.fail(view, execution, fact)
        case facts.Continue():
            return decide_holder.continue_as_new(view, execution, fact)
        case facts.Cancelled():
            return decide_holder.cancelled(view, execution, fact)
        case facts.HandBack():
            return decide_holder.hand_back(view, execution, fact, now)
        case facts.Wake():
            return decide_clock.wake(view, execution, fact)
        case facts.TimeOut():
            return decide_clock.time_out(view, execution, fact)
        case facts.LeaseLost():
            return decide_clock.lease_lost(view, execution, fact)
        case facts.DeadlinePassed():
            return decide_clock.deadline_passed(view, execution, fact)
        case facts.Skip():
            return decide_clock.skip(view, execution, fact)
        case facts.CancelRequested():
            return decide_outside.cancel_requested(view, execution, fact)
        case facts.Hold():
            return decide_outside.hold(view, execution, fact)
        case facts.Release():
            return decide_outside.release(view, execution, fact)
        case facts.Retry():
            return decide_outside.retry(view, execution, fact)
        case facts.Supersede():
            return decide_outside.supersede(view, execution, fact)
        case facts.EventSent():
            return decide_outside.event_sent(view, execution, fact, now)
        case facts.DeferredResolved():
            return decide_outside.deferred_resolved(view, execution, fact, now)
        case facts.ChildCompleted():
            return decide_outside.child_completed(view, execution, fact, now)
        case facts.Start() | facts.Fork() | facts.StepRecorded():
            raise AssertionError("it is decided before")
        case _:
            assert_never(fact)


def _check_answer(view: View, fact: facts.AnyFact, changes: Changes) -> None:
    """Both sides of the boundary: the move is in the table, and what would be stored keeps the invariants."""
    after = outline_after(view, changes)
    assert after is not None
    before = None if view.execution is None else view.execution.status
    if after.status not in allowed(type(fact), before):
        raise CorruptState(f"{type(fact).__name__} would turn {before} into {after.status}, which is not in the table")
    check(after)
