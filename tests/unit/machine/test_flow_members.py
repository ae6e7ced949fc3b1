"""Members of flows: answers to their edges, what these mean, the count of the whole, and opening them again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlast.machine import facts
from outlast.machine.changes import (
    ENDS,
    Absent,
    Changes,
    Delete,
    Insert,
    Matches,
    Patch,
    Put,
    Refusal,
    TimeAhead,
    View,
    execution_after,
)
from outlast.machine.decide import decide
from outlast.machine.decide_member import (
    Advanced,
    Ended,
    MemberView,
    Room,
    advance,
    answered_edge,
    dropped,
    ended_unsettled,
    finished,
    forgotten,
    is_cancelled_with,
    makes_up_for_upstreams,
    needs_upstreams,
    recounted,
    reopened,
    siblings_settled,
    tallied,
    waits,
    wants_input,
    widened,
)
from outlast.machine.flow_parents import parent_ended, was_closed
from outlast.machine.joins import Answer
from outlast.model.attempt import Attempt
from outlast.model.execution import Execution
from outlast.model.flow import (
    CancelPolicy,
    Edge,
    EdgeAnswer,
    Flow,
    FlowState,
    Member,
    OnFailure,
    OnSatisfied,
    Settled,
    Summary,
    decode_ids,
    edge_answer_key,
    edge_key,
    encode_ids,
)
from outlast.model.outbox import Delivery
from outlast.model.payload import Payload, Role
from outlast.model.record import Now
from outlast.model.status import Status
from tests.unit.machine.build import NOW, PARTITION, active, after, dependent, failed, succeeded

S = Status


def member_of(execution: Execution, **fields: Any) -> Member:
    given: dict[str, Any] = {"upstreams": 1, "needed": 1, **fields}
    return Member(namespace=execution.namespace, execution=execution.id, flow="f", name="m", change_id="made", **given)


def waiting(**fields: Any) -> MemberView:
    execution = dependent(flow="f", id="f/m")
    return MemberView(PARTITION, execution, member_of(execution, **fields))


def edge(upstream: str, answer: Status = S.SUCCEEDED) -> EdgeAnswer:
    return EdgeAnswer(
        namespace="shop", execution="f/m", upstream=f"f/{upstream}", answer=answer, answered_at=1, change_id="e"
    )


def patch_of(changes: Changes | None, kind: str) -> dict[str, Any]:
    assert changes is not None
    [found] = [write.fields for write in changes.writes if isinstance(write, Patch) and write.key.kind == kind]
    return found


def end_of(view: MemberView, advanced: Advanced) -> Status:
    assert advanced.changes is not None
    execution = execution_after(View(PARTITION, view.execution), advanced.changes, NOW)
    assert execution is not None
    return execution.status


# ---- edges --------------------------------------------------------------------------------------------------------


def test_an_answer_is_inserted_once_and_only_while_the_end_stands():
    end = Ended("shop", "f/a", S.FAILED, 2)
    changes = answered_edge(PARTITION, end, "f/m")
    [write] = changes.writes
    assert isinstance(write, Insert)
    assert isinstance(write.record, EdgeAnswer)
    assert (write.record.upstream, write.record.answer, write.record.generation) == ("f/a", "failed", 2)
    assert answered_edge(PARTITION, end, "f/m") == changes, "repeated it is the same change"
    [guard] = changes.guards
    assert isinstance(guard, Matches)
    assert guard.fields == {"status": S.FAILED, "generation": 2}
    assert end.flow == "f"


def test_the_end_of_a_member_owes_an_answer_to_its_flow():
    execution = after(dependent(flow="f", id="f/m"), facts.Skip)
    view = waiting()
    changes = decide(View(PARTITION, view.execution), facts.Skip(change_id="s"), NOW)
    assert isinstance(changes, Changes)
    [debt] = [w.record for w in changes.writes if isinstance(w, Insert) and isinstance(w.record, Delivery)]
    fact = facts.decode_debt(debt.fact)
    assert isinstance(fact, facts.MemberEnded)
    assert (fact.status, fact.generation, debt.target) == (S.SKIPPED, 1, "f/m")
    assert execution.status is S.SKIPPED


# ---- handing on ---------------------------------------------------------------------------------------------------

GATE = Flow(namespace="shop", id="f", state=FlowState.OPEN, revision=3, created_at=1, change_id="made")


def woken(view: MemberView) -> Changes:
    changes = advance(view, [edge("a")], change_id="x").changes
    assert changes is not None
    return changes


def held_by_worker(view: MemberView) -> Changes:
    advanced = advance(view, [edge("a")], change_id="x", room=Room("w", GATE))
    assert advanced.begins
    assert advanced.changes is not None
    return advanced.changes


def test_what_is_let_run_is_claimed_in_the_same_commit_by_who_has_room():
    view = waiting()
    held = held_by_worker(view)
    execution = execution_after(View(PARTITION, view.execution), held, NOW)
    assert execution is not None
    assert (execution.status, execution.worker, execution.claim_id, execution.claimed_at) == (S.ACTIVE, "w", "x", NOW)
    assert (execution.epoch, execution.waits, execution.ready_at) == (view.execution.epoch + 1, "", None)
    [begun] = [write.record for write in held.writes if isinstance(write, Insert)]
    assert isinstance(begun, Attempt)
    asked = [(type(guard), guard.key.kind) for guard in held.guards]
    assert {(TimeAhead, "session"), (Absent, "lane"), (Matches, "flow")} <= set(asked), "all that a claim would ask"
    assert patch_of(held, "member")["settled"] is Settled.SATISFIED
    assert held.rings == (), "nobody need look for it"


def test_what_is_claimed_in_the_same_commit_has_the_records_of_a_claim():
    execution = msgspec.structs.replace(dependent(flow="f", id="f/m"), timeout_ms=50, ran_ms=20)
    view = MemberView(PARTITION, execution, member_of(execution))
    ready = execution_after(View(PARTITION, execution), woken(view), NOW)
    claim = decide(View(PARTITION, ready), facts.Claim(change_id="x", worker="w"), NOW)
    held = held_by_worker(view)
    assert isinstance(claim, Changes)
    apart = execution_after(View(PARTITION, ready), claim, NOW)
    assert execution_after(View(PARTITION, execution), held, NOW) == apart
    attempts = [[w for w in one.writes if isinstance(w, Insert)] for one in (claim, held)]
    assert attempts[0] == attempts[1] != []


def test_what_is_not_ready_is_left_to_a_claim():
    execution = msgspec.structs.replace(dependent(flow="f", id="f/m"), held=True, reason="operator")
    view = MemberView(PARTITION, execution, member_of(execution))
    advanced = advance(view, [edge("a")], change_id="x", room=Room("w", GATE))
    assert not advanced.begins
    assert advanced.changes == woken(view)


# ---- advancing ----------------------------------------------------------------------------------------------------


def test_a_satisfied_join_makes_the_member_ready():
    view = waiting()
    advanced = advance(view, [edge("a")], change_id="x")
    assert (advanced.answer, advanced.injected, advanced.skipped) == (Answer.SATISFIED, False, False)
    assert end_of(view, advanced) is S.READY
    fields = patch_of(advanced.changes, "member")
    assert (fields["answered"], fields["succeeded"], fields["drained"]) == (1, 1, "f/a")
    assert fields["settled"] is Settled.SATISFIED
    assert "siblings_at" not in fields


def test_others_are_waited_for():
    view = waiting(upstreams=3, needed=2)
    advanced = advance(view, [edge("a")], change_id="x")
    assert advanced.answer is Answer.PENDING
    assert patch_of(advanced.changes, "member")["answered"] == 1
    assert advance(view, [], change_id="x") == Advanced(Answer.PENDING)


def test_an_impossible_join_skips_the_member_and_names_who_made_it_so():
    view = waiting(upstreams=2, needed=2)
    advanced = advance(view, [edge("a"), edge("b", S.EXPIRED)], change_id="x")
    assert (advanced.answer, advanced.skipped) == (Answer.IMPOSSIBLE, True)
    assert end_of(view, advanced) is S.SKIPPED
    assert patch_of(advanced.changes, "execution")["cause"] == "b expired"
    assert patch_of(advanced.changes, "member")["settled"] is Settled.IMPOSSIBLE


def test_an_input_is_injected_with_the_advance():
    view = waiting(binds=True)
    assert wants_input(view, [edge("a")])
    advanced = advance(view, [edge("a")], change_id="x", input=b"{}")
    assert advanced.injected
    assert advanced.changes is not None
    [payload] = [w.record for w in advanced.changes.writes if isinstance(w, Insert) and isinstance(w.record, Payload)]
    assert (payload.role, payload.value, payload.generation) == (Role.INPUT, b"{}", 1)
    assert not wants_input(view, [edge("a", S.FAILED)]), "it does not run"
    assert not wants_input(waiting(), [edge("a")]), "it takes nothing from others"


def test_a_member_whose_input_cannot_be_made_is_skipped_though_its_join_is_satisfied():
    view = waiting(binds=True)
    advanced = advance(view, [edge("a")], change_id="x", unusable="input: too large")
    assert (advanced.answer, advanced.skipped, advanced.injected) == (Answer.SATISFIED, True, False)
    assert patch_of(advanced.changes, "execution")["cause"] == "input: too large"


def test_one_that_runs_on_failure_is_made_ready_by_it():
    view = waiting(on_failure=OnFailure.RUN)
    advanced = advance(view, [edge("a", S.FAILED)], change_id="x")
    assert (advanced.answer, advanced.skipped) == (Answer.IMPOSSIBLE, False)
    assert end_of(view, advanced) is S.READY


def test_what_is_no_longer_needed_is_to_be_cancelled():
    view = waiting(upstreams=3, needed=1, on_satisfied=OnSatisfied.CANCEL_REMAINING)
    advanced = advance(view, [edge("a")], change_id="x")
    assert advanced.spares
    assert isinstance(patch_of(advanced.changes, "member")["siblings_at"], Now)
    done = siblings_settled(PARTITION, view.member, "y")
    assert patch_of(done, "member") == {"siblings_at": None}


def test_nobody_is_spared_where_all_may_run_or_all_have_ended():
    assert not advance(waiting(upstreams=3, needed=1), [edge("a")], change_id="x").spares
    alone = waiting(upstreams=1, needed=1, on_satisfied=OnSatisfied.CANCEL_REMAINING)
    assert not advance(alone, [edge("a")], change_id="x").spares


def test_a_member_is_cancelled_with_its_flow_until_it_has_heard_of_it():
    running = active()
    stopped = msgspec.structs.replace(GATE, state=FlowState.STOPPED, policy=CancelPolicy.CANCEL_ALL, reason="enough")
    assert is_cancelled_with(stopped, running)
    assert not is_cancelled_with(stopped, msgspec.structs.replace(running, cancel_requested=True))
    assert not is_cancelled_with(msgspec.structs.replace(stopped, policy=CancelPolicy.CANCEL_PENDING), running)
    assert not is_cancelled_with(GATE, running)


def test_only_what_waits_for_more_than_its_turn_needs_its_upstreams():
    def ended(**fields: Any) -> MemberView:
        execution = succeeded()
        return MemberView(PARTITION, execution, member_of(execution, **fields))

    assert needs_upstreams(waiting())
    assert not ended_unsettled(waiting())
    for view in (waiting(settled=Settled.SATISFIED), waiting(on_failure=OnFailure.TURN), ended()):
        assert not needs_upstreams(view)
    assert ended_unsettled(ended())
    assert not ended_unsettled(ended(settled=Settled.SATISFIED))
    assert not ended_unsettled(ended(on_failure=OnFailure.TURN))


def test_what_is_settled_or_has_ended_is_resolved_already():
    settled = waiting(settled=Settled.SATISFIED)
    ended = MemberView(PARTITION, succeeded(), member_of(succeeded()))
    for view in (settled, ended):
        assert not waits(view)
        assert advance(view, [edge("a")], change_id="x") == Advanced(Answer.ALREADY_RESOLVED)


def test_a_member_that_waits_may_be_made_to_wait_for_more():
    view = waiting(after=encode_ids(("f/map",)))
    answer = widened(view, ("f/a", "f/b"), b"template", "x")
    assert not isinstance(answer, Refusal)
    [guard, still], [patch, put] = answer.guards, answer.writes
    assert isinstance(guard, Matches)
    assert (guard.key, guard.fields["change_id"]) == (view.member.key, "made")
    assert still == Matches(view.execution.key, {"status": Status.BLOCKED, "generation": 1}), "not cancelled since"
    assert isinstance(patch, Patch)
    assert (patch.fields["upstreams"], patch.fields["needed"], patch.fields["change_id"]) == (3, 3, "x")
    after = patch.fields["after"]
    assert isinstance(after, bytes)
    assert decode_ids(after) == ("f/map", "f/a", "f/b")
    assert isinstance(put, Put)
    assert isinstance(put.record, Payload)
    assert (put.record.role, put.record.value, put.record.execution) == (Role.TEMPLATE, b"template", "f/m")


def test_a_member_that_does_not_wait_any_more_waits_for_nothing_else():
    refused = widened(waiting(settled=Settled.IMPOSSIBLE), ("f/a",), b"template", "x")
    assert isinstance(refused, Refusal)
    assert "does not wait" in refused.message


@pytest.mark.parametrize(
    "status, settled, makes_up",
    [
        (S.SUCCEEDED, Settled.SATISFIED, True),
        (S.SUCCEEDED, Settled.IMPOSSIBLE, False),
        (S.CANCELLED, Settled.OPEN, True),
        (S.SKIPPED, Settled.IMPOSSIBLE, True),
    ],
)
def test_a_clean_up_does_not_make_up_for_what_it_cleans_up_after(status: Status, settled: Settled, makes_up: bool):
    view = waiting(settled=settled)
    ended = msgspec.structs.replace(view.execution, status=status)
    assert makes_up_for_upstreams(msgspec.structs.replace(view, execution=ended)) is makes_up


# ---- the whole ----------------------------------------------------------------------------------------------------


def flow(**fields: Any) -> Flow:
    given: dict[str, Any] = {"state": FlowState.OPEN, **fields}
    return Flow(namespace="shop", id="f", created_at=1, change_id="f", **given)


def summary(**fields: Any) -> Summary:
    return Summary(namespace="shop", id="f", change_id="s", **{"members": 3, **fields})


def test_the_end_of_a_flow_that_a_workflow_started_is_owed_to_its_parent():
    found = tallied(PARTITION, flow(parent="host"), summary(members=1), [edge("a")], "x")
    assert found is not None
    [debt] = [w.record for w in found.writes if isinstance(w, Insert) and isinstance(w.record, Delivery)]
    assert (debt.target, debt.source) == ("host", "f/")


def test_ends_are_counted_by_status():
    found = tallied(PARTITION, flow(), summary(succeeded=1), [edge("a"), edge("b", S.SKIPPED)], "x")
    fields = patch_of(found, "summary")
    assert (fields["succeeded"], fields["skipped"], fields["drained"]) == (2, 1, "f/b")
    assert "failed" not in fields
    assert "outcome" not in fields
    assert tallied(PARTITION, flow(), summary(), [], "x") is None
    assert tallied(PARTITION, flow(state=FlowState.REOPENING), summary(), [edge("a")], "x") is None


def test_a_flow_ends_with_the_last_success_in_one_change():
    found = tallied(PARTITION, flow(retention_ms=5, cancel_at=3), summary(members=1), [edge("a")], "x")
    assert patch_of(found, "summary")["outcome"] is S.SUCCEEDED
    assert patch_of(found, "flow") == {"cancel_at": None, "purge_at": Now(5)}
    assert found is not None
    assert found.rings == (ENDS,)


def test_a_flow_that_was_stopped_does_not_end_by_counting():
    found = tallied(PARTITION, flow(state=FlowState.STOPPED), summary(members=1), [edge("a")], "x")
    assert "outcome" not in patch_of(found, "summary")
    again = tallied(PARTITION, flow(), summary(members=1, outcome=S.CANCELLED), [edge("a")], "x")
    assert "outcome" not in patch_of(again, "summary")
    assert "check_at" not in patch_of(again, "summary"), "what has ended is looked at no more"


def test_a_flow_that_was_counted_and_goes_on_is_looked_at_soon():
    assert patch_of(tallied(PARTITION, flow(), summary(), [edge("a")], "x"), "summary")["check_at"] == Now(5_000)
    ended = tallied(PARTITION, flow(), summary(members=1), [edge("a")], "x")
    assert patch_of(ended, "summary")["check_at"] is None


@pytest.mark.parametrize(
    "state, made_up_for, outcome",
    [
        (FlowState.OPEN, True, S.SUCCEEDED),
        (FlowState.OPEN, False, S.FAILED),
        (FlowState.STOPPED, True, S.CANCELLED),
    ],
)
def test_the_end_of_a_flow_says_how_it_went(state: FlowState, made_up_for: bool, outcome: Status):
    ended = summary(succeeded=2, failed=1)
    found = finished(PARTITION, flow(state=state), ended, made_up_for=made_up_for, change_id="x")
    assert patch_of(found, "summary")["outcome"] is outcome
    assert found is not None
    assert [write.key.kind for write in found.writes if isinstance(write, Patch)] == ["summary"]


@pytest.mark.parametrize(
    "gate, count",
    [
        (flow(), summary(succeeded=2)),
        (flow(), summary(succeeded=3, outcome=S.SUCCEEDED)),
        (flow(state=FlowState.STAGING), summary(succeeded=3)),
        (flow(state=FlowState.REOPENING), summary(succeeded=3)),
    ],
)
def test_a_flow_does_not_end_before_its_time(gate: Flow, count: Summary):
    assert finished(PARTITION, gate, count, made_up_for=True, change_id="x") is None


def test_a_count_can_begin_anew():
    fields = patch_of(recounted(PARTITION, summary(succeeded=3, drained="f/a"), "x", members=4), "summary")
    assert (fields["succeeded"], fields["skipped"], fields["drained"], fields["members"]) == (0, 0, "", 4)


def test_entries_that_name_nothing_go_and_the_count_begins_anew_without_them():
    stopped = flow(state=FlowState.STOPPED, revision=3)
    found = dropped(PARTITION, stopped, summary(succeeded=2), ["f/ghost"], "x", members=2)
    fields = patch_of(found, "summary")
    assert (fields["members"], fields["succeeded"], fields["drained"]) == (2, 0, "")
    gone = {write.key for write in found.writes if isinstance(write, Delete)}
    assert gone == {edge_key("shop", "f/", "f/ghost"), edge_answer_key("shop", "f/", "f/ghost")}
    assert Matches(stopped.key, {"state": FlowState.STOPPED, "revision": 3}) in found.guards


@pytest.mark.parametrize(
    "gate, closed",
    [
        (flow(parent="host", state=FlowState.STOPPED, reason=parent_ended("host", ": cancelled")), True),
        (flow(parent="host", state=FlowState.STOPPED, reason="an operator's"), False),
        (flow(parent="host", state=FlowState.STOPPED), False),
        (flow(parent="host", reason=parent_ended("host", "")), False),
        (flow(state=FlowState.STOPPED, reason=parent_ended("host", "")), False),
    ],
)
def test_a_flow_is_opened_again_with_its_parent_if_it_was_closed_with_it(gate: Flow, closed: bool):
    assert was_closed(gate) is closed


# ---- once more ----------------------------------------------------------------------------------------------------


SHUT = Flow(namespace="shop", id="f", state=FlowState.REOPENING, revision=4, created_at=1, change_id="retried")


def in_flow(execution: Execution) -> Execution:
    return msgspec.structs.replace(execution, flow="f")


def test_what_ran_and_failed_runs_again_with_the_input_that_it_had():
    execution = in_flow(failed())
    view = MemberView(PARTITION, execution, member_of(execution, settled=Settled.SATISFIED, answered=1))
    changes = reopened(view, [edge("a")], flow=SHUT, change_id="x")
    assert changes is not None
    opened = execution_after(View(PARTITION, execution), changes, NOW)
    assert opened is not None
    assert (opened.status, opened.generation) == (S.READY, 2)
    assert "settled" not in patch_of(changes, "member")
    assert [w.key.values[1:] for w in changes.writes if isinstance(w, Delete)] == [("f/", execution.id)]


def test_what_failed_runs_again_with_its_flow_and_the_rest_of_its_journal_replays():
    execution = in_flow(failed())
    view = MemberView(PARTITION, execution, member_of(execution, settled=Settled.SATISFIED))
    changes = reopened(view, [], flow=SHUT, change_id="x", supersedes=(("", "pay", 1),))
    assert changes is not None
    gone = [w.key.values[1:] for w in changes.writes if isinstance(w, Delete) and w.key.kind == "journal"]
    assert gone == [(execution.id, 1, "", "pay", 1)]


def test_what_was_undone_begins_anew_with_its_input_and_an_empty_journal():
    execution = msgspec.structs.replace(in_flow(failed()), unwinds=True)
    view = MemberView(PARTITION, execution, member_of(execution, settled=Settled.SATISFIED))
    changes = reopened(view, [], flow=SHUT, change_id="x", anew=b"[7]")
    assert changes is not None
    opened = execution_after(View(PARTITION, execution), changes, NOW)
    assert opened is not None
    assert (opened.status, opened.generation, opened.journal_generation) == (S.READY, 2, 2)
    assert not opened.unwinds
    [given] = [w.record for w in changes.writes if isinstance(w, Insert) and isinstance(w.record, Payload)]
    assert (given.role, given.generation, given.value) == (Role.INPUT, 2, b"[7]")


@pytest.mark.parametrize("before", ["f/a", "f/b"])
def test_what_only_waits_for_its_turn_waits_for_the_next_one_that_runs_again(before: str):
    execution = msgspec.structs.replace(in_flow(failed()), unwinds=True)
    member = member_of(execution, settled=Settled.IMPOSSIBLE, on_failure=OnFailure.TURN, after=encode_ids((before,)))
    changes = reopened(
        MemberView(PARTITION, execution, member), [edge("b")], flow=SHUT, change_id="x", anew=b"[]", turn="f/a"
    )
    assert changes is not None
    opened = execution_after(View(PARTITION, execution), changes, NOW)
    assert opened is not None
    assert (opened.status, opened.reason) == (S.BLOCKED, "dependencies")
    fields = patch_of(changes, "member")
    assert (fields["after"], fields["settled"]) == (encode_ids(("f/a",)), Settled.OPEN)
    moved = [w for w in changes.writes if isinstance(w, Insert) and isinstance(w.record, Edge)]
    assert [w.record.key.values[1:] for w in moved] == ([] if before == "f/a" else [("f/a", execution.id)])
    gone = [w.key.values[1:] for w in changes.writes if isinstance(w, Delete) and w.key.kind == "edge"]
    assert gone == [("f/m", "f/b"), ("f/", execution.id)], "answered anew, though it had succeeded"


def test_what_was_skipped_waits_again_for_those_that_did_not_succeed():
    skipped = after(waiting().execution, facts.Skip)
    view = MemberView(PARTITION, skipped, member_of(skipped, upstreams=2, needed=2, settled=Settled.IMPOSSIBLE))
    changes = reopened(view, [edge("a"), edge("b", S.FAILED)], flow=SHUT, change_id="x")
    assert changes is not None
    opened = execution_after(View(PARTITION, skipped), changes, NOW)
    assert opened is not None
    assert (opened.status, opened.reason) == (S.BLOCKED, "dependencies")
    fields = patch_of(changes, "member")
    assert (fields["answered"], fields["drained"], fields["settled"]) == (0, "", Settled.OPEN)
    gone = [w.key.values[1:] for w in changes.writes if isinstance(w, Delete) and w.key.kind == "edge"]
    assert gone == [("f/m", "f/b"), ("f/", "f/m")]


def test_what_was_cancelled_before_it_could_run_waits_again_and_a_root_does_not():
    cancelled = after(waiting().execution, facts.CancelRequested)
    for upstreams, status in ((1, S.BLOCKED), (0, S.READY)):
        view = MemberView(PARTITION, cancelled, member_of(cancelled, upstreams=upstreams))
        changes = reopened(view, [], flow=SHUT, change_id="x")
        assert changes is not None
        opened = execution_after(View(PARTITION, cancelled), changes, NOW)
        assert opened is not None
        assert opened.status is status


def test_what_succeeded_or_has_not_ended_stays():
    for execution in (in_flow(succeeded()), waiting().execution):
        assert reopened(MemberView(PARTITION, execution, member_of(execution)), [], flow=SHUT, change_id="x") is None


def test_members_are_opened_only_while_their_flow_is_and_by_the_same_retry():
    """Who comes late with it finds them running, or failed anew."""
    execution = in_flow(failed())
    opened = reopened(MemberView(PARTITION, execution, member_of(execution)), [], flow=SHUT, change_id="x")
    ahead = forgotten(waiting(), [edge("a")], flow=SHUT, change_id="x")
    for changes in (opened, ahead):
        assert changes is not None
        assert Matches(SHUT.key, {"state": FlowState.REOPENING, "revision": 4}) in changes.guards


def test_answers_leave_ahead_if_they_are_many():
    changes = forgotten(waiting(), [edge("a"), edge("b")], flow=SHUT, change_id="x")
    assert len(changes.writes) == 2
    assert all(isinstance(write, Delete) for write in changes.writes)


def test_a_member_is_not_retried_by_itself():
    answer = decide(View(PARTITION, in_flow(failed())), facts.Retry(change_id="r"), NOW)
    assert isinstance(answer, Refusal)
    assert "retried with it" in answer.message
    assert CancelPolicy("flow_only") is CancelPolicy.FLOW_ONLY
