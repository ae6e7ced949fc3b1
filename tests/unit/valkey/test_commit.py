"""Batches as a script is told them: what steps are told in short is what it would be at length."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from outlast.machine import facts
from outlast.machine.changes import Absent, Changes, Insert, Matches, Put
from outlast.model.execution import Execution, execution_key
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


def told_at_length(batch: Sequence[Changes], monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    with monkeypatch.context() as patched:
        patched.setattr(Batch, "_entry", lambda *_: False)
        return told(batch)


def begun(execution: Execution) -> Changes:
    return Changes(
        id="begins",
        partition=3,
        anchors=(execution.key,),
        guards=(Absent(execution.key),),
        writes=(Insert(execution),),
    )


BATCHES = {
    "steps of many": [step(execution) for execution in SOME],
    "without a value": [step(SOME[0], value=None), step(SOME[1])],
    "several of one": [step(SOME[0], 1), step(SOME[1], 1), step(SOME[0], 2)],
    "behind its beginning": [begun(SOME[0]), step(SOME[0]), step(SOME[1])],
    "before its end": [step(SOME[0]), changes_of(SOME[1], facts.Complete, epoch=SOME[1].epoch), step(SOME[2])],
    "of another's record": [
        structs.replace(step(SOME[0]), writes=step(SOME[1]).writes),
        step(SOME[1]),
    ],
    "of the execution itself": [structs.replace(step(SOME[0]), writes=(Insert(SOME[0]),)), step(SOME[1])],
    "anchored elsewhere": [structs.replace(step(SOME[0]), anchors=(execution_key("shop", "order-9"),))],
    "without an anchor": [structs.replace(step(SOME[0]), anchors=())],
    "put": [structs.replace(step(SOME[0]), writes=tuple(Put(write.record) for write in step(SOME[0]).writes))],  # type: ignore[union-attr]
    "that rings": [structs.replace(step(SOME[0]), rings=("home",)), step(SOME[1])],
    "compared with bytes": [
        structs.replace(step(SOME[0]), guards=(Matches(SOME[0].key, {"epoch": b"1"}),)),
        structs.replace(step(SOME[1]), guards=(Matches(SOME[1].key, {"worker": None, "held": False}),)),
    ],
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_step_is_told_in_short_as_at_length(name: str, monkeypatch: pytest.MonkeyPatch):
    assert told(BATCHES[name]) == told_at_length(BATCHES[name], monkeypatch)


def test_steps_are_told_in_short(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Batch, "_any", None)
    assert len(told([step(execution) for execution in SOME])) == 1 + len(SOME)


def test_the_steps_of_an_attempt_share_their_fence_and_those_of_the_next_have_another():
    first, second = step(SOME[0], 1), step(SOME[0], 2)
    assert first.guards[0] is second.guards[0]
    taken_over = step(structs.replace(SOME[0], epoch=9))
    assert taken_over.guards[0] == Matches(SOME[0].key, {"status": "active", "epoch": 9})
    assert told([taken_over]) != told([first])
    assert after(SOME[0], facts.StepRecorded, epoch=SOME[0].epoch) == SOME[0]
