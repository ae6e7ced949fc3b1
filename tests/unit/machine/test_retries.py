"""A failed attempt is tried again, after a backoff, as long as the policy allows; a cancel comes first."""

from __future__ import annotations

from outlast.machine import facts
from outlast.model.attempt import Attempt, Outcome
from outlast.model.completion import Completion
from outlast.model.journal import journal_key
from outlast.model.payload import Payload, Role
from outlast.model.record import Now
from outlast.model.status import Status
from tests.unit.machine.build import (
    NOTHING_TO_UNDO,
    NOW,
    RETRIES,
    RETRIES_AT_ONCE,
    active,
    after,
    asked_to_cancel,
    backing_off,
    changes_of,
    deletes_of,
    fence_and_inbox,
    fence_of_an_end,
    held,
    insert_of,
    inserts_of,
    patch_of,
    suspended,
    undoable,
)


def test_a_failure_with_tries_left_backs_off():
    execution = backing_off()
    assert (execution.status, execution.reason, execution.waits) == (Status.BLOCKED, "retry", "retry")
    assert execution.wake_at == NOW + 1_000
    assert execution.cause == "failed"
    assert (execution.worker, execution.attempt_open, execution.ran_ms) == (None, False, 0)


def test_the_attempt_ends_with_its_failure_and_the_execution_goes_on():
    changes = changes_of(active(retry=RETRIES), facts.Fail, failure=b"boom")
    assert patch_of(changes, Attempt.KIND) == {
        "ended_at": Now(),
        "outcome": Outcome.FAILED,
        "failure": b"boom",
        "change_id": "a-Fail",
    }
    assert inserts_of(changes, Completion) == []
    assert inserts_of(changes, Payload) == []


def test_attempts_count_failures():
    """Rule 2: attempts count failures of user code."""
    execution = backing_off()
    assert (execution.failures, execution.crashes, execution.attempt) == (1, 0, 2)
    again = after(after(execution, facts.Wake, cause="retry"), facts.Claim)
    twice = after(again, facts.Fail)
    assert (twice.failures, twice.crashes, twice.attempt) == (2, 0, 3)


def test_the_last_failure_ends_it():
    execution = active(retry=RETRIES_AT_ONCE)
    for _ in range(2):
        execution = after(after(execution, facts.Fail), facts.Claim)
    ended = after(execution, facts.Fail)
    assert (ended.status, ended.cause, ended.failures) == (Status.FAILED, "failed", 3)


def test_backoff_grows_and_jitter_shortens_it():
    execution = active(retry=RETRIES)
    assert after(execution, facts.Fail, jitter=0.5).wake_at == NOW + 750
    again = after(after(after(execution, facts.Fail), facts.Wake, cause="retry"), facts.Claim)
    assert after(again, facts.Fail).wake_at == NOW + 2_000


def test_a_retry_without_a_delay_is_ready_at_once():
    changes = changes_of(active(retry=RETRIES_AT_ONCE), facts.Fail)
    assert patch_of(changes)["status"] is Status.READY
    assert "wake_at" not in patch_of(changes)
    assert changes.rings == ("lane:shop:default",)


def test_a_fatal_failure_is_not_tried_again():
    assert after(active(retry=RETRIES), facts.Fail, retryable=False).status is Status.FAILED


def test_without_a_policy_there_is_one_attempt():
    assert after(active(), facts.Fail).status is Status.FAILED


def test_going_on_is_refused_by_anything_unheard_from_outside():
    """… because it may be a cancel. An end is not: it is final either way."""
    execution = active(retry=RETRIES)
    assert changes_of(execution, facts.Fail).guards == (fence_and_inbox(execution),)
    assert changes_of(execution, facts.Fail, retryable=False).guards == (fence_of_an_end(execution),)


def test_a_cancel_wins_at_a_retry():
    """Settlement 2: at any wake, cancel comes first."""
    execution = asked_to_cancel(active(retry=RETRIES))
    changes = changes_of(execution, facts.Fail, failure=b"boom")
    assert changes.guards == (fence_and_inbox(execution), NOTHING_TO_UNDO)
    assert insert_of(changes, Completion).status is Status.CANCELLED
    assert patch_of(changes, Attempt.KIND)["outcome"] is Outcome.FAILED
    assert insert_of(changes, Payload).role is Role.FAILURE
    ended = after(execution, facts.Fail)
    assert (ended.status, ended.cause, ended.failures) == (Status.CANCELLED, "cancelled", 1)


def test_an_undo_is_run_before_a_cancel_ends_it():
    execution = asked_to_cancel(undoable(retry=RETRIES_AT_ONCE))
    again = after(execution, facts.Fail)
    assert (again.status, again.cancel_requested, again.unwinds) == (Status.READY, True, True)


def test_an_undo_after_a_cancel_does_not_wait_for_a_backoff():
    again = after(asked_to_cancel(undoable(retry=RETRIES)), facts.Fail)
    assert (again.status, again.wake_at, again.cancel_requested) == (Status.READY, None, True)


def test_a_failure_that_ends_it_is_a_failure_even_if_a_cancel_was_asked():
    assert after(asked_to_cancel(active()), facts.Fail).status is Status.FAILED


def test_a_retry_supersedes_only_the_failure_that_escaped():
    """Settlement 9: caught failures replay as they were."""
    changes = changes_of(active(retry=RETRIES), facts.Fail, supersedes=(("a/b", "charge", 2),))
    assert deletes_of(changes) == [journal_key("shop", "order-42", 1, "a/b", "charge", 2)]
    assert deletes_of(changes_of(active(retry=RETRIES), facts.Fail)) == []


def test_a_final_failure_keeps_its_journal():
    assert deletes_of(changes_of(active(), facts.Fail, supersedes=(("a/b", "charge", 2),))) == []


def test_a_held_execution_backs_off_into_its_hold():
    execution = after(held(active(retry=RETRIES)), facts.Fail)
    assert (execution.status, execution.reason, execution.waits) == (Status.BLOCKED, "operator", "retry")
    assert execution.wake_at == NOW + 1_000
    at_once = after(held(active(retry=RETRIES_AT_ONCE)), facts.Fail)
    assert (at_once.status, at_once.reason, at_once.waits) == (Status.BLOCKED, "operator", "")


def test_every_attempt_has_the_whole_timeout():
    """`ran_ms` is of one attempt: neither a failure nor a crash hands its running time on."""
    for kind in (facts.Fail, facts.LeaseLost):
        waited = after(active(retry=RETRIES_AT_ONCE, timeout_ms=10_000), facts.Suspend, now=NOW + 4_000)
        tried = after(after(waited, facts.EventSent), facts.Claim)
        assert tried.attempt_deadline_at == NOW + 6_000
        again = after(after(tried, kind), facts.Claim)
        assert (again.ran_ms, again.attempt_deadline_at) == (0, NOW + 10_000)


def test_suspending_does_not_count_as_an_attempt():
    woken = after(after(suspended(retry=RETRIES), facts.EventSent), facts.Claim)
    assert after(woken, facts.Fail).attempt == 2


# ---- handing back -------------------------------------------------------------------------------------------------


def test_handing_back_counts_nothing_and_keeps_the_attempt_open():
    execution = after(active(), facts.HandBack, now=NOW + 40)
    assert execution.status is Status.READY
    assert (execution.attempt, execution.failures, execution.crashes) == (1, 0, 0)
    assert (execution.attempt_open, execution.ran_ms, execution.worker) == (True, 40, None)
    assert patch_of(changes_of(active(), facts.HandBack), Attempt.KIND) == {}


def test_what_the_codec_cannot_read_is_handed_back_to_be_tried_later():
    execution = after(active(), facts.HandBack, wait_ms=5_000)
    assert (execution.status, execution.reason, execution.cause) == (Status.BLOCKED, "retry", "codec")
    assert (execution.wake_at, execution.attempt, execution.failures) == (NOW + 5_000, 1, 0)


def test_handing_back_is_refused_by_anything_unheard_and_rings_the_lane():
    changes = changes_of(active(), facts.HandBack)
    assert changes.guards == (fence_and_inbox(active()),)
    assert changes.rings == ("lane:shop:default",)


def test_a_cancel_wins_at_a_hand_back():
    execution = asked_to_cancel(active())
    changes = changes_of(execution, facts.HandBack)
    assert changes.guards == (fence_and_inbox(execution), NOTHING_TO_UNDO)
    assert patch_of(changes, Attempt.KIND)["outcome"] is Outcome.CANCELLED
    assert after(execution, facts.HandBack).status is Status.CANCELLED


def test_an_undo_is_handed_on_to_the_next_holder():
    assert after(asked_to_cancel(undoable()), facts.HandBack).status is Status.READY


def test_a_held_execution_is_handed_back_into_its_hold():
    execution = after(held(active()), facts.HandBack)
    assert (execution.status, execution.reason) == (Status.BLOCKED, "operator")
