"""The plan of an end: its answers, what follows on them, and the end of the flow, in one change."""

from __future__ import annotations

from outlast.machine import facts
from outlast.machine.changes import Absent, Changes, Insert, Matches, View, is_end
from outlast.machine.decide import decide
from outlast.machine.decide_member import Ended, advance, edge_of, tallied
from outlast.machine.plan_end import Downstream, Last, Plan, plan_end, still_ended
from outlast.model.execution import Execution
from outlast.model.flow import EdgeAnswer, FlowState
from outlast.model.outbox import Delivery
from outlast.model.record import Record
from outlast.model.status import Status
from tests.unit.machine.build import NOW, PARTITION, active, after
from tests.unit.machine.test_flow_members import GATE, edge, patch_of, summary, waiting

ENDED = Ended("shop", "f/a", Status.SUCCEEDED, 1)
UPSTREAM = active(flow="f", id="f/a", parent="p")


def completed(execution: Execution = UPSTREAM, *, hands_on: bool = True) -> Changes:
    fact = facts.Complete(change_id="c", epoch=execution.epoch, output=b"1", hands_on=hands_on)
    changes = decide(View(PARTITION, execution), fact, NOW)
    assert isinstance(changes, Changes)
    return changes


def inserted(changes: Changes) -> list[Record]:
    return [write.record for write in changes.writes if isinstance(write, Insert)]


def plan(*, worker: str | None = None) -> Plan:
    return plan_end(ENDED, [Downstream(waiting(), "x", worker=worker)], first=completed(), gate=GATE)


def test_an_end_that_hands_on_owes_nothing_and_answers_all_edges():
    both, view = plan().changes, waiting()
    assert edge_of(ENDED, "f/m") in inserted(both)
    assert edge_of(ENDED, "f/") in inserted(both), "the flow's own count"
    debts = [record.target for record in inserted(both) if isinstance(record, Delivery)]
    assert debts == ["p"], "the word to its parent is owed as ever"
    assert set(both.anchors) == {UPSTREAM.key, view.execution.key}
    assert both.id == "c", "repeated it is found"
    assert Matches(GATE.key, {"state": FlowState.OPEN, "revision": 3}) in both.guards, "neither grown nor stopped"
    woken = advance(view, [edge("a")], change_id="x").changes
    assert woken is not None
    assert {guard.key for one in (completed(), woken) for guard in one.guards} <= {guard.key for guard in both.guards}


def test_an_end_that_does_not_hand_on_owes_its_answers():
    owed = [record for record in inserted(completed(hands_on=False)) if isinstance(record, Delivery)]
    assert [record.target for record in owed] == ["p", "f/a"]


def test_what_a_worker_has_room_for_begins_with_the_end():
    held = plan(worker="w")
    assert list(held.begun) == ["f/m"]
    assert (Absent, "lane") in [(type(guard), guard.key.kind) for guard in held.changes.guards], "as a claim asks"
    assert not is_end(held.changes)
    assert plan().begun == {}
    assert is_end(plan().changes), "somebody else may claim it"


def test_what_an_end_owes_is_paid_as_long_as_the_end_stands():
    paid = plan_end(ENDED, [Downstream(waiting(), "x")], first=still_ended(PARTITION, ENDED)).changes
    assert paid.guards[0] == Matches(UPSTREAM.key, {"status": Status.SUCCEEDED, "generation": 1})
    assert [record.execution for record in inserted(paid) if isinstance(record, EdgeAnswer)] == ["f/", "f/m"]
    assert GATE.key not in [guard.key for guard in paid.guards], "it was answered before it was stopped, or after"


def test_who_pays_a_debt_begins_nothing():
    following = Downstream(waiting(), "x", worker="w")
    assert plan_end(ENDED, [following], first=still_ended(PARTITION, ENDED)).begun == {}


def test_the_last_end_ends_its_flow_as_a_count_of_all_would():
    last = active(flow="f", id="f/c")
    ends = [Ended("shop", f"f/{name}", Status.SUCCEEDED, 1) for name in "abc"]
    counts = summary(members=3)
    both = plan_end(ends[-1], [], first=completed(last), gate=GATE, last=Last(counts, ends[:-1])).changes
    apart = tallied(PARTITION, GATE, counts, [edge("a"), edge("b"), edge("c")], "c")
    assert apart is not None
    assert patch_of(both, "summary") == patch_of(apart, "summary")
    assert set(map(str, apart.guards)) <= set(map(str, both.guards)), "nobody has counted, and the flow is as it was"
    assert edge_of(ends[-1], "f/") in inserted(both)
    assert not [record for record in inserted(both) if isinstance(record, Delivery)], "nothing is owed"
    assert set(both.anchors) == {last.key, counts.key, GATE.key}
    assert after(last, facts.Complete).status is Status.SUCCEEDED
