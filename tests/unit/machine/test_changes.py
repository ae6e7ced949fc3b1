"""What the machine answers, and what comes of it when it is committed."""

from __future__ import annotations

from importlib import import_module

import pytest
from msgspec import structs

from outlast.errors import CorruptState
from outlast.machine import facts
from outlast.machine.changes import (
    ENDS,
    HOME,
    Add,
    Changes,
    Code,
    Delete,
    Insert,
    Patch,
    Put,
    View,
    channel_of,
    ends_channel,
    execution_after,
    inserted,
    is_end,
    is_lane_channel,
    lane_channel,
    partition_channel,
    patched,
    size_of,
    started_by,
)
from outlast.machine.decide import decide
from outlast.model.execution import Execution
from outlast.model.flow import summary_key
from outlast.model.kinds import KINDS
from outlast.model.lane import Lane
from outlast.model.record import Key, Now
from outlast.model.session import Session
from outlast.model.status import Status
from tests.unit.machine.build import KEY, NOW, PARTITION, active, changes_of, ready, refusal_of, say, succeeded

# The package gives the function the name of its module.
door = import_module("outlast.machine.decide")


def of(*writes: Insert | Patch | Put | Delete | Add) -> Changes:
    return Changes(id="c", partition=PARTITION, anchors=(KEY,), writes=writes)


def test_the_size_of_changes_is_that_of_the_values_in_them():
    begun = changes_of(None, facts.Start, input=b"x" * 1_000)
    [made] = started_by(begun)
    assert made.id == "order-42"
    assert size_of(begun) == 1_000
    assert started_by(of(Put(make_session()), Patch(KEY, {"wake_at": 1}))) == []
    sent = changes_of(None, facts.Start, input=b"x" * 1_000, sends=(facts.Sent("go", b"12345"),))
    assert size_of(sent) == 1_005
    event = Key("event", ("shop", "order-42", "go", "1"))
    assert size_of(of(Put(make_session()), Patch(event, {"value": b"12345", "consumed": True}), Delete(KEY))) == 5


def test_a_kind_has_one_field_for_values_of_the_users_at_most():
    for kind in KINDS.values():
        values = [field.name for field in structs.fields(kind) if field.type in (bytes, bytes | None)]
        assert len(values) <= 1, kind.KIND


def make_session() -> Session:
    return Session(partition=0, worker="w", expires_at=Now(10), started_at=7)


def test_relative_times_are_counted_from_the_commit():
    session = Session(partition=0, worker="w", expires_at=Now(10), started_at=7)
    assert inserted(session, 100) == Session(partition=0, worker="w", expires_at=110, started_at=7)
    assert patched(session, {"expires_at": Now(-5)}, 100) == Session(
        partition=0, worker="w", expires_at=95, started_at=7
    )


def test_an_inserted_execution_has_only_absolute_times():
    execution = ready(delay_ms=500, deadline_ms=900)
    times = {name: getattr(execution, name) for name in Execution.TIMES}
    assert {name: time for name, time in times.items() if time is not None} == {
        "created_at": NOW,
        "wake_at": NOW + 500,
        "deadline_at": NOW + 900,
    }


def test_patches_and_additions_of_the_execution_are_seen_in_their_order():
    before = ready()
    changed = execution_after(
        View(PARTITION, before), of(Patch(KEY, {"priority": 5}), Add(KEY, "priority", 2), Add(KEY, "inbox", 1)), NOW
    )
    assert changed is not None
    assert (changed.priority, changed.inbox) == (7, 1)
    assert before.priority == 0, "what was read is never changed in place"


def test_writes_of_other_records_leave_the_execution_as_it_is():
    before = ready()
    lane = Lane(partition=0, namespace="shop", lane="default", paused=True)
    writes = (Put(lane), Insert(lane), Delete(KEY), Add(summary_key("shop", "q"), "checks", 1), Patch(lane.key, {}))
    assert execution_after(View(PARTITION, before), of(*writes), NOW) == before


def test_nothing_comes_of_patching_nothing():
    nobody = View(PARTITION, None)
    assert execution_after(nobody, of(Patch(KEY, {"priority": 5}), Add(KEY, "inbox", 1)), NOW) is None


def test_channels_are_named_by_what_they_announce():
    assert lane_channel("shop", "gpu") == "lane:shop:gpu"
    assert partition_channel(3) == "partition:3"
    assert ends_channel(3) == "ends:3"
    assert [channel_of(ring, 3) for ring in (HOME, ENDS, "lane:shop:gpu")] == ["partition:3", "ends:3", "lane:shop:gpu"]
    assert is_lane_channel(lane_channel("shop", "gpu"))
    assert not is_lane_channel(partition_channel(3))
    assert not is_lane_channel(ends_channel(3))


# ---- the door -----------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_unknown():
    refusal = refusal_of(None, facts.Hold)
    assert (refusal.code, refusal.message) == (Code.UNKNOWN, "there is no such execution")


def test_a_refusal_tells_an_old_holder_who_is_newer():
    refusal = refusal_of(active(), facts.Complete, epoch=0)
    assert refusal.message == "is active at epoch 1, not held at epoch 0"


def test_a_refusal_says_what_does_not_apply_to_what():
    assert refusal_of(active(), facts.Claim).message == "is active, which Claim does not apply to"
    assert refusal_of(succeeded(), facts.Claim).message == "has ended: it is succeeded"


def test_the_same_question_gets_the_same_answer():
    view = View(PARTITION, active())
    assert decide(view, say(facts.Fail, view.execution), NOW) == decide(view, say(facts.Fail, view.execution), NOW)


def test_a_broken_execution_is_not_written_on():
    broken = patched(active(), {"failures": 7}, NOW)
    assert isinstance(broken, Execution)
    with pytest.raises(CorruptState, match="attempts are failures and crashes"):
        decide(View(PARTITION, broken), say(facts.Suspend, broken), NOW)


def test_an_answer_that_the_table_does_not_know_is_a_bug_that_stops(monkeypatch: pytest.MonkeyPatch):
    view = View(PARTITION, ready())
    monkeypatch.setattr(door, "allowed", lambda fact, status: frozenset({Status.FAILED}))
    with pytest.raises(CorruptState, match="Claim would turn ready into active"):
        decide(view, say(facts.Claim), NOW)


def test_a_start_never_gets_behind_the_door():
    with pytest.raises(AssertionError, match="decided before"):
        door._decide(View(PARTITION, ready()), ready(), say(facts.Start), NOW)


def test_an_end_is_told_from_what_goes_on():
    assert is_end(changes_of(active(), facts.Complete))
    assert is_end(changes_of(ready(), facts.CancelRequested))
    assert not is_end(changes_of(active(), facts.Suspend))
    assert not is_end(changes_of(active(), facts.StepRecorded))
