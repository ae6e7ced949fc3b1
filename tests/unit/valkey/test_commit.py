"""Batches as a script is told them: steps are told in short. What it means is for `test_valkey_entries.py`, and what a
step is for `tests/unit/machine/test_shapes.py`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from outlast.machine import facts
from outlast.machine.changes import Absent, Changes, Insert, Matches
from outlast.model.execution import Execution
from outlast.store.valkey.commit import Batch
from tests.unit.machine.build import active, after, changes_of

SOME = [structs.replace(active(), id=f"order-{number}", epoch=number) for number in range(1, 6)]


def step(execution: Execution, number: int = 1, value: bytes | None = b"1") -> Changes:
    return changes_of(
        execution, facts.StepRecorded, occurrence=number, entries=number, value=value, epoch=execution.epoch
    )


def told(batch: Sequence[Changes]) -> list[bytes]:
    arguments: list[bytes] = []
    made = Batch(3, arguments)
    for changes in batch:
        made.add(changes)
    return [made.packed(None), *arguments]


def begun(execution: Execution) -> Changes:
    return Changes(
        id="begins",
        partition=3,
        anchors=(execution.key,),
        guards=(Absent(execution.key),),
        writes=(Insert(execution),),
    )


BATCHES = {
    "steps of many": ([step(execution) for execution in SOME], 0),
    "without a value": ([step(SOME[0], value=None), step(SOME[1])], 0),
    "several of one": ([step(SOME[0], 1), step(SOME[1], 1), step(SOME[0], 2)], 0),
    "behind its beginning": ([begun(SOME[0]), step(SOME[0]), step(SOME[1])], 1),
    "before its end": ([step(SOME[0]), changes_of(SOME[0], facts.Complete, epoch=SOME[0].epoch), step(SOME[2])], 1),
    "without a shape": ([structs.replace(step(SOME[0]), shape=None), step(SOME[1])], 1),
}


@pytest.mark.parametrize("name", BATCHES)
def test_what_steps_are_is_told_in_short_and_nothing_else_is(name: str, monkeypatch: pytest.MonkeyPatch):
    batch, at_length = BATCHES[name]
    long_way = Batch._any
    gone: list[Changes] = []

    def goes(self: Batch, changes: Changes) -> None:
        gone.append(changes)
        long_way(self, changes)

    monkeypatch.setattr(Batch, "_any", goes)
    told(batch)
    assert len(gone) == at_length


def test_what_is_told_in_short_is_short():
    batch = [step(execution) for execution in SOME]
    [short, *values] = told(batch)
    [at_length, *same] = told([structs.replace(changes, shape=None) for changes in batch])
    assert values == same
    assert len(short) < len(at_length)


def test_the_steps_of_an_attempt_share_their_fence_and_those_of_the_next_have_another():
    first, second = step(SOME[0], 1), step(SOME[0], 2)
    assert first.guards == second.guards
    taken_over = step(structs.replace(SOME[0], epoch=9))
    assert taken_over.guards[0] == Matches(SOME[0].key, {"status": "active", "epoch": 9})
    assert told([taken_over]) != told([first])
    assert after(SOME[0], facts.StepRecorded, epoch=SOME[0].epoch) == SOME[0]
