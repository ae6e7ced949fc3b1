"""The table itself: complete, closed, and in agreement with what the statuses mean."""

from __future__ import annotations

from typing import get_args

from outlast.machine import facts
from outlast.machine.transitions import TRANSITIONS, allowed
from outlast.model.status import OPEN, TERMINAL, Status

KINDS = get_args(facts.AnyFact)


def test_every_fact_has_its_rows():
    assert set(TRANSITIONS) == set(KINDS)
    assert all(to for moves in TRANSITIONS.values() for to in moves.values()), "a refusal is no row"


def test_what_is_not_in_the_table_leads_nowhere():
    assert allowed(facts.Claim, Status.SUSPENDED) == frozenset()
    assert allowed(facts.Claim, None) == frozenset()
    assert allowed(facts.Claim, Status.READY) == {Status.ACTIVE}


def test_only_a_start_or_a_fork_makes_something_of_nothing():
    assert [kind for kind in KINDS if allowed(kind, None)] == [facts.Start, facts.Fork]


def test_only_a_claim_makes_anything_active():
    begun = {kind for kind in KINDS for status in OPEN - {Status.ACTIVE} if Status.ACTIVE in allowed(kind, status)}
    assert begun == {facts.Claim, facts.Wake}
    assert Status.ACTIVE in allowed(facts.Wake, Status.BLOCKED), "a member that its upstream's worker claims"
    assert Status.ACTIVE not in allowed(facts.Wake, Status.SUSPENDED)


def test_only_a_restart_and_a_retry_open_what_has_ended():
    opens = {kind for kind in KINDS for status in TERMINAL if allowed(kind, status) & OPEN}
    assert opens == {facts.Start, facts.Retry}


def test_what_has_ended_hears_of_a_retry_that_is_about_to_come_and_of_nothing_else():
    kept = {(kind, status) for kind in KINDS for status in TERMINAL if status in allowed(kind, status)}
    assert kept == {(facts.Supersede, Status.FAILED), (facts.Supersede, Status.CANCELLED)}


def test_nothing_moves_from_one_end_to_another():
    assert all(allowed(kind, status) <= OPEN | {status} for kind in KINDS for status in TERMINAL)


def test_only_its_own_code_makes_it_succeed_or_suspend():
    for status, kind in ((Status.SUCCEEDED, facts.Complete), (Status.SUSPENDED, facts.Suspend)):
        led = {(k, before) for k in KINDS for before in Status if before is not status and status in allowed(k, before)}
        assert led == {(kind, Status.ACTIVE)}


def test_a_holders_facts_apply_to_active_executions_alone():
    for kind in KINDS:
        if "epoch" in kind.__struct_fields__ and kind is not facts.Supersede:
            assert set(TRANSITIONS[kind]) == {Status.ACTIVE}
