"""Each shape is sent to PostgreSQL the short way: what a fence expects as columns, rows that are alike as one group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec import structs

from outlast.machine import facts
from outlast.machine.changes import Changes, Shape, View
from outlast.machine.decide import decide
from outlast.store.postgres.commit import Call
from tests.unit.machine.build import NOW, PARTITION, active, changes_of, say

SIZES = (2, 12)


def some(shape: Shape, size: int) -> Iterator[Changes]:
    for name in [f"order-{n}" for n in range(size)]:
        if shape is Shape.START:
            changes = changes_of(None, facts.Start, id=name, change_id=name)
        else:
            held = structs.replace(active(), id=name)
            kind = facts.StepRecorded if shape is Shape.STEP else facts.Complete
            changes = decide(View(PARTITION, held), say(kind, held, epoch=held.epoch, change_id=name), NOW)
        assert isinstance(changes, Changes)
        assert changes.shape is shape
        yield changes


@pytest.mark.parametrize("shape", Shape)
def test_changes_of_one_shape_share_their_groups_and_need_no_documents(shape: Shape):
    few, many = (Call(enumerate(some(shape, size))).document() for size in SIZES)
    assert few["slots"] == many["slots"]
    for size, call in zip(SIZES, (few, many), strict=True):
        assert len(call["anchors"]) == size
        assert not any("more" in anchor for anchor in call["anchors"]), "compared with a document of the row"
    assert [len(groups) for groups in many["docs"]] == [len(groups) for groups in few["docs"]]


@pytest.mark.parametrize("shape", Shape)
def test_the_short_way_sends_what_the_long_one_does(shape: Shape):
    batch = list(some(shape, 12))
    batch.append(batch[0])
    short = Call(enumerate(batch))
    long = Call(enumerate(structs.replace(changes, shape=None) for changes in batch))
    assert short.document() == long.document()
    assert short.crossed
    assert long.crossed
