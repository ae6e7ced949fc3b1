"""Ends: all that belongs to an end is one commit, once, and saying it again answers the same."""

from __future__ import annotations

import pytest
from msgspec import structs

from outlast.machine import facts
from outlast.machine.changes import Code
from outlast.model.attempt import Attempt, Outcome
from outlast.model.completion import Completion
from outlast.model.outbox import Delivery
from outlast.model.payload import Payload, Role
from outlast.model.record import Now
from outlast.model.status import Status
from tests.unit.machine.build import (
    ENDED_ONES,
    NOW,
    active,
    after,
    asked_to_cancel,
    backing_off,
    cancelled,
    changes_of,
    delayed,
    expired,
    failed,
    fence_of_an_end,
    held,
    insert_of,
    inserts_of,
    patch_of,
    ready,
    refusal_of,
    skipped,
    succeeded,
    suspended,
)

# Every way to end: the execution before, the fact, and what it must leave behind.
ENDS = {
    "complete": (active, facts.Complete, {}, Status.SUCCEEDED, None, Outcome.SUCCEEDED),
    "fail": (active, facts.Fail, {}, Status.FAILED, "failed", Outcome.FAILED),
    "cancelled by its code": (
        lambda **start: asked_to_cancel(active(**start)),
        facts.Cancelled,
        {},
        Status.CANCELLED,
        "cancelled",
        Outcome.CANCELLED,
    ),
    "cancelled at rest": (suspended, facts.CancelRequested, {}, Status.CANCELLED, "cancelled", Outcome.CANCELLED),
    "handed back, cancelled": (
        lambda **start: asked_to_cancel(active(**start)),
        facts.HandBack,
        {},
        Status.CANCELLED,
        "cancelled",
        Outcome.CANCELLED,
    ),
    "timed out": (
        lambda **start: active(timeout_ms=10, **start),
        facts.TimeOut,
        {},
        Status.EXPIRED,
        "attempt_timeout",
        Outcome.TIMED_OUT,
    ),
    "crashed too often": (
        lambda **start: active(crash_cap=1, **start),
        facts.LeaseLost,
        {},
        Status.EXPIRED,
        "crashes",
        Outcome.INTERRUPTED,
    ),
    "deadline": (
        lambda **start: active(deadline_ms=10, **start),
        facts.DeadlinePassed,
        {},
        Status.EXPIRED,
        "deadline",
        Outcome.TIMED_OUT,
    ),
}


@pytest.mark.parametrize("way", ENDS)
def test_an_end_is_one_commit_with_everything_that_belongs_to_it(way: str):
    """Rule 3: terminal state + completion (+ attempt, + payload, + the word to the parent)."""
    make, kind, given, status, cause, outcome = ENDS[way]
    before = make(parent="cart-1", retention_ms=500, tags={"tier": "gold"})
    changes = changes_of(before, kind, change_id="end-1", **given)

    fields = patch_of(changes)
    assert (fields["status"], fields["cause"], fields["finished_at"]) == (status, cause, Now())
    assert fields["change_id"] == "end-1"
    assert insert_of(changes, Completion) == Completion(
        namespace="shop",
        execution="order-42",
        generation=1,
        status=status,
        cause=cause,
        workflow="checkout",
        tags='{"tier":"gold"}',
        finished_at=Now(),
        change_id="end-1",
    )
    attempt = patch_of(changes, Attempt.KIND)
    assert (attempt["outcome"], attempt["ended_at"], attempt["change_id"]) == (outcome, Now(), "end-1")
    assert insert_of(changes, Delivery).target == "cart-1"
    by_its_holder = kind in (facts.Complete, facts.Fail, facts.Cancelled)
    assert ("ends" if by_its_holder else "home") in changes.rings


@pytest.mark.parametrize("way", ENDS)
def test_what_has_ended_holds_no_lease_no_timer_and_no_wait(way: str):
    make, kind, given, *_ = ENDS[way]
    ended = after(make(), kind, **given)
    assert (ended.worker, ended.claim_id, ended.claimed_at, ended.attempt_deadline_at) == (None, None, None, None)
    assert (ended.wake_at, ended.deadline_at, ended.ready_at) == (None, None, None)
    assert (ended.reason, ended.waits, ended.attempt_open, ended.held) == (None, "", False, False)


@pytest.mark.parametrize("way", ENDS)
def test_retention_counts_from_the_end(way: str):
    """Rule 5."""
    make, kind, given, *_ = ENDS[way]
    assert after(make(retention_ms=500), kind, now=NOW + 9, **given).purge_at == NOW + 9 + 500
    assert after(make(), kind, **given).purge_at is None


def test_a_completion_is_fenced_by_the_epoch_and_not_stopped_by_the_inbox():
    """Settlement 2: a completion beats a cancel that was not yet observed."""
    execution = asked_to_cancel(active())
    assert changes_of(execution, facts.Complete).guards == (fence_of_an_end(execution),)
    assert after(execution, facts.Complete).status is Status.SUCCEEDED


def test_an_output_is_kept_beside_the_hot_row():
    changes = changes_of(active(), facts.Complete, output=b"receipt")
    [payload] = inserts_of(changes, Payload)
    assert (payload.role, payload.value, payload.generation) == (Role.OUTPUT, b"receipt", 1)
    assert patch_of(changes, Attempt.KIND)["failure"] is None


def test_a_failure_is_kept_with_the_execution_and_with_its_attempt():
    changes = changes_of(active(), facts.Fail, failure=b"boom")
    assert (insert_of(changes, Payload).role, insert_of(changes, Payload).value) == (Role.FAILURE, b"boom")
    assert patch_of(changes, Attempt.KIND)["failure"] == b"boom"
    assert changes.guards == (fence_of_an_end(active()),)


def test_an_end_without_a_value_writes_no_payload():
    assert inserts_of(changes_of(asked_to_cancel(active()), facts.Cancelled), Payload) == []


def test_an_end_before_any_attempt_has_no_attempt_to_end():
    assert patch_of(changes_of(ready(), facts.CancelRequested), Attempt.KIND) == {}
    assert patch_of(changes_of(backing_off(), facts.CancelRequested), Attempt.KIND) == {}


def test_a_root_has_nobody_to_tell():
    assert inserts_of(changes_of(active(), facts.Complete), Delivery) == []


@pytest.mark.parametrize(
    "kind, status, value", [(facts.Complete, Status.SUCCEEDED, b"receipt"), (facts.Fail, Status.FAILED, b"boom")]
)
def test_the_parent_learns_of_the_end_through_the_outbox(kind: type[facts.Fact], status: Status, value: bytes):
    """It may live in another partition."""
    delivery = insert_of(changes_of(active(parent="cart-1"), kind, change_id="end-1"), Delivery)
    assert (delivery.partition, delivery.namespace, delivery.target) == (3, "shop", "cart-1")
    assert (delivery.due_at, delivery.created_at, delivery.change_id) == (Now(), Now(), "end-1")
    assert facts.decode_fact(delivery.fact) == facts.ChildCompleted(
        change_id="end-1/order-42/parent",
        child="order-42",
        status=status,
        value=value,
        cause=None if status is Status.SUCCEEDED else "failed",
    )
    assert (delivery.id, delivery.source) == ("end-1/order-42/parent", "order-42")


@pytest.mark.parametrize("way", ENDS)
def test_an_end_owes_its_children_what_they_were_started_for(way: str):
    make, kind, given, status, cause, _ = ENDS[way]
    before = structs.replace(make(), has_children=True)
    [delivery] = inserts_of(changes_of(before, kind, change_id="end-1", **given), Delivery)
    assert (delivery.target, delivery.source, delivery.change_id) == ("order-42", "order-42", "end-1")
    assert facts.decode_debt(delivery.fact) == facts.CloseChildren(
        change_id="end-1/order-42/children", reason=cause or status
    )


def test_the_completion_of_a_later_generation_is_its_own():
    again = after(after(failed(), facts.Retry), facts.Claim)
    assert insert_of(changes_of(again, facts.Complete), Completion).generation == 2


# ---- saying it again ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ended, kind",
    [
        (succeeded(), facts.Complete),
        (failed(), facts.Fail),
        (after(asked_to_cancel(active()), facts.Cancelled), facts.Cancelled),
        (cancelled(), facts.CancelRequested),
        (expired(), facts.DeadlinePassed),
        (expired(), facts.TimeOut),
        (expired(), facts.LeaseLost),
        (skipped(), facts.Skip),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_the_same_end_again_answers_the_same(ended, kind: type[facts.Fact]):
    """Rule 4: terminal operations are idempotent."""
    refusal = refusal_of(ended, kind)
    assert (refusal.code, refusal.message) == (Code.ALREADY, f"is {ended.status}")


@pytest.mark.parametrize("status", ENDED_ONES)
def test_a_different_end_is_refused_with_what_it_is(status: str):
    """Rule 4."""
    ended = ENDED_ONES[status]()
    for kind in (facts.Complete, facts.Fail, facts.Cancelled, facts.CancelRequested, facts.DeadlinePassed, facts.Skip):
        refusal = refusal_of(ended, kind)
        assert refusal.code in (Code.ALREADY, Code.TERMINAL)
        assert ended.status in refusal.message
    assert refusal_of(ended, facts.Hold).message == f"has ended: it is {ended.status}"


def test_another_holders_completion_is_not_the_same_completion():
    assert refusal_of(succeeded(), facts.Complete, epoch=7).code is Code.TERMINAL


def test_code_that_nobody_asked_to_cancel_cannot_end_as_cancelled():
    refusal = refusal_of(active(), facts.Cancelled)
    assert (refusal.code, refusal.message) == (Code.NOT_ALLOWED, "nobody asked to cancel it")


def test_code_that_was_asked_ends_as_cancelled_under_its_fence():
    execution = asked_to_cancel(active())
    assert changes_of(execution, facts.Cancelled).guards == (fence_of_an_end(execution),)


def test_a_zombie_cannot_end_it():
    """Rule 1."""
    for kind in (facts.Complete, facts.Fail, facts.Cancelled, facts.HandBack):
        assert refusal_of(asked_to_cancel(active()), kind, epoch=0).code is Code.NOT_HOLDER


def test_only_a_holder_can_complete():
    for execution in (ready(), suspended(), delayed(), held(ready())):
        assert refusal_of(execution, facts.Complete).code is Code.NOT_HOLDER
