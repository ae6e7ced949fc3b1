"""The door of facts about flows: what is not in the table, or breaks an invariant, is a bug that stops."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from outlast.errors import CorruptState
from outlast.machine.changes import Changes, Guard, Insert, Matches, Patch, Write
from outlast.machine.flow_changes import flow_changes
from outlast.machine.transitions import FLOW_TRANSITIONS, STATE_OF, FlowFact
from outlast.model.execution import execution_key
from outlast.model.flow import (
    CancelPolicy,
    Flow,
    FlowState,
    Member,
    Settled,
    Summary,
    flow_key,
    member_key,
    summary_key,
)
from outlast.model.record import Now
from outlast.model.status import Status
from tests.unit.machine.build import PARTITION, ready, suspended

FLOW, SUMMARY, MEMBER = flow_key("shop", "f"), summary_key("shop", "f"), member_key("shop", "f/a")
STOP: dict[str, Any] = {"state": FlowState.STOPPED, "policy": CancelPolicy.CANCEL_ALL, "reason": "enough"}
MADE = Flow(namespace="shop", id="f", state=FlowState.OPEN, created_at=1, change_id="x")
JOINED = Member(namespace="shop", execution="f/a", flow="f", name="a", settled=Settled.SATISFIED, change_id="x")


def answer(fact: FlowFact, guards: list[Guard], *writes: Write) -> Changes:
    return flow_changes(fact, "x", PARTITION, (FLOW,), guards, writes)


def test_a_move_of_the_table_is_answered():
    guards: list[Guard] = [Matches(FLOW, {"revision": 1}), Matches(FLOW, {"state": FlowState.OPEN})]
    changes = answer(FlowFact.STOPPED, guards, Patch(FLOW, STOP))
    assert (changes.id, changes.partition, changes.guards) == ("x", PARTITION, tuple(guards))


def test_what_moves_nothing_needs_no_row():
    assert not FLOW_TRANSITIONS[FlowFact.ACKNOWLEDGED]
    assert answer(FlowFact.ACKNOWLEDGED, [], Patch(FLOW, {"cancel_at": None})).writes


@pytest.mark.parametrize(
    "fact, key, before, fields",
    [
        (FlowFact.STOPPED, FLOW, {"state": FlowState.REOPENING}, STOP),
        (FlowFact.ACKNOWLEDGED, FLOW, {"state": FlowState.OPEN}, STOP),
        (FlowFact.ENDS_COUNTED, SUMMARY, {"outcome": None}, {"outcome": Status.FAILED, "finished_at": Now()}),
        (FlowFact.FINISHED, SUMMARY, {"outcome": Status.FAILED}, {"outcome": Status.SUCCEEDED, "finished_at": Now()}),
        (FlowFact.ANSWERS_COUNTED, MEMBER, {"settled": Settled.IMPOSSIBLE}, {"settled": Settled.SATISFIED}),
    ],
)
def test_a_move_that_is_not_in_the_table_is_a_bug_that_stops(fact: FlowFact, key: Any, before: Any, fields: Any):
    with pytest.raises(CorruptState, match="is not in the table"):
        answer(fact, [Matches(key, before)], Patch(key, fields))


def test_a_move_that_no_guard_pins_is_a_bug_that_stops():
    with pytest.raises(CorruptState, match="no guard says what it is now"):
        answer(FlowFact.STOPPED, [Matches(SUMMARY, {"outcome": None})], Patch(FLOW, STOP))


def test_no_fact_about_a_flow_patches_an_execution():
    with pytest.raises(CorruptState, match="are for `decide`"):
        answer(FlowFact.ANSWERS_COUNTED, [], Patch(execution_key("shop", "f/a"), {"status": Status.READY}))


@pytest.mark.parametrize("execution", [suspended(), structs.replace(ready(), wake_at=5)], ids=["moved", "broken"])
def test_a_flow_begins_with_executions_as_a_start_makes_them(execution: Any):
    assert answer(FlowFact.ACCEPTED, [], Insert(ready())).writes
    with pytest.raises(CorruptState):
        answer(FlowFact.ACCEPTED, [], Insert(execution))


@pytest.mark.parametrize(
    "fact, record, fields",
    [
        (FlowFact.ACCEPTED, MADE, {"staged_at": 1}),
        (FlowFact.STAGED, MADE, {"state": FlowState.STAGING}),
        (FlowFact.ACCEPTED, Summary(namespace="shop", id="f", change_id="x"), {"finished_at": 1}),
        (FlowFact.ACCEPTED, JOINED, {"settled": Settled.OPEN}),
    ],
)
def test_a_new_record_of_a_flow_keeps_the_invariants(fact: FlowFact, record: Any, fields: dict[str, Any]):
    with pytest.raises(CorruptState, match=r"flow|summary|member"):
        answer(fact, [], Insert(structs.replace(record, **fields)))


@pytest.mark.parametrize(
    "fact, key, before, fields",
    [
        (FlowFact.STOPPED, FLOW, {"state": FlowState.OPEN}, {"state": FlowState.STOPPED}),
        (FlowFact.STOPPED, FLOW, {"state": FlowState.OPEN}, {**STOP, "reason": None}),
        (FlowFact.FINISHED, SUMMARY, {"outcome": None}, {"outcome": Status.FAILED, "finished_at": None}),
    ],
)
def test_a_move_keeps_the_invariants(fact: FlowFact, key: Any, before: Any, fields: Any):
    with pytest.raises(CorruptState, match=r"says how and why|has an end"):
        answer(fact, [Matches(key, before)], Patch(key, fields))


def test_the_table_is_about_what_flows_have():
    assert set(FLOW_TRANSITIONS) == set(FlowFact)
    assert {kind for moves in FLOW_TRANSITIONS.values() for kind in moves} == set(STATE_OF)


def test_a_flow_that_succeeded_is_not_retried():
    assert Status.SUCCEEDED not in FLOW_TRANSITIONS[FlowFact.RETRIED][Summary.KIND]
