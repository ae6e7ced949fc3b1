"""What may be added to decided changes, and what of it is refused as a bug."""

from __future__ import annotations

import pytest
from msgspec import structs

from outlast.errors import CorruptState
from outlast.machine import facts
from outlast.machine.amendments import acknowledging, together, with_guards
from outlast.machine.changes import Changes, Delete, Matches
from outlast.model.outbox import Delivery
from outlast.model.record import Now
from tests.unit.machine.build import PARTITION, active, changes_of, ready

DEBT = Delivery(
    partition=PARTITION,
    id="debt",
    namespace="shop",
    target="order-42",
    source="cart-1",
    fact=b"",
    due_at=Now(),
    created_at=Now(),
    change_id="made",
)


def completed(execution_id: str) -> Changes:
    return changes_of(active(id=execution_id), facts.Complete)


def test_two_changes_become_one_that_is_both():
    first, other = completed("a"), completed("b")
    both = together(first, [other])
    assert both.id == first.id
    assert both.anchors == (*first.anchors, *other.anchors)
    assert both.guards == (*first.guards, *other.guards)
    assert both.writes == (*first.writes, *other.writes)
    assert both.rings == first.rings, "a channel is rung once"


def test_two_parts_that_patch_one_record_are_a_bug_that_stops():
    with pytest.raises(CorruptState, match="two parts of change 'a-Complete' patch execution"):
        together(completed("a"), [changes_of(ready(id="a"), facts.Claim)])


def test_parts_of_two_partitions_are_a_bug_that_stops():
    with pytest.raises(CorruptState, match="is of partition 3, not of 4"):
        together(completed("a"), [structs.replace(completed("b"), partition=4)])


def test_a_debt_is_struck_off_with_what_settles_it():
    changes = completed("a")
    settled = acknowledging(changes, DEBT)
    still_owed = Matches(DEBT.key, {"change_id": "made"})
    assert settled.guards == (still_owed, *changes.guards), "asked first"
    assert settled.writes == (*changes.writes, Delete(DEBT.key))
    assert settled.anchors == (*changes.anchors, DEBT.key)


def test_a_debt_of_another_partition_is_struck_off_apart():
    changes = completed("a")
    assert acknowledging(changes, structs.replace(DEBT, partition=4)) is changes


def test_only_debts_are_struck_off():
    class NoDebt:
        partition, key, change_id = PARTITION, active().key, ""

    with pytest.raises(CorruptState, match="is no debt"):
        acknowledging(completed("a"), NoDebt())


def test_a_guard_may_be_added_to_any_change():
    changes, guard = completed("a"), Matches(DEBT.key, {"tries": 0})
    amended = with_guards(changes, [guard])
    assert amended == structs.replace(changes, guards=(guard, *changes.guards), shape=None), "asked first"
