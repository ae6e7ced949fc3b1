"""Children and words to others: all that an operation does to other executions is in the commit of its entry."""

from __future__ import annotations

import pytest

from outlast import limits
from outlast.errors import InvalidName, LimitExceeded
from outlast.machine import facts
from outlast.machine.changes import Add, Code, Insert, Matches, Patch
from outlast.model.deferred import Deferred
from outlast.model.event import Event
from outlast.model.execution import Execution, ParentClose, execution_key
from outlast.model.journal import JournalEntry
from outlast.model.outbox import Delivery
from outlast.model.payload import Payload
from outlast.model.record import Now
from outlast.model.status import Status
from outlast.model.tag import Tag
from tests.unit.machine.build import (
    ENDED_ONES,
    KEY,
    OPEN_ONES,
    active,
    additions_of,
    after,
    changes_of,
    deletes_of,
    failed,
    fence,
    fence_and_inbox,
    held,
    insert_of,
    inserts_of,
    open_and_waiting_as,
    parental,
    patch_of,
    ready,
    refusal_of,
    say,
    suspended,
    undoable,
)

CHILD = say(facts.Start, id="order-42/ship", parent="order-42", change_id="s-1", workflow="ship", tags={"tier": "gold"})


# ---- starting -----------------------------------------------------------------------------------------------------


def test_a_child_starts_in_the_commit_of_the_entry_that_says_so():
    before = active()
    changes = changes_of(
        before, facts.StepRecorded, starts=CHILD, adopts=("order-42/ship", ParentClose.WAIT), change_id="r-1"
    )
    assert changes.guards == (fence(before),)
    assert changes.anchors == (KEY, execution_key("shop", "order-42/ship"))
    assert changes.rings == ("lane:shop:default",)
    child = insert_of(changes, Execution)
    assert (child.id, child.parent, child.status, child.change_id) == ("order-42/ship", "order-42", "ready", "s-1")
    assert insert_of(changes, Payload).execution == "order-42/ship"
    assert insert_of(changes, JournalEntry).execution == "order-42"
    adopted = insert_of(changes, Event)
    assert (adopted.execution, adopted.name, adopted.dedup) == ("order-42", "outlast:child", "order-42/ship")
    assert (adopted.value, adopted.sent_at, adopted.change_id) == (b"wait", Now(), "r-1")
    assert patch_of(changes) == {"has_children": True}
    assert any(type(write).__name__ == "Put" and isinstance(write.record, Tag) for write in changes.writes)  # type: ignore[union-attr]


def test_a_child_that_nobody_adopts_leaves_no_mark():
    changes = changes_of(active(), facts.StepRecorded, starts=CHILD)
    assert patch_of(changes) == {}
    assert inserts_of(changes, Event) == []


def test_a_delayed_child_rings_for_nobody():
    later = say(facts.Start, id="order-42/ship", parent="order-42", delay_ms=5)
    assert changes_of(active(), facts.StepRecorded, starts=later).rings == ()


def test_the_first_child_marks_its_parent_and_the_next_ones_need_not():
    assert parental().has_children
    again = changes_of(parental(), facts.StepRecorded, name="pack", adopts=("order-42/pack", ParentClose.CANCEL))
    assert patch_of(again) == {}
    both = changes_of(active(), facts.StepRecorded, unwinds=True, adopts=("order-42/pack", ParentClose.CANCEL))
    assert patch_of(both) == {"unwinds": True, "has_children": True}


def test_words_to_others_are_owed_in_the_same_commit():
    told = say(facts.EventSent, change_id="3>t-1")
    tell = facts.Tell("3>t-1", "cart-7", facts.encode_fact(told))
    delivery = insert_of(changes_of(active(), facts.StepRecorded, tells=(tell,), change_id="r-1"), Delivery)
    assert (delivery.partition, delivery.id, delivery.namespace) == (3, "3>t-1", "shop")
    assert (delivery.target, delivery.source, delivery.change_id) == ("cart-7", "order-42", "r-1")
    assert (delivery.due_at, facts.decode_debt(delivery.fact)) == (Now(), told)


@pytest.mark.parametrize(
    "errand", [facts.CloseChildren(change_id="x", reason="failed"), facts.Forget(change_id="y", before=3)]
)
def test_errands_come_out_of_the_outbox_as_they_went_in(errand: facts.Errand):
    assert facts.decode_debt(facts.encode_fact(errand)) == errand


# ---- continue as new ----------------------------------------------------------------------------------------------


def test_a_new_generation_begins_with_its_input_and_an_empty_journal():
    before = parental(timeout_ms=9, deadline_ms=500, quota="stripe")
    changes = changes_of(before, facts.Continue, change_id="c-1")
    assert changes.guards == (fence_and_inbox(before),)
    new = after(before, facts.Continue)
    assert (new.status, new.generation, new.journal_generation, new.resumed) == (Status.READY, 2, 2, True)
    assert (new.attempt, new.failures, new.crashes, new.ran_ms, new.unwinds) == (1, 0, 0, 0, False)
    # What belongs to the whole: its identity, its deadline, its children.
    assert (new.input_digest, new.deadline_at, new.has_children) == (before.input_digest, before.deadline_at, True)
    begun = insert_of(changes, Payload)
    assert (begun.generation, begun.role, begun.value) == (2, "input", b"[43]")
    assert patch_of(changes, "attempt")["outcome"] == "succeeded"
    assert [add.field for add in additions_of(changes)] == ["free"]
    assert changes.rings == ("lane:shop:default",)


def test_what_the_old_generation_leaves_behind_is_dropped_later():
    delivery = insert_of(changes_of(active(), facts.Continue, change_id="c-1"), Delivery)
    assert (delivery.target, delivery.id) == ("order-42", "c-1/forget")
    assert facts.decode_debt(delivery.fact) == facts.Forget(change_id="c-1/forget", before=2)


def test_a_generation_after_a_retry_is_the_next_one():
    retried = after(after(failed(), facts.Retry), facts.Claim)
    new = after(retried, facts.Continue)
    assert (new.generation, new.journal_generation) == (3, 3)


def test_an_interrupt_is_there_for_the_next_generation():
    changes = changes_of(active(), facts.Continue, change_id="c-1", inbox=0, interrupt=b"null")
    sent = insert_of(changes, Deferred)
    assert (sent.generation, sent.name, sent.resolution, sent.value) == (2, "outlast:interrupt", "resolved", b"null")
    assert not inserts_of(changes_of(active(), facts.Continue, inbox=0), Deferred)


def test_what_came_from_outside_since_it_looked_may_be_an_interrupt():
    told = after(active(), facts.EventSent)
    assert refusal_of(told, facts.Continue, inbox=told.inbox - 1).code is Code.NOT_ALLOWED
    assert changes_of(told, facts.Continue, inbox=told.inbox).guards == (fence_and_inbox(told),)


def test_a_held_one_goes_on_when_it_is_released():
    assert after(held(active()), facts.Continue).status is Status.BLOCKED


def test_a_cancel_that_came_meanwhile_ends_it():
    ended = after(after(active(), facts.CancelRequested), facts.Continue)
    assert (ended.status, ended.cause, ended.generation) == (Status.CANCELLED, "cancelled", 1)


def test_what_was_registered_to_undo_is_done_with_and_the_next_generation_begins_with_the_cancel():
    """Like a completion, it beats a cancel that its code has not observed."""
    new = after(after(undoable(), facts.CancelRequested), facts.Continue)
    assert (new.status, new.cancel_requested, new.unwinds, new.generation) == (Status.READY, True, False, 2)


def test_what_is_expiring_expires_instead_of_going_on_without_its_deadline():
    told = after(undoable(deadline_ms=60_000), facts.DeadlinePassed)
    assert changes_of(told, facts.Continue).guards == (fence_and_inbox(told),)
    ended = after(told, facts.Continue)
    assert (ended.status, ended.cause, ended.generation) == (Status.EXPIRED, "deadline", 1)


def test_an_end_by_a_cancel_leaves_no_child_behind():
    told = after(active(), facts.CancelRequested)
    [guard] = changes_of(told, facts.Cancelled).guards
    assert isinstance(guard, Matches)
    assert guard.fields["has_children"] is False


def test_an_input_past_the_limit_is_refused():
    with pytest.raises(LimitExceeded):
        say(facts.Continue, active(), input=b"x" * (limits.PAYLOAD_MAX_BYTES + 1))


# ---- starting with an event ---------------------------------------------------------------------------------------

SENDS = (facts.Sent("item", b"shoe"), facts.Sent("plan", b"gold"))


def test_a_start_with_events_is_one_commit():
    changes = changes_of(None, facts.Start, sends=SENDS, change_id="s-1")
    events = inserts_of(changes, Event)
    assert [(event.name, event.dedup, event.value) for event in events] == [
        ("item", "s-1", b"shoe"),
        ("plan", "s-1", b"gold"),
    ]
    assert insert_of(changes, Execution).inbox == 2


@pytest.mark.parametrize("name", [name for name in OPEN_ONES if name != "suspended"])
def test_what_was_started_before_only_hears_of_them(name: str):
    before = OPEN_ONES[name]()
    changes = changes_of(before, facts.Start, sends=SENDS, change_id="s-2")
    assert changes.guards == (open_and_waiting_as(before),)
    assert changes.rings == ("home",)
    assert inserts_of(changes, Execution) == []
    assert [event.dedup for event in inserts_of(changes, Event)] == ["s-2", "s-2"]
    assert additions_of(changes) == [Add(KEY, "inbox", 2)]
    assert after(before, facts.Start, sends=SENDS).status is before.status


def test_one_that_waits_for_such_an_event_is_woken():
    assert after(suspended(), facts.Start, sends=SENDS).status is Status.READY
    assert after(held(suspended()), facts.Start, sends=SENDS).status is Status.BLOCKED
    other = changes_of(suspended(), facts.Start, sends=(facts.Sent("other", b""),))
    assert [write for write in other.writes if isinstance(write, Patch)] == []
    assert other.rings == ("home",)


@pytest.mark.parametrize("name", ENDED_ONES)
def test_what_has_ended_hears_nothing_unless_it_is_restarted(name: str):
    ended = ENDED_ONES[name]()
    assert refusal_of(ended, facts.Start, sends=SENDS).code is Code.TERMINAL
    again = changes_of(ended, facts.Start, sends=SENDS, if_exists="restart")
    assert [event.name for event in inserts_of(again, Event)] == ["outlast:restart", "item", "plan"]
    assert after(ended, facts.Start, sends=SENDS, if_exists="restart").inbox == ended.inbox + 3


def test_other_arguments_and_if_exists_are_minded_with_events_too():
    assert refusal_of(ready(), facts.Start, sends=SENDS, input_digest="other").code is Code.CONFLICT
    assert refusal_of(ready(), facts.Start, sends=SENDS, if_exists="error").code is Code.CONFLICT


def test_events_of_a_start_are_checked():
    with pytest.raises(InvalidName):
        facts.Sent("outlast:mine", b"")
    with pytest.raises(LimitExceeded):
        facts.Sent("item", b"x" * (limits.PAYLOAD_MAX_BYTES + 1))
    with pytest.raises(LimitExceeded):
        say(facts.Start, sends=tuple(facts.Sent(f"e{n}", b"") for n in range(limits.SENDS_MAX + 1)))


def test_the_end_of_a_child_removes_nothing_else():
    assert len(deletes_of(changes_of(parental(), facts.ChildCompleted))) == 1
    assert isinstance(changes_of(parental(), facts.ChildCompleted).writes[0], Insert)
