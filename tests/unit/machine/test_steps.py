"""A step is one insert, fenced by epoch and status. It needs no read and does not rewrite the execution."""

from __future__ import annotations

from msgspec import structs

from outlast import limits
from outlast.machine import facts
from outlast.machine.changes import Code, Insert, Matches, Patch, Put
from outlast.model.event import event_key
from outlast.model.journal import JournalEntry
from outlast.model.payload import Payload, Role
from outlast.model.record import Now
from tests.unit.machine.build import (
    KEY,
    active,
    after,
    asked_to_cancel,
    backing_off,
    changes_of,
    deletes_of,
    failed,
    fence,
    insert_of,
    patch_of,
    ready,
    refusal_of,
    say,
    succeeded,
    suspended,
    undoable,
)


def test_a_step_is_one_insert_under_the_fence():
    """Settlement 12: a step never rewrites payloads or the execution row."""
    execution = active()
    changes = changes_of(execution, facts.StepRecorded, scope="a/b", name="charge", occurrence=2, tries=3, entries=7)
    assert changes.guards == (fence(execution),)
    entry = JournalEntry(
        namespace="shop",
        execution="order-42",
        generation=1,
        scope="a/b",
        name="charge",
        occurrence=2,
        op="step",
        outcome="ok",
        value=b"paid",
        tries=3,
        epoch=1,
        position=7,
        recorded_at=Now(),
        change_id="a-StepRecorded",
    )
    assert changes.writes == (Insert(entry),)
    assert changes.rings == ()


def test_a_step_is_not_stopped_by_what_came_from_outside():
    assert changes_of(asked_to_cancel(active()), facts.StepRecorded).guards == (fence(active()),)


def test_a_zombies_step_is_refused():
    """Rule 1: every write by a worker is fenced by epoch and status."""
    assert refusal_of(active(), facts.StepRecorded, epoch=0).code is Code.NOT_HOLDER
    assert refusal_of(suspended(), facts.StepRecorded).code is Code.NOT_HOLDER
    assert refusal_of(ready(), facts.StepRecorded).code is Code.NOT_HOLDER
    assert refusal_of(succeeded(), facts.StepRecorded).code is Code.TERMINAL


def test_a_retried_execution_goes_on_in_the_same_journal_and_a_restarted_one_in_a_new_one():
    retried = after(after(failed(), facts.Retry), facts.Claim)
    assert insert_of(changes_of(retried, facts.StepRecorded), JournalEntry).generation == 1
    restarted = after(after(failed(), facts.Start, if_exists="restart"), facts.Claim)
    assert insert_of(changes_of(restarted, facts.StepRecorded), JournalEntry).generation == 2


def test_receiving_an_event_and_recording_it_are_one_commit():
    """Rule 3: event consumption + resume."""
    changes = changes_of(active(), facts.StepRecorded, op="receive", consumes=("plan", "msg-1"))
    received = event_key("shop", "order-42", "plan", "msg-1")
    assert changes.guards == (fence(active()), Matches(received, {"consumed": False}))
    assert Patch(received, {"consumed": True, "value": None}) in changes.writes


def test_a_received_event_is_kept_marked_so_that_it_goes_on_deduplicating():
    """Settlement 3: its send may be repeated verbatim after it was received."""
    changes = changes_of(active(), facts.StepRecorded, op="receive", consumes=("plan", "msg-1"))
    assert deletes_of(changes) == []


def test_the_first_undo_is_marked_on_the_execution():
    changes = changes_of(active(), facts.StepRecorded, unwinds=True)
    assert changes.writes[1:] == (Patch(KEY, {"unwinds": True}),)
    assert after(active(), facts.StepRecorded, unwinds=True).unwinds


def test_a_second_undo_leaves_the_execution_alone():
    assert patch_of(changes_of(undoable(), facts.StepRecorded, name="refund", unwinds=True)) == {}


def test_a_full_journal_is_a_limit_not_a_surprise():
    """Rule 7."""
    refusal = refusal_of(active(), facts.StepRecorded, entries=limits.JOURNAL_MAX_ENTRIES)
    assert refusal.code is Code.LIMIT
    assert "50,000" in refusal.message
    last = changes_of(active(), facts.StepRecorded, entries=limits.JOURNAL_MAX_ENTRIES - 1)
    assert insert_of(last, JournalEntry).name == "charge"


def test_a_step_may_follow_a_failed_attempt_only_under_the_new_lease():
    again = after(after(backing_off(), facts.Wake, cause="retry"), facts.Claim)
    assert refusal_of(again, facts.StepRecorded, epoch=1).code is Code.NOT_HOLDER
    assert say(facts.StepRecorded, again).epoch == 2
    assert changes_of(again, facts.StepRecorded).guards == (fence(again),)


def test_progress_is_a_gauge_beside_the_row_under_the_fence():
    execution = active()
    changes = changes_of(execution, facts.Progressed, value=b"half")
    gauge = Payload(
        namespace="shop",
        execution="order-42",
        generation=1,
        role=Role.PROGRESS,
        value=b"half",
        change_id="a-Progressed",
    )
    assert changes.guards == (fence(execution),)
    assert changes.writes == (Put(gauge),)
    assert changes_of(execution, facts.Progressed, value=b"half", role=Role.STANDSTILL).writes == (
        Put(structs.replace(gauge, role=Role.STANDSTILL)),
    )
    assert refusal_of(active(), facts.Progressed, epoch=0).code is Code.NOT_HOLDER
    assert refusal_of(succeeded(), facts.Progressed).code is Code.TERMINAL
