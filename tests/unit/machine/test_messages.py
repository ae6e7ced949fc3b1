"""Events, deferreds and ends of children: kept by everyone, and a wake-up for who waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.errors import InvalidName
from outlast.machine import facts
from outlast.machine.changes import HOME, Add, Code, Matches, Patch
from outlast.model.child import ChildEnd
from outlast.model.deferred import Deferred, Resolution
from outlast.model.event import UPDATE, Event, event_key
from outlast.model.record import Now
from outlast.model.status import TERMINAL, Status
from tests.unit.machine.build import (
    ENDED_ONES,
    KEY,
    NOW,
    active,
    additions_of,
    after,
    as_it_was,
    backing_off,
    changes_of,
    delayed,
    deletes_of,
    dependent,
    failed,
    held,
    insert_of,
    open_and_waiting_as,
    patch_of,
    ready,
    refusal_of,
    sleeping,
)

MESSAGES: dict[type[facts.Fact], str] = {
    facts.EventSent: "event:plan",
    facts.DeferredResolved: "deferred:approval",
    facts.ChildCompleted: "child:order-42/ship",
}


def waiting_for(wait: str, **suspend: Any):
    return after(active(), facts.Suspend, reason=wait, waits=(wait,), **suspend)


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_and_the_wake_up_are_one_commit(kind: type[facts.Fact]):
    before = waiting_for(MESSAGES[kind], wake_at=NOW + 99)
    changes = changes_of(before, kind, change_id="msg-1")
    assert changes.guards == (as_it_was(before),)
    assert additions_of(changes) == [Add(KEY, "inbox", 1)]
    assert patch_of(changes)["status"] is Status.READY
    assert patch_of(changes)["change_id"] == "msg-1"
    assert changes.rings == ("lane:shop:default",)
    woken = after(before, kind)
    assert (woken.status, woken.waits, woken.wake_at, woken.resumed) == (Status.READY, "", None, True)


@pytest.mark.parametrize("kind", MESSAGES)
def test_one_of_several_waits_is_enough(kind: type[facts.Fact]):
    before = after(active(), facts.Suspend, reason="event:plan", waits=tuple(MESSAGES.values()))
    assert after(before, kind).status is Status.READY


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_that_nobody_waits_for_is_kept(kind: type[facts.Fact]):
    for before in (
        sleeping(),
        waiting_for("event:something"),
        ready(),
        active(),
        delayed(),
        dependent(),
        backing_off(),
    ):
        changes = changes_of(before, kind)
        assert patch_of(changes) == {}
        assert additions_of(changes) == [Add(KEY, "inbox", 1)]
        assert changes.guards == (open_and_waiting_as(before),), (
            "neither the epoch nor the status: these are the holder's"
        )
        assert changes.rings == ("home",), "it may be claimed by now: its holder must hear of it"


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_held_execution_is_woken_into_its_hold(kind: type[facts.Fact]):
    before = held(waiting_for(MESSAGES[kind]))
    woken = after(before, kind)
    assert (woken.status, woken.reason, woken.waits) == (Status.BLOCKED, "operator", "")
    assert changes_of(before, kind).rings == ("home",)


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("name", ENDED_ONES)
def test_what_has_ended_takes_no_messages(kind: type[facts.Fact], name: str):
    assert refusal_of(ENDED_ONES[name](), kind).code is Code.TERMINAL


# ---- events -------------------------------------------------------------------------------------------------------


def test_every_send_without_a_key_is_its_own_event():
    changes = changes_of(active(), facts.EventSent, name="plan", value=b"gold", change_id="send-1")
    assert insert_of(changes, Event) == Event(
        namespace="shop",
        execution="order-42",
        name="plan",
        dedup="send-1",
        value=b"gold",
        sent_at=Now(),
        change_id="send-1",
    )


def test_a_key_makes_the_same_event_sent_again_the_same():
    first = insert_of(changes_of(active(), facts.EventSent, dedup="k", change_id="send-1"), Event)
    second = insert_of(changes_of(active(), facts.EventSent, dedup="k", change_id="send-2"), Event)
    assert first.key == second.key


def test_running_code_is_rung_at_home():
    assert changes_of(active(), facts.EventSent).rings == ("home",)


# ---- deferreds and children ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("resolution", Resolution)
def test_a_deferred_is_insert_only_so_that_the_first_resolution_wins(resolution: Resolution):
    changes = changes_of(active(), facts.DeferredResolved, resolution=resolution, change_id="r-1")
    assert insert_of(changes, Deferred) == Deferred(
        namespace="shop",
        execution="order-42",
        generation=1,
        name="approval",
        resolution=resolution,
        value=b"true",
        resolved_at=Now(),
        change_id="r-1",
    )


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_how_a_child_ended_is_kept_until_its_parent_asks(status: Status):
    """As an event, one for each of its generations that ended: it outlives the parent's own generations."""
    changes = changes_of(active(), facts.ChildCompleted, status=status, cause="why", generation=3, change_id="e-1")
    ended = insert_of(changes, Event)
    assert (ended.name, ended.dedup, ended.change_id) == ("outlast:ended:order-42/ship", "3", "e-1")
    assert ChildEnd.decode(ended.value or b"") == ChildEnd(status=status, cause="why", value=b"parcel")
    assert additions_of(changes) == [Add(KEY, "inbox", 1)]


def test_a_child_that_ended_is_not_open_any_more():
    [gone] = deletes_of(changes_of(active(), facts.ChildCompleted))
    assert gone == event_key("shop", "order-42", "outlast:child", "order-42/ship")


def test_the_answer_to_a_start_that_started_nothing_is_an_end_of_its_own():
    changes = changes_of(active(), facts.ChildCompleted, generation=0, change_id="s-1/answer")
    assert insert_of(changes, Event).dedup == "s-1/answer"


def test_a_deferred_belongs_to_the_journal_that_waits_for_it():
    retried = after(failed(), facts.Retry)
    restarted = after(failed(), facts.Start, if_exists="restart")
    assert insert_of(changes_of(retried, facts.DeferredResolved), Deferred).generation == 1
    assert insert_of(changes_of(restarted, facts.DeferredResolved), Deferred).generation == 2


def test_the_word_of_a_childs_end_is_understood_by_its_parent():
    """What `ended` puts into the outbox wakes a parent that waits for exactly that child."""
    parent = waiting_for("child:cart-1/pay")
    told = facts.ChildCompleted(change_id="x/parent", child="cart-1/pay", status=Status.FAILED, value=b"no")
    again = facts.decode_fact(facts.encode_fact(told))
    assert again == told
    assert after(parent, facts.ChildCompleted, child="cart-1/pay", status=Status.FAILED).status is Status.READY


# ---- updates --------------------------------------------------------------------------------------------------------


def test_an_update_wakes_what_listens_and_is_kept_by_what_does_not_sleep():
    listening = waiting_for(f"event:{UPDATE}")
    assert patch_of(changes_of(listening, facts.EventSent, name=UPDATE))["status"] is Status.READY
    for execution in (active(), ready(), delayed(), backing_off(), held(active())):
        assert insert_of(changes_of(execution, facts.EventSent, name=UPDATE), Event).name == UPDATE


def test_an_update_that_nobody_would_take_is_refused_and_nothing_is_written():
    refusal = refusal_of(waiting_for("event:plan"), facts.EventSent, name=UPDATE)
    assert refusal.code is Code.NOT_ALLOWED
    assert "takes no updates" in refusal.message
    assert refusal_of(failed(), facts.EventSent, name=UPDATE).code is Code.TERMINAL


def test_what_waits_for_its_version_keeps_an_update_for_later():
    changes = changes_of(waiting_for("version"), facts.EventSent, name=UPDATE)
    assert insert_of(changes, Event).consumed is False


def test_an_answer_takes_the_place_of_the_update_and_rings():
    before = active()
    changes = changes_of(before, facts.Answered, dedup="click-1", answer=b"done")
    asked = event_key(before.namespace, before.id, UPDATE, "click-1")
    assert changes.writes == (Patch(asked, {"consumed": True, "value": b"done"}),)
    assert changes.guards == (
        Matches(before.key, {"status": Status.ACTIVE, "epoch": before.epoch}),
        Matches(asked, {"name": UPDATE}),
    )
    assert changes.rings == (HOME,)
    assert refusal_of(before, facts.Answered, epoch=99).code is Code.NOT_HOLDER


def test_other_reserved_names_are_no_events():
    with pytest.raises(InvalidName, match="reserved"):
        facts.EventSent(change_id="1", name="outlast:cancel", value=b"")
