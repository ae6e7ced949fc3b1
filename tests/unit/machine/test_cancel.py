"""Cancel: at once where no code runs and nothing must be undone; otherwise the code is told, and unwinds."""

from __future__ import annotations

import pytest
from msgspec import structs

from outlast.machine import facts
from outlast.machine.changes import Add, Code, Patch
from outlast.model import event
from outlast.model.completion import Completion
from outlast.model.event import Event
from outlast.model.status import Status
from tests.unit.machine.build import (
    KEY,
    NOW,
    RETRIES,
    active,
    additions_of,
    after,
    as_it_was,
    asked_to_cancel,
    backing_off,
    cancelled,
    changes_of,
    delayed,
    dependent,
    held,
    insert_of,
    inserts_of,
    patch_of,
    ready,
    refusal_of,
    sleeping,
    suspended,
    undoable,
)

AT_REST = {
    "ready": ready,
    "delayed": delayed,
    "dependent": dependent,
    "backing off": backing_off,
    "suspended": suspended,
    "sleeping": sleeping,
    "held": lambda: held(ready()),
    "held asleep": lambda: held(sleeping()),
}


def undo_at_rest() -> dict[str, object]:
    asleep = after(undoable(), facts.Suspend)
    return {
        "ready": after(asleep, facts.EventSent),
        "suspended": asleep,
        "suspended and held": held(asleep),
        "backing off": after(undoable(retry=RETRIES), facts.Fail),
        "held": held(after(asleep, facts.EventSent)),
    }


@pytest.mark.parametrize("name", AT_REST)
def test_what_is_at_rest_is_cancelled_at_once(name: str):
    before = AT_REST[name]()
    changes = changes_of(before, facts.CancelRequested, reason="changed my mind")
    assert changes.guards == (as_it_was(before),)
    assert insert_of(changes, Completion).status is Status.CANCELLED
    assert changes.rings == ("home",)
    ended = after(before, facts.CancelRequested)
    assert (ended.status, ended.cause, ended.cancel_requested) == (Status.CANCELLED, "cancelled", True)


@pytest.mark.parametrize("name", ["ready", "active"])
def test_the_reason_is_kept_as_it_was_given(name: str):
    before = active() if name == "active" else ready()
    changes = changes_of(before, facts.CancelRequested, reason="zu spät", change_id="cancel-1")
    trail = insert_of(changes, Event)
    assert (trail.name, trail.value, trail.dedup) == (event.CANCEL, "zu spät".encode(), "cancel-1")
    assert additions_of(changes) == [Add(KEY, "inbox", 1)]


def test_running_code_is_told_and_nothing_of_its_holder_is_touched():
    before = active()
    changes = changes_of(before, facts.CancelRequested)
    assert changes.guards == (as_it_was(before),)
    assert [write for write in changes.writes if isinstance(write, Patch)] == [Patch(KEY, {"cancel_requested": True})]
    assert inserts_of(changes, Completion) == []
    assert changes.rings == ("home",)


def test_running_code_hears_it_before_it_can_suspend():
    """Settlement 2: suspending is guarded by the inbox that the code has seen."""
    before = active()
    suspension = changes_of(before, facts.Suspend)
    asked = asked_to_cancel(before)
    [guard] = suspension.guards
    assert guard.fields["inbox"] == asked.inbox - 1  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", undo_at_rest())
def test_what_must_be_undone_is_made_ready_so_that_its_code_unwinds(name: str):
    before = undo_at_rest()[name]
    changes = changes_of(before, facts.CancelRequested)  # pyright: ignore[reportArgumentType]
    assert inserts_of(changes, Completion) == []
    assert changes.guards == (as_it_was(before),)  # pyright: ignore[reportArgumentType]
    assert changes.rings == ("lane:shop:default",)
    told = after(before, facts.CancelRequested)  # pyright: ignore[reportArgumentType]
    assert (told.status, told.cancel_requested, told.held) == (Status.READY, True, False)
    assert (told.ready_at, told.wake_at, told.resumed) == (NOW, None, True)


def test_code_that_has_unwound_ends_as_cancelled():
    unwinding = after(asked_to_cancel(after(undoable(), facts.Suspend)), facts.Claim)
    assert after(unwinding, facts.Cancelled).status is Status.CANCELLED


def test_asking_twice_is_asking_once():
    refusal = refusal_of(asked_to_cancel(active()), facts.CancelRequested)
    assert (refusal.code, refusal.message) == (Code.ALREADY, "its cancel was requested before")
    assert refusal_of(cancelled(), facts.CancelRequested).code is Code.ALREADY


@pytest.mark.parametrize("told", [False, True])
def test_a_cancel_ends_the_hold_of_running_code(told: bool):
    before = held(asked_to_cancel(active()) if told else active())
    [patch] = [write for write in changes_of(before, facts.CancelRequested).writes if isinstance(write, Patch)]
    assert patch == Patch(KEY, {"cancel_requested": True, "held": False})


@pytest.mark.parametrize("fact", [facts.DeadlinePassed, facts.CancelRequested])
@pytest.mark.parametrize("asleep", [True, False])
def test_a_cancel_ends_the_hold_of_what_was_told_before(fact: type[facts.Fact], asleep: bool):
    told = after(after(undoable(deadline_ms=60_000), facts.Suspend), fact)
    before = held(after(after(told, facts.Claim), facts.Suspend) if asleep else told)
    again = after(before, facts.CancelRequested)
    assert (again.status, again.held, again.ready_at) == (Status.READY, False, NOW)
    assert (again.cancel_requested, again.cause) == (True, before.cause)
    assert refusal_of(again, facts.CancelRequested).code is Code.ALREADY


def test_a_cancel_that_ends_it_leaves_its_trail_in_the_same_commit():
    changes = changes_of(suspended(), facts.CancelRequested)
    assert patch_of(changes)["status"] is Status.CANCELLED
    assert insert_of(changes, Event).name == event.CANCEL


def test_who_gives_up_a_call_cancels_its_own_child_and_nobody_else():
    own = structs.replace(active(), parent="p")
    assert patch_of(changes_of(own, facts.CancelRequested, child_of="p"))["cancel_requested"]
    assert refusal_of(own, facts.CancelRequested, child_of="another").code is Code.NOT_ALLOWED
    assert refusal_of(active(), facts.CancelRequested, child_of="p").code is Code.NOT_ALLOWED
