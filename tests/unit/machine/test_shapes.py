"""Shapes: the machine declares them where they are true, and nothing else passes for one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from outlast.machine import facts
from outlast.machine.amendments import together
from outlast.machine.changes import (
    Absent,
    Add,
    Changes,
    Delete,
    Insert,
    Matches,
    Patch,
    Put,
    Shape,
)
from outlast.machine.guards_and_writes import as_seen, held_and_heard, held_by, held_to_the_end, nothing_to_undo
from outlast.machine.shapes import END_FIELDS, GUARDED_FIELDS, HOLDER_FIELDS, fits
from outlast.model.execution import execution_key
from outlast.model.lane import Lane
from outlast.model.record import Key
from outlast.model.session import session_key
from tests.unit.machine.build import KEY, PARTITION, active, changes_of

OTHER = execution_key("shop", "another")
SESSION = session_key(PARTITION, "worker-1")
PAUSED = Lane(partition=PARTITION, namespace="shop", lane="default", paused=True)

STEP = changes_of(active(), facts.StepRecorded, epoch=active().epoch)
START = changes_of(None, facts.Start, tags={"customer": "ann"}, sends=(facts.Sent("go", b"1"),))
CLAIMED = changes_of(None, facts.Start, worker="worker-1")
END = changes_of(active(), facts.Complete, epoch=active().epoch, output=b"1")
OF_A_CHILD = changes_of(
    structs.replace(active(), parent="order", has_children=True), facts.Complete, epoch=active().epoch, output=b"1"
)


@pytest.mark.parametrize(
    "changes, shape",
    [(STEP, Shape.STEP), (START, Shape.START), (CLAIMED, Shape.START), (END, Shape.END), (OF_A_CHILD, Shape.END)],
)
def test_the_machine_declares_the_shape_of_what_it_builds(changes: Changes, shape: Shape):
    assert changes.shape is shape
    assert fits(changes)
    assert together(changes, [STEP]).shape is None
    assert fits(together(changes, [STEP]))


@pytest.mark.parametrize(
    "fact, options",
    [(facts.StepRecorded, {"consumes": ("go", "1")}), (facts.Suspend, {}), (facts.Progressed, {}), (facts.Fail, {})],
)
def test_what_is_more_than_a_step_declares_no_shape(fact: Any, options: dict[str, Any]):
    changes = changes_of(active(), fact, epoch=active().epoch, **options)
    assert changes.shape is None
    assert fits(changes)


FENCE = STEP.guards[0]
[ENTRY] = STEP.writes
STRANGER = Matches(OTHER, {"status": "active", "epoch": 1})


@pytest.mark.parametrize(
    "lie",
    [
        {"anchors": (KEY, OTHER)},
        {"anchors": (OTHER,)},
        {"guards": ()},
        {"guards": (FENCE, Absent(SESSION))},
        {"guards": (Absent(KEY),)},
        {"guards": (STRANGER,)},
        {"guards": (as_seen(active()),)},
        {"guards": (Matches(KEY, {"epoch": 1, "status": "active"}),)},
        {"writes": ()},
        {"writes": (ENTRY, Patch(KEY, {"held": True}))},
        {"writes": (Delete(KEY),)},
        {"writes": (END.writes[1],)},
        {"anchors": (OTHER,), "guards": (STRANGER,)},
        {"rings": ("home",)},
    ],
)
def test_what_is_not_one_entry_under_the_fence_of_its_holder_is_no_step(lie: dict[str, Any]):
    assert not fits(structs.replace(STEP, **lie))


@pytest.mark.parametrize(
    "lie",
    [
        {"anchors": (KEY, OTHER)},
        {"anchors": (OTHER,)},
        {"guards": (held_by(active()),)},
        {"writes": START.writes[1:]},
        {"writes": (Delete(KEY), *START.writes)},
        {"writes": (*START.writes, START.writes[0])},
        {"writes": (*START.writes, Insert(PAUSED))},
        {"writes": (*START.writes, Put(PAUSED))},
        {"writes": (*START.writes, Delete(SESSION))},
        {"writes": (*START.writes, Add(KEY, "inbox", 1))},
    ],
)
def test_what_is_not_a_new_execution_with_what_belongs_to_it_is_no_start(lie: dict[str, Any]):
    assert not fits(structs.replace(START, **lie))


PATCH = END.writes[0]
assert isinstance(PATCH, Patch)


@pytest.mark.parametrize(
    "lie",
    [
        {"anchors": (KEY, OTHER)},
        {"anchors": (OTHER,)},
        {"guards": ()},
        {"guards": (Absent(KEY),)},
        {"guards": (held_by(active()),)},
        {"guards": (Matches(OTHER, {"status": "active", "epoch": 1, "has_children": False}),)},
        {"writes": END.writes[1:]},
        {"writes": (Patch(OTHER, PATCH.fields), *END.writes[1:])},
        {"writes": (Patch(KEY, {**PATCH.fields, "status": "ready"}), *END.writes[1:])},
        {"writes": (*END.writes, PATCH)},
        {"writes": (*END.writes, Patch(Key("attempt", ("shop", "another", 1, 1)), {"outcome": "failed"}))},
        {"writes": (*END.writes, Insert(PAUSED))},
        {"writes": (*END.writes, Insert(active()))},
        {"writes": (*END.writes, Delete(SESSION))},
    ],
)
def test_what_is_not_an_end_by_its_holder_with_what_belongs_to_it_is_no_end(lie: dict[str, Any]):
    assert not fits(structs.replace(END, **lie))


def test_the_fences_compare_the_fields_that_stores_are_told():
    execution = active()
    assert (*held_by(execution).fields,) == HOLDER_FIELDS
    assert (*held_to_the_end(execution).fields,) == END_FIELDS
    for guard in (
        as_seen(execution),
        held_and_heard(execution, 0),
        held_to_the_end(execution),
        nothing_to_undo(execution),
    ):
        assert set(guard.fields) <= set(GUARDED_FIELDS)
    assert all(value is not None for value in as_seen(execution).fields.values())
