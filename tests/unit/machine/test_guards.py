"""Guards, judged by records that were read."""

from __future__ import annotations

import pytest

from outlast.machine import facts
from outlast.machine.changes import (
    Absent,
    Add,
    Changes,
    Delete,
    GoneOrPast,
    Guard,
    Insert,
    Matches,
    Patch,
    TimeAhead,
    TimeReached,
)
from outlast.machine.guards import (
    anchored_execution,
    applied_before,
    failed_guard,
    fields_read,
    holds,
    signed_keys,
)
from outlast.model.flow import flow_key
from outlast.model.record import Key
from outlast.model.session import Session, session_key
from tests.unit.machine.build import KEY, NOW, PARTITION, active, changes_of

SESSION = session_key(PARTITION, "worker")
MATCHES = Matches(KEY, {"status": "active", "epoch": 3})


@pytest.mark.parametrize(
    "guard, seen, expected",
    [
        (MATCHES, ("active", 3), True),
        (MATCHES, ("active", 4), False),
        (MATCHES, None, False),
        (Absent(KEY), None, True),
        (Absent(KEY), (), False),
        (TimeReached(KEY, "wake_at"), (NOW,), True),
        (TimeReached(KEY, "wake_at"), (NOW + 1,), False),
        (TimeReached(KEY, "wake_at"), (None,), False),
        (TimeReached(KEY, "wake_at"), None, False),
        (TimeAhead(SESSION, "expires_at"), (NOW + 1,), True),
        (TimeAhead(SESSION, "expires_at"), (NOW,), False),
        (TimeAhead(SESSION, "expires_at"), (None,), False),
        (TimeAhead(SESSION, "expires_at"), None, False),
        (GoneOrPast(SESSION, "expires_at"), (NOW,), True),
        (GoneOrPast(SESSION, "expires_at"), (None,), True),
        (GoneOrPast(SESSION, "expires_at"), None, True),
        (GoneOrPast(SESSION, "expires_at"), (NOW + 1,), False),
    ],
)
def test_a_guard_holds_by_the_fields_that_it_reads(guard: Guard, seen: tuple[object, ...] | None, expected: bool):
    assert holds(guard, seen, NOW) is expected
    assert seen is None or len(seen) == len(fields_read(guard))


def test_the_first_guard_that_fails_refuses_and_an_insert_is_guarded_by_its_key():
    execution = active()
    session = Session(partition=PARTITION, worker="worker", expires_at=NOW, started_at=0)
    records = {KEY: execution, SESSION: session}
    fence = Matches(KEY, {"epoch": execution.epoch})
    alive, lapsed = TimeAhead(SESSION, "expires_at"), GoneOrPast(SESSION, "expires_at")
    assert failed_guard([fence, alive, Absent(KEY)], [], records, NOW) is alive
    assert failed_guard([fence, lapsed], [Delete(KEY), Insert(session)], records, NOW) == Absent(SESSION)
    assert failed_guard([fence, lapsed], [Insert(session)], {KEY: execution, SESSION: None}, NOW) is None


def test_a_change_was_applied_before_if_a_record_that_it_leaves_bears_its_id():
    changes = changes_of(active(), facts.Complete, change_id="the end", epoch=1, output=b"1")
    completion = next(write.record for write in changes.writes if isinstance(write, Insert))
    assert [KEY, completion.key] == list(signed_keys(changes))[:2]
    assert applied_before(changes, {completion.key: completion})
    assert not applied_before(changes, {KEY: active()})
    others = Changes(id="c", partition=PARTITION, anchors=(KEY,), writes=(Patch(KEY, {"held": True}), Delete(SESSION)))
    assert list(signed_keys(others)) == []


def test_the_verdict_tells_the_inbox_of_the_first_execution_among_the_anchors():
    flow, other = flow_key("shop", "nightly"), Key("execution", ("shop", "another"))
    about = Changes(id="c", partition=PARTITION, anchors=(flow, KEY, other), writes=(Add(KEY, "inbox", 1),))
    assert anchored_execution(about) is KEY
    assert anchored_execution(Changes(id="c", partition=PARTITION, anchors=(flow,))) is None
