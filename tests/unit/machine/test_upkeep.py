"""Changes that move no status, each guarded by what it was decided upon."""

from __future__ import annotations

import pytest
from msgspec import structs

from outlast.errors import CorruptState
from outlast.machine import upkeep
from outlast.machine.changes import Delete, GoneOrPast, Insert, Matches, Patch, Put
from outlast.model.event import UNDELIVERED, UPDATE, Event
from outlast.model.payload import Payload, Role
from outlast.model.record import Now, settled
from outlast.model.session import Session, session_key
from outlast.model.status import Status
from tests.unit.machine.build import PARTITION, active, ready, succeeded
from tests.unit.machine.test_amendments import DEBT

SESSION = Session(partition=PARTITION, worker="w", expires_at=9, started_at=1)
NOTE = Payload(namespace="shop", execution="order-42", generation=1, role=Role.PROGRESS, value=b"", change_id="n")


def test_a_session_is_said_ends_and_goes_when_it_lapsed():
    key = session_key(PARTITION, "w")
    assert upkeep.session_offers(SESSION, "x").writes == (Put(SESSION),)
    assert upkeep.session_ended(PARTITION, "w", "x").writes == (Delete(key),)
    lapsed = upkeep.session_lapsed(SESSION, "x")
    assert (lapsed.guards, lapsed.writes) == ((GoneOrPast(key, "expires_at"),), (Delete(key),))


def test_a_debt_is_put_off_once_for_each_try():
    later = upkeep.debt_postponed(structs.replace(DEBT, tries=2), "x", error="e" * 2_000, delay_ms=7)
    assert later.guards == (Matches(DEBT.key, {"tries": 2}),)
    assert later.writes == (Patch(DEBT.key, {"due_at": Now(7), "tries": 3, "error": "e" * 1_000}),)


def test_a_debt_that_is_refused_leaves_a_note_with_its_sender():
    refused = upkeep.debt_refused(DEBT, b"why")
    note, struck = refused.writes
    assert isinstance(note, Insert)
    assert isinstance(note.record, Event)
    assert (note.record.execution, note.record.name, note.record.value) == ("cart-1", UNDELIVERED, b"why")
    assert struck == Delete(DEBT.key)
    assert {guard.key.kind for guard in refused.guards} == {"execution", "outbox"}
    assert upkeep.debt_struck(DEBT, "x").writes == (Delete(DEBT.key),)


def test_what_goes_is_of_the_life_that_was_seen():
    seen = succeeded()
    dropped = upkeep.gone(PARTITION, seen.key, upkeep.not_purged(seen), [NOTE.key], "x")
    assert dropped.guards == (Matches(seen.key, {"created_at": settled(seen.created_at)}),)
    assert dropped.writes == (Delete(NOTE.key),)
    same = upkeep.same_life(seen)
    assert same == Matches(seen.key, {"generation": 1, "created_at": settled(seen.created_at)})
    member = upkeep.purged_from_now(PARTITION, seen, same, "x")
    assert member.guards == (Matches(seen.key, {"status": Status.SUCCEEDED, "generation": 1}), same)


def test_an_update_is_withdrawn_unless_somebody_took_it():
    asked = Event(namespace="shop", execution="order-42", name=UPDATE, dedup="1", value=None, sent_at=1, change_id="e")
    withdrawn = upkeep.update_withdrawn(PARTITION, asked, "x")
    assert (withdrawn.guards, withdrawn.writes) == ((Matches(asked.key, {"consumed": False}),), (Delete(asked.key),))


def test_a_repair_holds_only_for_what_was_seen():
    seen = active()
    fixed = upkeep.repaired(PARTITION, seen, [Put(NOTE)], "x")
    assert fixed.guards == (Matches(seen.key, {"change_id": seen.change_id, "epoch": seen.epoch}),)


def test_a_copy_is_as_it_was_and_a_broken_execution_is_not_copied():
    here, broken = ready(), structs.replace(ready(), wake_at=5)
    assert upkeep.copied(PARTITION, here.key, [here, NOTE], "x").writes == (Insert(here), Insert(NOTE))
    with pytest.raises(CorruptState):
        upkeep.copied(PARTITION, here.key, [broken], "x")
    last = upkeep.copy_finished(PARTITION, here, "copier", "x")
    [write] = last.writes
    assert isinstance(write, Patch)
    assert (write.fields["status"], last.guards) == (Status.READY, (Matches(here.key, {"worker": "copier"}),))
    for note in (Put(NOTE), Delete(NOTE.key)):
        assert upkeep.copy_noted(PARTITION, note, "x").anchors == (NOTE.key,)


def test_upkeep_that_would_move_a_status_is_a_bug_that_stops():
    seen = active()
    with pytest.raises(CorruptState, match="upkeep would change the status"):
        upkeep.repaired(PARTITION, seen, [Patch(seen.key, {"status": Status.READY})], "x")
