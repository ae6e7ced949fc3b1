"""What ends the one wait of suspended code also records its outcome: in the commit of the wake-up, and only if there is
nothing for the code to choose from."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from outlast import limits
from outlast.errors import CorruptState
from outlast.machine import facts
from outlast.machine.changes import Changes, Put, TimeAhead, TimeReached
from outlast.machine.invariants import check
from outlast.model.deferred import Deferred, Resolution
from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.journal import Awaited, JournalEntry
from outlast.model.record import Now
from outlast.model.status import Status
from tests.unit.machine.build import (
    KEY,
    NOW,
    active,
    after,
    as_it_was,
    changes_of,
    fence,
    held,
    insert_of,
    inserts_of,
    patch_of,
    say,
    succeeded,
    suspended,
    undoable,
)

LATER = NOW + 10_000


def awaiting(op: str, name: str, reason: str, *, wake_at: int | None = None, **start: Any) -> Execution:
    """Suspended on one operation, the fourth entry of whose journal will be its outcome."""
    waits = () if reason == "timer" else (reason,)
    awaits = Awaited(op, "2.", name, 1, 3)
    return after(active(**start), facts.Suspend, reason=reason, waits=waits, wake_at=wake_at, awaits=awaits)


def receiving(**given: Any) -> Execution:
    return awaiting("receive", "plan", "event:plan", **given)


def entry_of(changes: Changes) -> JournalEntry:
    return insert_of(changes, JournalEntry)


# ---- time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["sleep", "timer"])
def test_the_timer_that_wakes_a_sleeper_records_that_its_sleep_is_over(op: str):
    before = awaiting(op, "sleep", "timer", wake_at=LATER)
    changes = changes_of(before, facts.Wake, cause="timer", change_id="w-1")
    assert changes.guards == (as_it_was(before), TimeReached(KEY, "wake_at"))
    assert entry_of(changes) == JournalEntry(
        namespace="shop",
        execution="order-42",
        generation=1,
        scope="2.",
        name="sleep",
        occurrence=1,
        op=op,
        outcome="succeeded",
        value=b"null",
        epoch=before.epoch,
        position=3,
        recorded_at=Now(),
        change_id="w-1",
    )
    assert patch_of(changes)["awaits"] == ""


def test_the_timeout_of_a_receive_is_for_its_holder_to_tell():
    before = receiving(wake_at=LATER)
    assert not inserts_of(changes_of(before, facts.Wake, cause="timer"), JournalEntry)


def test_what_is_woken_for_another_reason_has_its_sleep_before_it():
    before = after(
        active(),
        facts.Suspend,
        reason="version",
        waits=("version",),
        wake_at=LATER,
        awaits=Awaited("sleep", "", "sleep", 1, 0),
    )
    changes = changes_of(before, facts.Wake, cause="version")
    assert not inserts_of(changes, JournalEntry)
    assert patch_of(changes)["awaits"] == ""


# ---- events -------------------------------------------------------------------------------------------------------


def test_an_event_is_received_in_the_commit_that_sends_it():
    before = receiving()
    changes = changes_of(before, facts.EventSent, name="plan", value=b"gold", dedup="click-1")
    assert changes.guards == (as_it_was(before),)
    entry, event = entry_of(changes), insert_of(changes, Event)
    assert (entry.op, entry.name, entry.value, entry.outcome, entry.position) == (
        "receive",
        "plan",
        b"gold",
        "succeeded",
        3,
    )
    assert (event.dedup, event.consumed, event.value) == ("click-1", True, None)
    assert patch_of(changes)["status"] is Status.READY
    assert patch_of(changes)["awaits"] == ""


def test_an_event_meets_a_wait_with_a_timeout_only_before_that_by_the_stores_clock():
    before = receiving(wake_at=LATER)
    changes = changes_of(before, facts.EventSent, name="plan")
    assert changes.guards == (as_it_was(before), TimeAhead(KEY, "wake_at"))
    assert entry_of(changes).value == b"gold"


def test_an_event_after_the_timeout_wakes_and_stays_for_the_next_receive():
    before = receiving(wake_at=LATER)
    changes = changes_of(before, facts.EventSent, name="plan", now=LATER)
    assert changes.guards == (as_it_was(before),)
    assert not inserts_of(changes, JournalEntry)
    event = insert_of(changes, Event)
    assert (event.consumed, event.value) == (False, b"gold")
    assert patch_of(changes)["status"] is Status.READY


def test_an_event_of_another_name_stays():
    changes = changes_of(receiving(), facts.EventSent, name="other")
    assert not inserts_of(changes, JournalEntry)
    assert not insert_of(changes, Event).consumed
    assert not patch_of(changes)


def test_an_event_for_code_that_waits_for_several_things_is_left_to_its_holder():
    changes = changes_of(suspended(), facts.EventSent, name="plan")
    assert not inserts_of(changes, JournalEntry)
    assert not insert_of(changes, Event).consumed


def test_what_is_held_receives_too_and_stays_held():
    changes = changes_of(held(receiving()), facts.EventSent, name="plan")
    assert entry_of(changes).value == b"gold"
    assert patch_of(changes)["status"] is Status.BLOCKED


# ---- deferreds and children ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("resolution, outcome", [(Resolution.RESOLVED, "succeeded"), (Resolution.REJECTED, "failed")])
def test_a_resolution_is_the_outcome_of_who_waits_for_it_alone(resolution: Resolution, outcome: str):
    before = awaiting("deferred", "approval", "deferred:approval", wake_at=LATER)
    changes = changes_of(before, facts.DeferredResolved, name="approval", value=b"true", resolution=resolution)
    assert changes.guards == (as_it_was(before), TimeAhead(KEY, "wake_at"))
    assert (entry_of(changes).outcome, entry_of(changes).value) == (outcome, b"true")
    assert insert_of(changes, Deferred).resolution is resolution


def test_a_resolution_after_the_timeout_is_kept_and_no_outcome():
    before = awaiting("deferred", "approval", "deferred:approval", wake_at=LATER)
    changes = changes_of(before, facts.DeferredResolved, now=LATER)
    assert not inserts_of(changes, JournalEntry)
    assert insert_of(changes, Deferred).value == b"true"


def test_the_success_of_a_child_is_the_outcome_of_the_parent_that_waits_for_it_alone():
    before = awaiting("child", "order-42/ship", "child:order-42/ship")
    changes = changes_of(before, facts.ChildCompleted)
    assert (entry_of(changes).name, entry_of(changes).value) == ("order-42/ship", b"parcel")


def test_an_answer_that_a_child_has_succeeded_before_does_not_say_with_what():
    """The start of one that is known already: its parent's holder looks."""
    before = awaiting("child", "order-42/ship", "child:order-42/ship")
    changes = changes_of(before, facts.ChildCompleted, value=None)
    assert not inserts_of(changes, JournalEntry)
    assert patch_of(changes)["status"] is Status.READY


def test_the_failure_of_a_child_is_looked_at_by_the_parents_holder():
    """It may be tried again until then."""
    before = awaiting("child", "order-42/ship", "child:order-42/ship")
    changes = changes_of(before, facts.ChildCompleted, status=Status.FAILED)
    assert not inserts_of(changes, JournalEntry)
    assert patch_of(changes)["status"] is Status.READY


def test_a_child_that_ends_after_the_timeout_is_no_outcome():
    before = awaiting("child", "order-42/ship", "child:order-42/ship", wake_at=LATER)
    assert not inserts_of(changes_of(before, facts.ChildCompleted, now=LATER), JournalEntry)


# ---- around it ----------------------------------------------------------------------------------------------------


def test_a_full_journal_has_no_place_for_it():
    awaits = Awaited("sleep", "", "sleep", 1, limits.JOURNAL_MAX_ENTRIES)
    asleep = after(active(), facts.Suspend, reason="timer", waits=(), wake_at=LATER, awaits=awaits)
    assert asleep.awaits == ""


def test_whatever_else_ends_a_suspension_forgets_what_was_awaited():
    assert after(receiving(), facts.CancelRequested).awaits == ""
    awaits = Awaited("receive", "", "plan", 1, 3)
    unwinding = after(undoable(), facts.Suspend, awaits=awaits)
    assert after(unwinding, facts.CancelRequested).awaits == ""
    fork = after(None, facts.Fork, source=receiving())
    assert (fork.awaits, fork.status) == ("", Status.READY)


@pytest.mark.parametrize("execution", [active(), succeeded()], ids=["active", "succeeded"])
def test_only_the_suspended_await(execution: Execution):
    with pytest.raises(CorruptState, match="only the suspended have an operation that others may end"):
        check(structs.replace(execution, awaits="[]"))


def test_a_holder_may_correct_what_nobody_has_read():
    before = active()
    changes = changes_of(before, facts.StepRecorded, outcome="failed", value=b"no plan", entries=3, corrects=True)
    assert changes.guards == (fence(before),)
    [put] = [write for write in changes.writes if isinstance(write, Put)]
    assert isinstance(put.record, JournalEntry)
    assert (put.record.outcome, put.record.value, put.record.position) == ("failed", b"no plan", 3)


def test_a_cancel_overtakes_what_nobody_has_read():
    before = active()
    unread = entry_of(changes_of(receiving(), facts.EventSent, name="plan"))
    changes = changes_of(before, facts.StepRecorded, op="cancel", entries=3, overtakes=unread)
    assert changes.guards == (fence(before),)
    assert entry_of(changes).position == 3
    [put] = [write for write in changes.writes if isinstance(write, Put)]
    assert isinstance(put.record, JournalEntry)
    assert (put.record.key, put.record.position) == (unread.key, 4)


def test_awaited_reads_as_it_was_written():
    awaited = Awaited("receive", "1.2.", "plän|\n", 7, 12)
    assert Awaited.decode(awaited.encode()) == awaited
    assert say(facts.Suspend, active(), awaits=awaited).awaits == awaited
