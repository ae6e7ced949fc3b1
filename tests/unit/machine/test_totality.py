"""Every fact in every status has an answer, and the table of transitions says neither more nor less than they do."""

from __future__ import annotations

from collections import defaultdict
from typing import get_args

import pytest

from outlast.machine import facts
from outlast.machine.changes import Add, Changes, Code, Insert, Refusal
from outlast.machine.invariants import violations
from outlast.machine.transitions import TRANSITIONS, allowed
from outlast.model.status import Status
from tests.unit.machine.reach import Case, every_case

KINDS: tuple[type[facts.Fact], ...] = get_args(facts.AnyFact)


def cases_of(kind: type[facts.Fact]) -> list[Case]:
    return [case for case in every_case() if type(case.fact) is kind]


@pytest.mark.parametrize("kind", KINDS)
def test_every_fact_in_every_status_is_answered_and_nothing_is_raised(kind: type[facts.Fact]):
    cases = cases_of(kind)
    assert {None if case.before is None else case.before.status for case in cases} == {None, *Status}
    raised = [case for case in cases if not isinstance(case.answer, Changes | Refusal)]
    assert raised == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_move_is_in_the_table_and_every_row_of_the_table_can_happen(kind: type[facts.Fact]):
    moved: dict[Status | None, set[Status]] = defaultdict(set)
    for case in cases_of(kind):
        if case.after is not None:
            moved[None if case.before is None else case.before.status].add(case.after.status)
    assert moved == TRANSITIONS[kind]


def test_every_flag_was_met_in_every_status_that_can_have_it():
    met: dict[str, set[Status]] = defaultdict(set)
    for case in every_case():
        for flag in ("held", "cancel_requested", "unwinds", "attempt_open"):
            if case.before is not None and getattr(case.before, flag):
                met[flag].add(case.before.status)
    running = {Status.BLOCKED, Status.READY, Status.ACTIVE, Status.SUSPENDED}
    run = {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED}
    assert met["held"] == running - {Status.READY}
    assert met["unwinds"] == running | run
    assert met["attempt_open"] == running
    assert met["cancel_requested"] == running | run


def test_what_comes_of_any_fact_keeps_the_invariants():
    assert [(case, violations(case.after)) for case in every_case() if case.after and violations(case.after)] == []


def test_epoch_inbox_and_generation_never_go_back():
    for before, _, _, after in every_case():
        if before is not None and after is not None:
            begins = after.status is Status.ACTIVE and before.status is not Status.ACTIVE
            assert after.epoch == before.epoch + begins
            assert after.inbox in (before.inbox, before.inbox + 1)
            assert after.generation in (before.generation, before.generation + 1)


def test_a_new_generation_is_opened_by_a_restart_a_retry_or_its_own_code_and_by_nothing_else():
    for before, fact, _, after in every_case():
        if before is not None and after is not None:
            opened = after.generation > before.generation
            again = before.status.terminal and not isinstance(fact, facts.Supersede)
            assert not again or isinstance(fact, facts.Start | facts.Retry)
            assert opened == (again or (isinstance(fact, facts.Continue) and not after.status.terminal))


def test_everything_in_a_change_is_anchored_guarded_and_of_one_partition():
    for before, fact, answer, after in every_case():
        if isinstance(answer, Changes):
            assert after is not None
            assert (answer.id, answer.partition, answer.anchors) == (fact.change_id, 3, (after.key,))
            assert before is None or answer.guards, "only a first start needs no guard: its insert is one"


def test_an_addition_stands_beside_an_insert_or_under_the_fence_of_a_lease():
    """Settlement 3, lost replies: a change that is repeated must not add twice."""
    for before, fact, answer, _ in every_case():
        writes = answer.writes if isinstance(answer, Changes) else ()
        for write in writes:
            if isinstance(write, Add) and write.field == "inbox":
                assert any(isinstance(other, Insert) for other in writes), fact
            elif isinstance(write, Add):
                moved = Status.READY if type(fact) is facts.Claim else Status.ACTIVE
                assert before is not None
                assert before.status is moved, "a permit is taken or given back by a change that cannot pass twice"


def test_outside_facts_never_write_a_field_of_the_holder():
    """Settlement 2: whoever holds an active execution never finds its fields changed by somebody else."""
    spoken = 0
    for before, fact, _, after in every_case():
        outside = isinstance(
            fact,
            facts.CancelRequested
            | facts.Hold
            | facts.Release
            | facts.EventSent
            | facts.DeferredResolved
            | facts.ChildCompleted,
        )
        if outside and before is not None and after is not None and before.status is Status.ACTIVE:
            fields = [name for name in before.__struct_fields__ if getattr(before, name) != getattr(after, name)]
            assert set(fields) <= {"inbox", "cancel_requested", "held", "priority"}
            assert "inbox" in fields, "and each is heard"
            spoken += 1
    assert spoken > 100


def test_a_held_execution_becomes_ready_only_by_its_release_or_to_unwind():
    for before, fact, _, after in every_case():
        if before is not None and before.held and after is not None and after.status is Status.READY:
            unwinding = type(fact) is facts.CancelRequested and before.unwinds
            assert type(fact) is facts.Release or unwinding


def test_an_undo_keeps_a_cancel_from_ending_it_without_its_code():
    for before, fact, _, after in every_case():
        if before is None or before.status.terminal:
            continue
        if before.unwinds and after is not None and after.status is Status.CANCELLED:
            assert type(fact) is facts.Cancelled, "only its own code says that it has unwound"


def test_nothing_said_of_an_execution_that_is_not_there_is_known():
    for case in every_case():
        if case.before is None and not isinstance(case.fact, facts.Start | facts.Fork):
            assert isinstance(case.answer, Refusal)
            assert case.answer.code is Code.UNKNOWN


def test_what_the_table_does_not_allow_is_refused():
    for before, fact, answer, _ in every_case():
        if not allowed(type(fact), None if before is None else before.status):
            assert isinstance(answer, Refusal)
