"""An operator's retry: a new generation on the same journal."""

from __future__ import annotations

import pytest

from outlast.machine import facts
from outlast.machine.changes import Add, Code, Matches
from outlast.model import event
from outlast.model.attempt import Attempt
from outlast.model.event import Event
from outlast.model.journal import journal_key
from outlast.model.payload import Payload
from outlast.model.status import Status
from tests.unit.machine.build import (
    KEY,
    NOW,
    OPEN_ONES,
    active,
    additions_of,
    after,
    as_it_was,
    asked_to_cancel,
    cancelled,
    changes_of,
    deletes_of,
    expired,
    failed,
    insert_of,
    inserts_of,
    refusal_of,
    skipped,
    succeeded,
    undoable,
)


@pytest.mark.parametrize("make", [failed, cancelled, expired])
def test_what_did_not_succeed_can_be_tried_again(make):
    retried = after(make(), facts.Retry)
    assert (retried.status, retried.reason, retried.ready_at) == (Status.READY, None, NOW)
    assert (retried.generation, retried.journal_generation) == (2, 1)
    assert (retried.attempt, retried.failures, retried.crashes, retried.attempt_open) == (1, 0, 0, False)
    assert (retried.cause, retried.finished_at, retried.purge_at, retried.cancel_requested) == (None, None, None, False)


def test_a_retry_starts_counting_anew():
    ended = after(active(crash_cap=1), facts.LeaseLost)
    assert ended.crashes == 1
    assert after(ended, facts.Retry).crashes == 0


def test_a_skipped_execution_waits_for_its_dependencies_again():
    retried = after(skipped(), facts.Retry)
    assert (retried.status, retried.reason, retried.waits) == (Status.BLOCKED, "dependencies", "dependencies")


def test_what_succeeded_is_not_tried_again():
    assert refusal_of(succeeded(), facts.Retry).code is Code.TERMINAL


@pytest.mark.parametrize("name", OPEN_ONES)
def test_what_has_not_ended_is_not_tried_again(name: str):
    assert refusal_of(OPEN_ONES[name](), facts.Retry).code is Code.NOT_ALLOWED


def test_a_retry_runs_again_only_the_failure_that_ended_it():
    """Settlement 9."""
    changes = changes_of(failed(), facts.Retry, supersedes=(("a/b", "charge", 0),))
    assert deletes_of(changes) == [journal_key("shop", "order-42", 1, "a/b", "charge", 0)]
    assert deletes_of(changes_of(failed(), facts.Retry)) == []


def test_a_second_retry_supersedes_in_the_journal_that_goes_on():
    again = after(after(after(failed(), facts.Retry), facts.Claim), facts.Fail)
    assert again.generation == 2
    changes = changes_of(again, facts.Retry, supersedes=(("", "charge", 0),))
    assert deletes_of(changes) == [journal_key("shop", "order-42", 1, "", "charge", 0)]


def test_a_retry_by_an_old_look_is_refused():
    """The keys that it supersedes may have outcomes by now that must stay."""
    ended = failed()
    assert after(ended, facts.Retry, seen_epoch=ended.epoch).status is Status.READY
    assert refusal_of(ended, facts.Retry, seen_epoch=ended.epoch - 1).code is Code.CONFLICT


@pytest.mark.parametrize("name", ["active", "failed", "cancelled"])
def test_entries_may_leave_ahead_of_a_failure_or_a_retry_and_nothing_else_changes(name: str):
    before = {"active": active, "failed": failed, "cancelled": cancelled}[name]()
    changes = changes_of(before, facts.Supersede, entries=(("a/b", "charge", 0), ("", "ship", 3)))
    assert deletes_of(changes) == [
        journal_key("shop", "order-42", 1, "a/b", "charge", 0),
        journal_key("shop", "order-42", 1, "", "ship", 3),
    ]
    assert len(changes.writes) == 2
    assert changes.guards == (Matches(KEY, {"status": before.status, "epoch": before.epoch, "generation": 1}),)
    assert changes.rings == ()


def test_entries_leave_only_by_who_knows_the_epoch():
    assert refusal_of(failed(), facts.Supersede, epoch=99).code is Code.NOT_HOLDER
    assert refusal_of(active(), facts.Supersede, epoch=99).code is Code.NOT_HOLDER
    assert refusal_of(after(failed(), facts.Retry), facts.Supersede).code is Code.NOT_HOLDER


def test_a_retry_is_guarded_leaves_its_trail_and_rings_the_lane():
    ended = failed()
    changes = changes_of(ended, facts.Retry)
    assert changes.guards == (as_it_was(ended),)
    assert insert_of(changes, Event).name == event.RETRY
    assert additions_of(changes) == [Add(KEY, "inbox", 1)]
    assert changes.rings == ("lane:shop:default",)


def test_a_retry_uses_the_input_that_is_there():
    assert inserts_of(changes_of(failed(), facts.Retry), Payload) == []


def test_a_retry_gets_a_whole_deadline_again():
    retried = after(expired(deadline_ms=60_000), facts.Retry, now=NOW + 500_000)
    assert retried.deadline_at == NOW + 560_000
    assert after(failed(), facts.Retry).deadline_at is None


def test_the_attempts_of_a_retry_are_numbered_anew_in_its_generation():
    attempt = insert_of(changes_of(after(failed(), facts.Retry), facts.Claim), Attempt)
    assert (attempt.generation, attempt.number, attempt.epoch) == (2, 1, 2)


def test_a_retry_keeps_the_undo_that_its_journal_has_registered():
    """The journal goes on and is not recorded again, so only the execution can remember it."""
    ended = after(undoable(), facts.Fail, retryable=False)
    retried = after(after(ended, facts.Retry), facts.Claim)
    waiting = after(retried, facts.Suspend)
    assert waiting.unwinds
    assert after(waiting, facts.CancelRequested).status is Status.READY


def test_a_retry_forgets_the_cancel_that_ended_it():
    ended = after(asked_to_cancel(active()), facts.Cancelled)
    assert ended.cancel_requested
    assert not after(ended, facts.Retry).cancel_requested
