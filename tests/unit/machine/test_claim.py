"""Claim: the only way to run. This is also the specification of the stores' native claim."""

from __future__ import annotations

import pytest

from outlast.machine import facts
from outlast.machine.changes import Code
from outlast.model.attempt import Attempt
from outlast.model.record import Now
from outlast.model.status import Status
from tests.unit.machine.build import (
    ENDED_ONES,
    NOW,
    OPEN_ONES,
    active,
    additions_of,
    after,
    as_it_was,
    backing_off,
    changes_of,
    held,
    insert_of,
    inserts_of,
    patch_of,
    ready,
    refusal_of,
    suspended,
)


def test_a_claim_gives_a_lease_with_a_new_epoch():
    before = ready()
    claimed = after(before, facts.Claim, worker="worker-9", change_id="claim-1")
    assert (claimed.status, claimed.epoch, claimed.worker) == (Status.ACTIVE, 1, "worker-9")
    assert (claimed.claim_id, claimed.claimed_at, claimed.ready_at) == ("claim-1", NOW, None)
    assert claimed.attempt_open


def test_a_claim_is_guarded_by_all_that_it_saw():
    before = ready()
    assert changes_of(before, facts.Claim).guards == (as_it_was(before),)


def test_a_first_claim_opens_the_record_of_an_attempt():
    attempt = insert_of(changes_of(ready(), facts.Claim), Attempt)
    assert attempt == Attempt(
        namespace="shop",
        execution="order-42",
        generation=1,
        number=1,
        epoch=1,
        worker="worker-1",
        started_at=Now(),
        change_id="a-Claim",
    )


def test_a_resumed_attempt_goes_on_under_its_new_holder():
    woken = after(suspended(), facts.EventSent)
    changes = changes_of(woken, facts.Claim, worker="worker-2")
    assert inserts_of(changes, Attempt) == []
    assert patch_of(changes, Attempt.KIND) == {"epoch": 2, "worker": "worker-2", "change_id": "a-Claim"}


def test_a_retried_execution_gets_the_next_attempt():
    again = after(backing_off(), facts.Wake, cause="retry")
    assert insert_of(changes_of(again, facts.Claim), Attempt).number == 2


def test_a_claim_of_an_execution_without_a_timeout_sets_no_alarm():
    assert active().attempt_deadline_at is None


def test_the_timeout_counts_running_time_only():
    """Design: `timeout` is one attempt's running time, suspension excluded."""
    first = after(ready(timeout_ms=10_000), facts.Claim)
    assert first.attempt_deadline_at == NOW + 10_000
    waiting = after(first, facts.Suspend, now=NOW + 4_000)
    woken = after(waiting, facts.EventSent, now=NOW + 900_000)
    second = after(woken, facts.Claim, now=NOW + 900_000)
    assert second.attempt_deadline_at == NOW + 900_000 + 6_000


def test_an_attempt_that_has_used_up_its_time_is_claimed_with_an_alarm_at_once():
    waiting = after(active(timeout_ms=1_000), facts.Suspend, now=NOW + 5_000)
    claimed = after(after(waiting, facts.EventSent), facts.Claim)
    assert claimed.attempt_deadline_at == NOW


def test_a_claim_adds_to_nothing():
    assert additions_of(changes_of(ready(), facts.Claim)) == []


@pytest.mark.parametrize("status", sorted(set(OPEN_ONES) - {"ready"}))
def test_only_what_is_ready_can_be_claimed(status: str):
    assert refusal_of(OPEN_ONES[status](), facts.Claim).code is Code.NOT_ALLOWED


@pytest.mark.parametrize("status", ENDED_ONES)
def test_what_has_ended_cannot_be_claimed(status: str):
    assert refusal_of(ENDED_ONES[status](), facts.Claim).code is Code.TERMINAL


def test_a_held_execution_cannot_be_claimed():
    assert refusal_of(held(ready()), facts.Claim).code is Code.NOT_ALLOWED
