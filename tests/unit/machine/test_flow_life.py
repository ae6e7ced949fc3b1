"""The life of a flow: accepted in one change or staged in many, grown, stopped, acknowledged, opened again."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from msgspec import structs

from outlast import limits
from outlast.machine import facts
from outlast.machine.changes import (
    Absent,
    Add,
    Changes,
    Code,
    Delete,
    Insert,
    Matches,
    Patch,
    Refusal,
    View,
    outline_after,
)
from outlast.machine.decide import decide
from outlast.machine.decide_flow import (
    FlowView,
    NewFlow,
    NewMember,
    accepted,
    chunks,
    decode_acceptance,
    encode_acceptance,
    grown,
    grown_before,
    growth_id,
    in_the_way,
    is_small,
    known,
    lanes_of,
    looked_through,
    opened,
    purged,
    reopened,
    reopening,
    staged,
    staged_members,
)
from outlast.machine.decide_stop import acknowledged, all_acknowledged, may_run_on, put_off, stopped
from outlast.machine.guards_and_writes import claim_gates, held_by
from outlast.model.attempt import Attempt
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import (
    CancelPolicy,
    Edge,
    Flow,
    FlowState,
    Member,
    Settled,
    Summary,
    decode_ids,
    flow_key,
    summary_key,
    whole_of,
)
from outlast.model.outbox import Delivery
from outlast.model.payload import Payload, Role
from outlast.model.record import Now
from outlast.model.status import Status
from tests.unit.machine.build import NOW, PARTITION, active


def new(**fields: Any) -> NewFlow:
    given: dict[str, Any] = {"members": 2, "digest": "d", **fields}
    return NewFlow(namespace="shop", id="f", name="nightly", change_id="new", **given)


def member(name: str, *upstreams: str, template: bytes | None = None, **options: Any) -> NewMember:
    given: dict[str, Any] = {"workflow": "w", "input_digest": "i", **options}
    start = facts.Start(
        change_id=f"start {name}",
        namespace="shop",
        id=f"f/{name}",
        version="1",
        input=b"{}",
        flow="f",
        after_dependencies=bool(upstreams),
        **given,
    )
    ids = tuple(f"f/{upstream}" for upstream in upstreams)
    return NewMember(start=start, name=name, upstreams=ids, needed=len(ids), template=template)


def flow(**fields: Any) -> Flow:
    given: dict[str, Any] = {"state": FlowState.OPEN, "digest": "d", **fields}
    return Flow(namespace="shop", id="f", created_at=1, change_id="f", **given)


def view(outcome: Status | None = None, **fields: Any) -> FlowView:
    return FlowView(
        PARTITION, flow(**fields), Summary(namespace="shop", id="f", members=2, outcome=outcome, change_id="s")
    )


def inserted(changes: Changes | Refusal, kind: type[Any]) -> list[Any]:
    assert isinstance(changes, Changes)
    return [write.record for write in changes.writes if isinstance(write, Insert) and isinstance(write.record, kind)]


def patched(changes: object, kind: str) -> dict[str, Any]:
    assert isinstance(changes, Changes)
    [found] = [write.fields for write in changes.writes if isinstance(write, Patch) and write.key.kind == kind]
    return found


def refusal(answer: object) -> Code:
    assert isinstance(answer, Refusal)
    return answer.code


# ---- acceptance ---------------------------------------------------------------------------------------------------


def test_a_small_flow_is_one_change():
    changes = accepted(PARTITION, new(), [member("a"), member("b", "a", template=b"t", tags={"x": "y"})])
    [gate] = inserted(changes, Flow)
    assert (gate.state, gate.staged_at, gate.purge_at, gate.name) == (FlowState.OPEN, None, None, "nightly")
    assert [e.status for e in inserted(changes, Execution)] == [Status.READY, Status.BLOCKED]
    assert [p.role for p in inserted(changes, Payload)] == [Role.INPUT, Role.TEMPLATE]
    a, b = inserted(changes, Member)
    assert (a.settled, b.settled, b.upstreams, b.needed, b.binds) == (Settled.SATISFIED, Settled.OPEN, 1, 1, True)
    assert decode_ids(b.after) == ("f/a",)
    assert [(d.execution, d.downstream) for d in inserted(changes, Edge)] == [
        ("f/a", "f/b"),
        ("f/", "f/a"),
        ("f/", "f/b"),
    ]
    assert changes.rings == ("lane:shop:default",)
    assert any(isinstance(guard, Absent) for guard in changes.guards), "no execution has its id"


def test_what_is_one_executions_stands_together_so_that_stores_find_it_at_once():
    members = [member("a"), member("b", "a", template=b"t"), member("c", "a", "b"), member("d", "c")]
    changes = accepted(PARTITION, new(), members, worker="w", begins={"f/a"})
    owners = [write.record.key.values[1] for write in changes.writes if isinstance(write, Insert)]
    runs = [owner for owner, _ in groupby(owners)]
    assert runs == ["f", "f/a", "f/b", "f/c", "f/d", "f/"]


def test_what_begins_at_once_is_accepted_as_a_claim_would_have_it():
    members = [member("a", timeout_ms=50), member("b"), member("c", "a")]
    apart = accepted(PARTITION, new(), members)
    changes = accepted(PARTITION, new(), members, worker="w", begins={"f/a"})
    ready, *others = inserted(apart, Execution)
    claim = decide(View(PARTITION, ready), facts.Claim(change_id="new", worker="w"), NOW)
    assert isinstance(claim, Changes)
    held = outline_after(View(PARTITION, ready), claim)
    assert inserted(changes, Execution) == [held, *others]
    assert inserted(changes, Attempt) == inserted(claim, Attempt)
    assert set(changes.guards) == {*apart.guards, *claim_gates(View(PARTITION, None), ready, "w")}
    assert changes.rings == ("lane:shop:default",), "the other one is to be looked for"
    both = accepted(PARTITION, new(), members, worker="w", begins={"f/a", "f/b"})
    assert both.guards == changes.guards, "each gate is asked once"
    assert both.rings == ()


def test_a_large_flow_is_staged_and_shut_until_it_is_opened():
    begun = staged(PARTITION, new())
    [gate] = inserted(begun, Flow)
    assert (gate.state, gate.staged_at) == (FlowState.STAGING, Now())
    assert isinstance(gate.purge_at, Now)
    [summary] = inserted(begun, Summary)
    assert (summary.check_at, summary.depend_at) == (None, None)
    part = staged_members(PARTITION, new(), "new", 1, chunks([member("a")])[0])
    assert part.id == "new/1"
    assert {e.change_id for e in inserted(part, Execution)} == {"new/1"}
    [guard] = part.guards
    assert isinstance(guard, Matches)
    assert guard.fields == {"state": FlowState.STAGING, "change_id": "new"}
    last = opened(PARTITION, new(), "new", ("lane:shop:default",))
    assert patched(last, "flow")["state"] is FlowState.OPEN
    assert patched(last, "flow")["staged_at"] is None
    assert patched(last, "summary")["check_at"] is not None


def test_chunks_are_as_large_as_a_change_may_be():
    members = [member(f"m{n}") for n in range(500)]
    parts = chunks(members)
    assert [one.member for part in parts for one in part] == members
    for part in parts:
        assert len(staged_members(PARTITION, new(), "new", 1, part).writes) + 1 <= limits.CHANGES_MAX_WRITES
    assert chunks([]) == [[]]


@pytest.mark.parametrize("more, small", [(-1, True), (0, True), (1, False)])
def test_what_is_small_is_one_chunk(more: int, small: bool):
    edges = limits.CHANGES_MAX_WRITES - 10 - 11 + more  # but for a margin, and for what two members take besides
    members = [member("a"), member("wide", *(f"u{n}" for n in range(edges)), tags={"x": "y"})]
    assert is_small(members) is (len(chunks(members)) == 1) is small


def test_a_member_with_more_edges_than_a_change_holds_comes_in_pieces():
    upstreams = tuple(f"m{n}" for n in range(2_500))
    parts = chunks([member("a"), member("wide", *upstreams), member("b")])
    changes = [staged_members(PARTITION, new(), "new", n, part) for n, part in enumerate(parts)]
    assert all(len(one.writes) < limits.CHANGES_MAX_WRITES for one in changes)
    edges = [d.execution for one in changes for d in inserted(one, Edge) if d.downstream == "f/wide"]
    assert edges == ["f/", *(f"f/{name}" for name in upstreams)]
    assert [e.id for one in changes for e in inserted(one, Execution)] == ["f/a", "f/wide", "f/b"]


def test_lanes_of_those_that_wait_for_nothing_are_rung():
    members = [member("a", lane="gpu"), member("b", "a", lane="cpu"), member("c", delay_ms=5, lane="later")]
    assert lanes_of(members) == ("lane:shop:gpu",)


def test_a_flow_that_is_there_is_the_same_or_another():
    assert refusal(known(view(), new())) is Code.ALREADY
    assert refusal(known(view(), new(digest="other"))) is Code.CONFLICT
    assert known(view(state=FlowState.STAGING, staged_at=5), new()) is None


def test_what_is_in_the_way_of_a_flow_is_told_unless_it_is_gone():
    keys = flow_key("shop", "f"), summary_key("shop", "f")
    assert [in_the_way(new(), key) for key in keys] == [None, None]
    for taken, said in (("f", "has the id of an execution"), ("f/a", "has a member whose id is taken")):
        told = in_the_way(new(), execution_key("shop", taken))
        assert refusal(told) is Code.CONFLICT
        assert told is not None
        assert said in told.message


BY = active(id="f/a", flow="f")


# ---- growth -------------------------------------------------------------------------------------------------------


def test_a_flow_grows_while_it_is_open():
    answer = grown(view(revision=4), BY, [member("c", "a")], "x")
    assert not isinstance(answer, Refusal)
    as_seen = Matches(flow_key("shop", "f"), {"state": FlowState.OPEN, "revision": 4})
    assert answer.guards == (held_by(BY), as_seen), "by who still holds it"
    assert Patch(flow_key("shop", "f"), {"revision": 5}) in answer.writes
    assert [write.amount for write in answer.writes if isinstance(write, Add)] == [1]
    assert refusal(grown(view(state=FlowState.STOPPED), BY, [], "x")) is Code.TERMINAL
    assert refusal(grown(view(Status.FAILED), BY, [], "x")) is Code.TERMINAL


def test_what_is_added_may_be_joined_by_one_that_is_there():
    answer = grown(view(), BY, [member("c", "a"), member("d", "c")], "x", joined_by="f/b")
    assert not isinstance(answer, Refusal)
    assert [(edge.execution, edge.alone) for edge in inserted(answer, Edge) if edge.downstream == "f/b"] == [
        ("f/c", False),
        ("f/d", False),
    ]


def test_a_flow_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "FLOW_MEMBERS_MAX", 2)
    assert refusal(grown(view(), BY, [member("c", "a")], "x")) is Code.LIMIT


@pytest.mark.parametrize(
    "entry, added, same",
    [
        ("f/a@1/flow/1", member("c", "a"), True),
        ("new", member("c", "a"), False),
        ("f/a@2@1/flow/1", member("c", "a"), False),
        ("f/a@1/flow/1", member("c", "b"), False),
        ("f/a@1/flow/1", member("c", "a", workflow="other"), False),
        ("f/a@1/flow/1", member("c", "a", input_digest="other"), False),
    ],
    ids=["the same", "there from the beginning", "of another", "other edges", "other workflow", "other input"],
)
def test_what_begins_anew_knows_what_it_added_before(entry: str, added: NewMember, same: bool):
    answer = grown(view(), BY, [member("c", "a")], entry)
    assert not isinstance(answer, Refusal)
    records = [write.record for write in answer.writes if isinstance(write, Insert)]
    [execution] = [one for one in records if isinstance(one, Execution)]
    [found] = [one for one in records if isinstance(one, Member)]
    [edge] = [one for one in records if isinstance(one, Edge) and one.execution == whole_of("f")]
    by = structs.replace(active(id="f/a", flow="f"), journal_generation=2)
    assert growth_id(by, "flow/1") == "f/a@2/flow/1"
    assert grown_before(added, by, (execution, found, edge)) is same


# ---- started by a workflow ----------------------------------------------------------------------------------------


def test_a_flow_that_is_owed_is_accepted_as_it_was_written_down():
    given, members = new(parent="host"), [member("a"), member("b", "a", template=b"t")]
    assert decode_acceptance(encode_acceptance(given, members)) == (given, members)
    [gate] = inserted(accepted(PARTITION, given, members), Flow)
    assert gate.parent == "host"


@pytest.mark.parametrize("parent", [None, "host"])
def test_a_parent_is_told_of_the_end_of_its_flow(parent: str | None):
    answer = stop(view(parent=parent, revision=3), CancelPolicy.FLOW_ONLY)
    assert isinstance(answer, Changes)
    debts = inserted(answer, Delivery)
    if parent is None:
        assert debts == []
    else:
        word = facts.decode_debt(debts[0].fact)
        assert isinstance(word, facts.ChildCompleted)
        assert (debts[0].target, word.child, word.status, word.generation) == ("host", "f/", Status.CANCELLED, 4)
    assert inserted(stop(view(parent=parent)), Delivery) == [], "it has not ended yet"


# ---- stopping -----------------------------------------------------------------------------------------------------


def stop(seen: FlowView, policy: CancelPolicy = CancelPolicy.CANCEL_ALL) -> Changes | Refusal:
    return stopped(seen, policy=policy, reason="why", grace_ms=7, change_id="x")


def test_a_stopped_flow_is_shut_and_owes_its_cancels_after_the_grace():
    fields = patched(stop(view(revision=3)), "flow")
    assert (fields["state"], fields["reason"], fields["cancel_at"]) == (FlowState.STOPPED, "why", Now(7))
    assert (fields["policy"], fields["revision"]) == (CancelPolicy.CANCEL_ALL, 4)


def test_flow_only_ends_the_flow_and_owes_nothing():
    answer = stop(view(), CancelPolicy.FLOW_ONLY)
    assert patched(answer, "flow")["cancel_at"] is None
    assert "purge_at" not in patched(answer, "flow")
    assert patched(answer, "summary")["outcome"] is Status.CANCELLED
    assert patched(stop(view(retention_ms=9), CancelPolicy.FLOW_ONLY), "flow")["purge_at"] == Now(9)


@pytest.mark.parametrize(
    "seen, code",
    [
        (FlowView(PARTITION, None), Code.UNKNOWN),
        (FlowView(PARTITION, flow()), Code.UNKNOWN),
        (view(state=FlowState.STAGING, staged_at=1), Code.UNKNOWN),
        (view(state=FlowState.STOPPED, policy=CancelPolicy.CANCEL_ALL), Code.ALREADY),
        (view(state=FlowState.STOPPED, policy=CancelPolicy.CANCEL_PENDING), Code.CONFLICT),
        (view(Status.CANCELLED, state=FlowState.STOPPED, policy=CancelPolicy.CANCEL_PENDING), Code.ALREADY),
        (view(Status.CANCELLED, state=FlowState.STOPPED, policy=CancelPolicy.FLOW_ONLY), Code.CONFLICT),
        (view(Status.SUCCEEDED), Code.TERMINAL),
        (view(state=FlowState.REOPENING), Code.NOT_ALLOWED),
    ],
)
def test_what_cannot_be_stopped_says_why(seen: FlowView, code: Code):
    assert refusal(stop(seen)) is code


def test_the_last_acknowledgement_takes_the_flow_off_the_backlog():
    one = Member(namespace="shop", execution="f/a", flow="f", name="a", change_id="m")
    first = acknowledged(PARTITION, one, flow(state=FlowState.STOPPED), "x", last=False)
    assert patched(first, "member") == {"acknowledged": True}
    assert len(first.writes) == 1
    last = acknowledged(PARTITION, one, flow(state=FlowState.STOPPED), "x", last=True)
    assert patched(last, "flow") == {"cancel_at": None}
    assert len(last.guards) == len(first.guards) == 2, "both ask whether the flow is still stopped"


# ---- once more ----------------------------------------------------------------------------------------------------


def test_a_retry_shuts_the_flow_and_owes_the_rest():
    answer = reopening(view(Status.FAILED), change_id="x")
    assert patched(answer, "flow")["state"] is FlowState.REOPENING
    assert patched(answer, "summary") == {"outcome": None, "finished_at": None}
    assert isinstance(answer, Changes)
    [debt] = inserted(answer, Delivery)
    assert isinstance(facts.decode_debt(debt.fact), facts.ReopenMembers)
    last = reopened(view(state=FlowState.REOPENING), debt, lanes=("l",), change_id="y")
    assert patched(last, "flow")["state"] is FlowState.OPEN
    assert patched(last, "summary")["drained"] == ""
    assert Delete(debt.key) in last.writes


@pytest.mark.parametrize(
    "seen, code",
    [
        (FlowView(PARTITION, None), Code.UNKNOWN),
        (FlowView(PARTITION, flow()), Code.UNKNOWN),
        (view(state=FlowState.STAGING, staged_at=1), Code.UNKNOWN),
        (view(), Code.NOT_ALLOWED),
        (view(Status.SUCCEEDED), Code.TERMINAL),
    ],
)
def test_what_cannot_be_retried_says_why(seen: FlowView, code: Code):
    assert refusal(reopening(seen, change_id="x")) is code


@pytest.mark.parametrize("ran_ms, later_ms", [(0, 1_000), (40_000, 10_000), (10**9, 30_000)])
def test_a_flow_that_owes_only_what_runs_is_looked_at_later_the_longer_that_runs(ran_ms: int, later_ms: int):
    gate = flow(state=FlowState.STOPPED, policy=CancelPolicy.CANCEL_PENDING, revision=2, cancel_at=5)
    later = put_off(PARTITION, gate, "x", ran_ms=ran_ms)
    assert later.writes == (Patch(gate.key, {"cancel_at": Now(later_ms)}),)
    assert later.guards == (Matches(gate.key, {"state": FlowState.STOPPED, "revision": 2, "cancel_at": 5}),)


@pytest.mark.parametrize(
    "policy, status, may",
    [
        (CancelPolicy.CANCEL_PENDING, Status.ACTIVE, True),
        (CancelPolicy.CANCEL_PENDING, Status.SUSPENDED, False),
        (CancelPolicy.CANCEL_ALL, Status.ACTIVE, False),
    ],
)
def test_only_code_that_runs_may_run_on_and_only_if_what_is_pending_is_cancelled(
    policy: CancelPolicy, status: Status, may: bool
):
    execution = structs.replace(active(), status=status)
    assert may_run_on(flow(state=FlowState.STOPPED, policy=policy), execution) is may


def test_the_last_acknowledgement_may_be_said_by_somebody_else():
    shut = flow(state=FlowState.STOPPED, revision=3)
    done = all_acknowledged(PARTITION, shut, "x")
    assert done.guards == (Matches(shut.key, {"state": FlowState.STOPPED, "revision": 3}),), "not retried since"
    assert done.writes == (Patch(shut.key, {"cancel_at": None}),)


# ---- the end of its records ---------------------------------------------------------------------------------------


def test_a_purge_first_shuts_what_it_takes_away():
    ended = view(Status.FAILED, revision=3)
    assert ended.flow is not None
    found = purged(PARTITION, ended.flow, ended.summary, "x")
    assert found is not None
    first, by_us = found
    assert patched(first, "flow") == {"purge_at": Now(60_000), "revision": 4}
    assert Delete(summary_key("shop", "f")) in first.writes, "nobody can retry it"
    assert {"outcome": Status.FAILED} in [guard.fields for guard in first.guards if isinstance(guard, Matches)]
    assert by_us == Matches(ended.flow.key, {"state": FlowState.OPEN, "revision": 4, "change_id": "f"})
    again = purged(PARTITION, ended.flow, None, "x")
    assert again is not None
    assert len(again[0].writes) == 1, "its summary is gone already"


def test_an_abandoned_stage_is_purged_by_one_alone():
    stage = flow(state=FlowState.STAGING, staged_at=5)
    found = purged(PARTITION, stage, None, "x")
    assert found is not None
    assert patched(found[0], "flow")["change_id"] == "x", "no chunk of it is written from now on"
    assert found[1] == Matches(stage.key, {"state": FlowState.STAGING, "revision": 1, "change_id": "x"})


def test_a_flow_that_is_open_is_not_purged():
    running = view()
    assert running.flow is not None
    assert purged(PARTITION, running.flow, running.summary, "x") is None


@pytest.mark.parametrize(
    "more, found, checks, wait_ms", [(True, False, 2, 0), (False, True, 0, 100), (False, False, 3, 800)]
)
def test_a_flow_in_which_nothing_is_found_is_looked_at_less_often(more: bool, found: bool, checks: int, wait_ms: int):
    summary = Summary(namespace="shop", id="f", checks=2, check_at=5, change_id="s")
    later = looked_through(PARTITION, summary, "check_at", "x", interval_ms=100, more=more, found=found)
    assert later.guards == (Matches(summary.key, {"outcome": None, "check_at": 5}),)
    assert patched(later, "summary") == {"check_at": Now(wait_ms), "checks": checks}
