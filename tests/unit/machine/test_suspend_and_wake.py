"""True suspension: nothing runs, nothing is held, and no wake-up is lost."""

from __future__ import annotations

import pytest

from outlast.machine import facts
from outlast.machine.changes import Code, TimeReached
from outlast.model.attempt import Attempt
from outlast.model.record import Now
from outlast.model.status import Status
from tests.unit.machine.build import (
    KEY,
    NOW,
    active,
    after,
    as_it_was,
    asked_to_cancel,
    backing_off,
    changes_of,
    delayed,
    dependent,
    fence_and_inbox,
    held,
    patch_of,
    ready,
    refusal_of,
    sleeping,
    succeeded,
    suspended,
    undoable,
)


def test_suspending_gives_the_lease_back_and_keeps_the_attempt_open():
    """Rule 2: suspension consumes nothing."""
    execution = suspended(timeout_ms=10_000)
    assert execution.status is Status.SUSPENDED
    assert (execution.worker, execution.claim_id, execution.claimed_at) == (None, None, None)
    assert execution.attempt_deadline_at is None
    assert (execution.attempt, execution.failures, execution.crashes) == (1, 0, 0)
    assert execution.attempt_open
    assert patch_of(changes_of(active(), facts.Suspend), Attempt.KIND) == {}


def test_suspending_and_its_wake_time_are_one_commit():
    """Rule 3: suspend + wake time."""
    changes = changes_of(
        active(), facts.Suspend, reason="event:plan", waits=("event:plan", "child:order-42/ship"), wake_at=NOW + 7
    )
    fields = patch_of(changes)
    assert (fields["status"], fields["reason"]) == (Status.SUSPENDED, "event:plan")
    assert fields["waits"] == "event:plan\nchild:order-42/ship"
    assert fields["wake_at"] == NOW + 7


def test_suspending_is_refused_by_anything_unheard_from_outside():
    """Settlement 2: guarded by the inbox that the code has seen, not by the one that the view shows."""
    execution = active()
    assert changes_of(execution, facts.Suspend, inbox=0).guards == (fence_and_inbox(execution, 0),)
    assert changes_of(execution, facts.Suspend, inbox=4).guards == (fence_and_inbox(execution, 4),)


def test_suspending_on_an_old_inbox_is_refused_without_a_commit():
    refusal = refusal_of(asked_to_cancel(active()), facts.Suspend, inbox=0)
    assert refusal.code is Code.NOT_ALLOWED
    assert "look again" in refusal.message


def test_suspending_adds_up_the_running_time():
    once = after(active(), facts.Suspend, now=NOW + 300)
    assert once.ran_ms == 300
    again = after(after(once, facts.EventSent), facts.Claim, now=NOW + 1_000)
    assert after(again, facts.Suspend, now=NOW + 1_050).ran_ms == 350


def test_a_clock_that_seems_to_go_back_takes_no_time_away():
    assert after(active(), facts.Suspend, now=NOW - 50).ran_ms == 0


def test_a_zombie_cannot_suspend_it():
    assert refusal_of(active(), facts.Suspend, epoch=0).code is Code.NOT_HOLDER


# ---- wake ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "execution, cause",
    [(sleeping(), "timer"), (delayed(), "delay"), (backing_off(), "retry")],
    ids=lambda x: str(x)[:5],
)
def test_a_timed_wake_is_guarded_by_the_stores_clock(execution, cause: str):
    """Settlement 5: time is the store's; a reconciler's stale list harms nothing."""
    changes = changes_of(execution, facts.Wake, cause=cause)
    assert changes.guards == (as_it_was(execution), TimeReached(KEY, "wake_at"))
    assert changes.rings == ("lane:shop:default",)


def test_what_wakes_is_ready_again_and_comes_before_new_work():
    woken = after(sleeping(), facts.Wake, cause="timer", now=NOW + 10_000)
    assert (woken.status, woken.reason, woken.waits, woken.wake_at) == (Status.READY, None, "", None)
    assert (woken.ready_at, woken.resumed) == (NOW + 10_000, True)


def test_a_delay_that_ends_is_new_work_still():
    woken = after(delayed(), facts.Wake, cause="delay")
    assert (woken.status, woken.resumed) == (Status.READY, False)


def test_the_timeout_of_a_wait_is_a_timed_wake_too():
    execution = after(active(), facts.Suspend, wake_at=NOW + 7)
    assert TimeReached(KEY, "wake_at") in changes_of(execution, facts.Wake, cause="timer").guards


def test_dependencies_wake_it_without_a_clock():
    execution = dependent()
    changes = changes_of(execution, facts.Wake, cause="dependencies")
    assert changes.guards == (as_it_was(execution),)
    assert after(execution, facts.Wake, cause="dependencies").status is Status.READY


def test_what_it_waits_for_wakes_it_without_a_clock():
    execution = after(active(), facts.Suspend, reason="version", waits=("version",))
    assert changes_of(execution, facts.Wake, cause="version").guards == (as_it_was(execution),)


@pytest.mark.parametrize(
    "execution, cause, awaited",
    [
        (suspended(), "timer", "event:plan"),
        (suspended(), "event:other", "event:plan"),
        (sleeping(), "event:plan", "timer"),
        (dependent(), "delay", "dependencies"),
        (held(ready()), "timer", "operator"),
    ],
    ids=["no timer", "other event", "no event", "no delay", "held"],
)
def test_what_it_does_not_wait_for_does_not_wake_it(execution, cause: str, awaited: str):
    refusal = refusal_of(execution, facts.Wake, cause=cause)
    assert refusal.code is Code.NOT_DUE
    assert refusal.message == f"waits for {awaited}, not for {cause}"


def test_a_wake_of_what_runs_or_has_ended_is_refused():
    assert refusal_of(active(), facts.Wake).code is Code.NOT_ALLOWED
    assert refusal_of(ready(), facts.Wake).code is Code.NOT_ALLOWED
    assert refusal_of(succeeded(), facts.Wake).code is Code.TERMINAL


@pytest.mark.parametrize("execution", [held(sleeping()), held(delayed())], ids=["sleeping", "delayed"])
def test_a_held_execution_wakes_into_its_hold(execution):
    cause = execution.waits or "timer"
    changes = changes_of(execution, facts.Wake, cause=cause)
    assert changes.rings == ("home",)
    woken = after(execution, facts.Wake, cause=cause)
    assert (woken.status, woken.reason, woken.waits, woken.wake_at) == (Status.BLOCKED, "operator", "", None)
    assert after(woken, facts.Release).status is Status.READY


def test_cleaning_up_after_a_cancel_may_sleep_and_wakes_to_go_on():
    """The code has seen the cancel: its own cleanup is not cut short by it."""
    cleaning = after(asked_to_cancel(undoable()), facts.Suspend, reason="timer", waits=(), wake_at=NOW + 1)
    woken = after(cleaning, facts.Wake, cause="timer")
    assert (woken.status, woken.cancel_requested) == (Status.READY, True)


def test_a_wake_is_written_relative_to_its_commit():
    assert patch_of(changes_of(sleeping(), facts.Wake))["ready_at"] == Now()
