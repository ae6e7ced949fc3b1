"""A lost lease and a timed-out attempt: different predicates, which cannot both hold."""

from __future__ import annotations

from outlast.machine import facts
from outlast.machine.changes import Code, GoneOrPast, Matches, TimeAhead, TimeReached
from outlast.model.attempt import Attempt, Outcome
from outlast.model.completion import Completion
from outlast.model.session import session_key
from outlast.model.status import Status
from tests.unit.machine.build import (
    KEY,
    NOTHING_TO_UNDO,
    NOW,
    RETRIES,
    RETRIES_AT_ONCE,
    active,
    after,
    asked_to_cancel,
    changes_of,
    fence_and_inbox,
    held,
    insert_of,
    patch_of,
    ready,
    refusal_of,
    suspended,
    undoable,
)

SESSION = session_key(3, "worker-1")


# ---- lease lost ---------------------------------------------------------------------------------------------------


def test_an_expired_lease_is_claimable_by_another_worker():
    lost = after(active(), facts.LeaseLost)
    assert (lost.status, lost.cause, lost.worker) == (Status.READY, "lease_lost", None)
    assert after(lost, facts.Claim, worker="worker-2").epoch == 2


def test_takeover_is_guarded_by_the_lapsed_session_and_the_epoch():
    """Settlement 4. An expired lease that was renewed meanwhile stays where it is."""
    execution = active()
    changes = changes_of(execution, facts.LeaseLost)
    assert changes.guards == (fence_and_inbox(execution), GoneOrPast(SESSION, "expires_at"))
    assert changes.rings == ("lane:shop:default",)


def test_a_crash_is_counted_apart_from_failures():
    """Rule 2: a crash is counted apart, with its own cap."""
    lost = after(active(), facts.LeaseLost)
    assert (lost.failures, lost.crashes, lost.attempt) == (0, 1, 2)


def test_a_crash_recovers_without_any_retry_policy_and_without_delay():
    assert after(active(), facts.LeaseLost).status is Status.READY
    assert after(active(retry=RETRIES), facts.LeaseLost).status is Status.READY


def test_the_interrupted_attempt_is_over():
    changes = changes_of(active(), facts.LeaseLost)
    assert patch_of(changes, Attempt.KIND)["outcome"] is Outcome.INTERRUPTED
    assert patch_of(changes)["attempt_open"] is False
    assert patch_of(changes)["ran_ms"] == 0


def test_a_crash_too_many_ends_it_as_expired():
    execution = active(crash_cap=2)
    execution = after(after(execution, facts.LeaseLost), facts.Claim)
    changes = changes_of(execution, facts.LeaseLost)
    no_progress = Matches(KEY, {"crashes_since_progress": 1})
    assert changes.guards == (
        fence_and_inbox(execution),
        GoneOrPast(SESSION, "expires_at"),
        no_progress,
        NOTHING_TO_UNDO,
    )
    ended = after(execution, facts.LeaseLost)
    assert (ended.status, ended.cause, ended.crashes, ended.failures) == (Status.EXPIRED, "crashes", 2, 0)


def test_failures_do_not_use_up_the_crashes_nor_crashes_the_failures():
    execution = active(retry=RETRIES_AT_ONCE, crash_cap=2)
    execution = after(after(execution, facts.Fail), facts.Claim)
    execution = after(after(execution, facts.LeaseLost), facts.Claim)
    assert (execution.failures, execution.crashes, execution.attempt) == (1, 1, 3)
    assert after(execution, facts.Fail).status is Status.READY


def test_a_cancel_wins_at_a_lost_lease():
    execution = asked_to_cancel(active())
    changes = changes_of(execution, facts.LeaseLost)
    assert changes.guards == (fence_and_inbox(execution), GoneOrPast(SESSION, "expires_at"), NOTHING_TO_UNDO)
    assert insert_of(changes, Completion).status is Status.CANCELLED
    assert patch_of(changes, Attempt.KIND)["outcome"] is Outcome.INTERRUPTED
    ended = after(execution, facts.LeaseLost)
    assert (ended.status, ended.crashes) == (Status.CANCELLED, 1)


def test_an_undo_survives_the_crash_of_its_worker():
    """The sources lost compensation on restart."""
    lost = after(asked_to_cancel(undoable()), facts.LeaseLost)
    assert (lost.status, lost.cancel_requested, lost.unwinds) == (Status.READY, True, True)


def test_a_held_execution_loses_its_lease_into_its_hold():
    lost = after(held(active()), facts.LeaseLost)
    assert (lost.status, lost.reason, lost.waits) == (Status.BLOCKED, "operator", "")


def test_a_lease_that_is_gone_already_is_not_lost_again():
    assert refusal_of(active(), facts.LeaseLost, epoch=0).code is Code.NOT_HOLDER
    assert refusal_of(suspended(), facts.LeaseLost).code is Code.NOT_HOLDER
    assert refusal_of(ready(), facts.LeaseLost).code is Code.NOT_HOLDER


# ---- timed out ----------------------------------------------------------------------------------------------------


def test_a_timeout_needs_its_time_to_have_come_on_a_worker_that_lives():
    """Lease loss and attempt timeout are different predicates and can't race: one session cannot be both."""
    execution = active(timeout_ms=10)
    changes = changes_of(execution, facts.TimeOut)
    assert changes.guards == (
        fence_and_inbox(execution),
        TimeReached(KEY, "attempt_deadline_at"),
        TimeAhead(SESSION, "expires_at"),
        NOTHING_TO_UNDO,
    )


def test_attempts_count_timeouts():
    """Rule 2: its timeouts included."""
    timed_out = after(active(timeout_ms=10, retry=RETRIES), facts.TimeOut)
    assert (timed_out.failures, timed_out.crashes, timed_out.attempt) == (1, 0, 2)
    assert (timed_out.status, timed_out.reason, timed_out.cause) == (Status.BLOCKED, "retry", "attempt_timeout")
    assert timed_out.wake_at == NOW + 1_000


def test_the_backoff_of_a_timeout_has_jitter_too():
    assert after(active(timeout_ms=10, retry=RETRIES), facts.TimeOut, jitter=0.5).wake_at == NOW + 750


def test_a_timed_out_attempt_says_so():
    changes = changes_of(active(timeout_ms=10, retry=RETRIES), facts.TimeOut)
    assert patch_of(changes, Attempt.KIND)["outcome"] is Outcome.TIMED_OUT
    assert patch_of(changes)["attempt_deadline_at"] is None


def test_the_last_timeout_ends_it_as_expired():
    execution = active(timeout_ms=10)
    changes = changes_of(execution, facts.TimeOut)
    assert changes.guards == (
        fence_and_inbox(execution),
        TimeReached(KEY, "attempt_deadline_at"),
        TimeAhead(SESSION, "expires_at"),
        NOTHING_TO_UNDO,
    )
    ended = after(execution, facts.TimeOut)
    assert (ended.status, ended.cause, ended.failures) == (Status.EXPIRED, "attempt_timeout", 1)


def test_a_timeout_without_delay_is_ready_at_once():
    assert after(active(timeout_ms=10, retry=RETRIES_AT_ONCE), facts.TimeOut).status is Status.READY


def test_a_cancel_wins_at_a_timeout_that_would_be_tried_again():
    execution = asked_to_cancel(active(timeout_ms=10, retry=RETRIES))
    changes = changes_of(execution, facts.TimeOut)
    assert NOTHING_TO_UNDO in changes.guards
    assert insert_of(changes, Completion).status is Status.CANCELLED


def test_an_attempt_without_a_timeout_never_times_out():
    refusal = refusal_of(active(), facts.TimeOut)
    assert (refusal.code, refusal.message) == (Code.NOT_DUE, "its attempts have no timeout")


def test_a_suspended_attempt_does_not_time_out():
    assert refusal_of(suspended(timeout_ms=10), facts.TimeOut).code is Code.NOT_HOLDER
