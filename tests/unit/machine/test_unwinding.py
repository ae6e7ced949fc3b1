"""What has something to undo does not end when its time is over: its code runs once more, unwinds, and ends then."""

from __future__ import annotations

from outlast import limits
from outlast.machine import facts
from outlast.machine.changes import Code, Patch, TimeReached
from outlast.model import event
from outlast.model.attempt import Attempt, Outcome
from outlast.model.completion import Completion
from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.payload import Payload, Role
from outlast.model.status import Reason, Status
from tests.unit.machine.build import (
    KEY,
    RETRIES_AT_ONCE,
    after,
    as_it_was,
    asked_to_cancel,
    changes_of,
    fence_and_inbox,
    held,
    insert_of,
    patch_of,
    refusal_of,
    undoable,
)


def timed_out(**start: object) -> Execution:
    """Its last attempt ran out of time, and it has something to undo."""
    return after(undoable(timeout_ms=1_000, **start), facts.TimeOut)


def test_the_last_timeout_leaves_one_attempt_more_to_undo():
    told = timed_out()
    assert (told.status, told.cancel_requested, told.cause) == (Status.READY, True, "unwinding:attempt_timeout")
    assert (told.expires_for, told.failures, told.attempt) == ("attempt_timeout", 1, 2)


def test_a_timeout_that_may_be_retried_undoes_nothing():
    again = after(undoable(timeout_ms=1_000, retry=RETRIES_AT_ONCE), facts.TimeOut)
    assert (again.cancel_requested, again.expires_for) == (False, None)


def test_the_last_crash_leaves_one_attempt_more_to_undo():
    told = after(undoable(crash_cap=1), facts.LeaseLost)
    assert (told.status, told.cancel_requested, told.cause) == (Status.READY, True, "unwinding:crashes")
    assert (told.crashes, told.attempt) == (1, 2)


def test_the_deadline_tells_running_code_to_unwind():
    execution = undoable(deadline_ms=60_000)
    changes = changes_of(execution, facts.DeadlinePassed)
    assert changes.guards == (as_it_was(execution), TimeReached(KEY, "deadline_at"))
    assert insert_of(changes, Event).name == event.DEADLINE
    told = after(execution, facts.DeadlinePassed)
    assert (told.status, told.cancel_requested, told.cause) == (Status.ACTIVE, True, "unwinding:deadline")
    assert (told.deadline_at, told.inbox, told.epoch) == (None, execution.inbox + 1, execution.epoch)


def test_the_deadline_wakes_what_sleeps_to_unwind():
    asleep = after(undoable(deadline_ms=60_000), facts.Suspend)
    told = after(asleep, facts.DeadlinePassed)
    assert (told.status, told.cancel_requested, told.expires_for) == (Status.READY, True, "deadline")


def test_a_hold_outlasts_the_deadline():
    """Whoever holds it must let go of it before anything is undone."""
    asleep = held(after(undoable(deadline_ms=60_000), facts.Suspend))
    told = after(asleep, facts.DeadlinePassed)
    assert (told.status, told.reason, told.cancel_requested) == (Status.BLOCKED, Reason.OPERATOR, True)
    assert after(told, facts.Release).status is Status.READY


def test_having_unwound_it_expires_with_the_cause_that_it_had():
    for told, cause in (
        (timed_out(), "attempt_timeout"),
        (after(undoable(crash_cap=1), facts.LeaseLost), "crashes"),
        (after(after(undoable(deadline_ms=9), facts.Suspend), facts.DeadlinePassed), "deadline"),
    ):
        changes = changes_of(after(told, facts.Claim), facts.Cancelled)
        completion = insert_of(changes, Completion)
        assert (completion.status, completion.cause) == (Status.EXPIRED, cause)


def test_code_that_answers_with_an_error_of_its_own_expires_all_the_same():
    unwinding = after(timed_out(retry=RETRIES_AT_ONCE, crash_cap=9), facts.Claim)
    while unwinding.expires_for is None:
        unwinding = after(after(unwinding, facts.TimeOut), facts.Claim)
    changes = changes_of(unwinding, facts.Fail)
    assert changes.guards == (fence_and_inbox(unwinding),)
    completion = insert_of(changes, Completion)
    assert (completion.status, completion.cause) == (Status.EXPIRED, "attempt_timeout")
    assert insert_of(changes, Payload).role is Role.FAILURE


def test_a_crash_while_it_unwinds_does_not_make_it_forget_why():
    unwinding = after(timed_out(), facts.Claim)
    again = after(unwinding, facts.LeaseLost)
    assert (again.status, again.expires_for, again.crashes) == (Status.READY, "attempt_timeout", 1)


def test_a_completion_beats_the_end_that_it_did_not_hear_of():
    told = after(undoable(deadline_ms=60_000), facts.DeadlinePassed)
    assert after(told, facts.Complete).status is Status.SUCCEEDED


def test_who_was_told_to_cancel_first_ends_cancelled():
    cancelled = asked_to_cancel(undoable(timeout_ms=1_000, deadline_ms=60_000))
    late = after(cancelled, facts.DeadlinePassed)
    assert (late.status, late.deadline_at, late.expires_for) == (Status.ACTIVE, None, None)
    assert after(late, facts.Cancelled).status is Status.CANCELLED
    again = after(cancelled, facts.TimeOut)
    assert (again.status, again.expires_for) == (Status.READY, None)
    assert after(after(again, facts.Claim), facts.Cancelled).status is Status.CANCELLED
    asleep = after(after(after(undoable(deadline_ms=9), facts.Suspend), facts.CancelRequested), facts.DeadlinePassed)
    assert (asleep.status, asleep.deadline_at, asleep.expires_for) == (Status.READY, None, None)


def test_unwinding_that_times_out_again_and_again_ends():
    execution = timed_out()
    for _ in range(limits.UNWIND_FAILURES_MAX - 1):
        execution = after(after(execution, facts.Claim), facts.TimeOut)
        assert (execution.status, execution.expires_for) == (Status.READY, "attempt_timeout")
    last = changes_of(after(execution, facts.Claim), facts.TimeOut)
    assert insert_of(last, Completion).cause == "attempt_timeout"
    assert patch_of(last)["status"] is Status.EXPIRED


def test_unwinding_that_crashes_again_and_again_ends():
    execution = after(undoable(crash_cap=1), facts.LeaseLost)
    for _ in range(limits.UNWIND_CRASHES_MAX - 1):
        execution = after(after(execution, facts.Claim), facts.LeaseLost)
        assert (execution.status, execution.expires_for) == (Status.READY, "crashes")
    last = changes_of(after(execution, facts.Claim), facts.LeaseLost)
    assert insert_of(last, Completion).cause == "crashes"


def test_the_attempt_that_ran_out_of_time_is_recorded_as_such():
    changes = changes_of(undoable(timeout_ms=1_000), facts.TimeOut)
    patches = [write for write in changes.writes if isinstance(write, Patch)]
    patched = [patch.fields for patch in patches if patch.key.kind == Attempt.KIND]
    assert [fields["outcome"] for fields in patched] == [Outcome.TIMED_OUT]


def test_a_deadline_that_was_told_does_not_pass_again():
    told = after(undoable(deadline_ms=60_000), facts.DeadlinePassed)
    assert refusal_of(told, facts.DeadlinePassed).code is Code.NOT_DUE
