"""Priority: changed at any time, by anybody, without disturbing the holder."""

from __future__ import annotations

import pytest

from outlast.machine import facts
from outlast.machine.changes import Add, Code, Patch
from outlast.model import event
from outlast.model.event import Event
from tests.unit.machine.build import (
    ENDED_ONES,
    KEY,
    OPEN_ONES,
    additions_of,
    after,
    as_it_was,
    changes_of,
    insert_of,
    ready,
    refusal_of,
)


@pytest.mark.parametrize("name", OPEN_ONES)
def test_a_priority_changes_nothing_but_the_order(name: str):
    before = OPEN_ONES[name]()
    changes = changes_of(before, facts.ChangePriority, priority=7)
    assert changes.guards == (as_it_was(before),)
    assert [write for write in changes.writes if isinstance(write, Patch)] == [Patch(KEY, {"priority": 7})]
    assert (insert_of(changes, Event).name, insert_of(changes, Event).value) == (event.PRIORITY, b"7")
    assert additions_of(changes) == [Add(KEY, "inbox", 1)]
    assert changes.rings == ()
    changed = after(before, facts.ChangePriority, priority=7)
    assert (changed.status, changed.priority, changed.ready_at) == (before.status, 7, before.ready_at)


def test_the_priority_that_it_has_is_no_change():
    assert refusal_of(ready(priority=7), facts.ChangePriority, priority=7).code is Code.ALREADY


@pytest.mark.parametrize("name", ENDED_ONES)
def test_what_has_ended_has_no_order(name: str):
    assert refusal_of(ENDED_ONES[name](), facts.ChangePriority).code is Code.TERMINAL
