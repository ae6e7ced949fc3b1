"""Crashes are counted since the last progress and in all, and those since the last suspension make a suspect."""

from __future__ import annotations

import pytest
from msgspec import structs

from outlast.errors import CorruptState
from outlast.machine import facts
from outlast.machine.changes import Insert, Matches, Patch
from outlast.machine.invariants import check
from outlast.model.execution import Execution, parse_route
from outlast.model.journal import JournalEntry
from outlast.model.status import Status
from tests.unit.machine.build import KEY, active, after, changes_of, patch_of, undoable


def crashed(execution: Execution, times: int = 1) -> Execution:
    """Active again under a new lease, after so many crashes without a step in between."""
    for _ in range(times):
        execution = after(after(execution, facts.LeaseLost), facts.Claim)
    return execution


def counts(execution: Execution) -> tuple[int, int, int]:
    return execution.crashes, execution.crashes_since_progress, execution.crashes_since_suspension


def is_suspect(execution: Execution) -> bool:
    return parse_route(execution.route).suspect


def test_a_step_forgives_the_crashes_before_it():
    stepped = after(crashed(active(), 4), facts.StepRecorded)
    assert counts(stepped) == (4, 0, 4)
    assert after(crashed(stepped, 4), facts.LeaseLost).status is Status.EXPIRED


def test_the_first_step_after_a_crash_resets_the_counter_in_its_own_commit():
    changes = changes_of(crashed(active()), facts.StepRecorded)
    insert, patch = changes.writes
    assert isinstance(insert, Insert)
    assert isinstance(insert.record, JournalEntry)
    assert patch == Patch(KEY, {"crashes_since_progress": 0})


def test_every_other_step_is_one_insert():
    for execution in (active(), after(crashed(active()), facts.StepRecorded)):
        [insert] = changes_of(execution, facts.StepRecorded).writes
        assert isinstance(insert, Insert)


def test_a_step_that_is_more_than_an_entry_resets_the_counter_too():
    patched = patch_of(changes_of(crashed(active()), facts.StepRecorded, unwinds=True))
    assert patched == {"unwinds": True, "crashes_since_progress": 0}


def test_a_suspension_forgives_the_crashes_before_it_and_clears_the_suspicion():
    suspect = crashed(active(), 3)
    assert is_suspect(suspect)
    suspended = after(suspect, facts.Suspend)
    assert counts(suspended) == (3, 0, 0)
    assert not is_suspect(suspended)


def test_a_suspension_of_what_never_crashed_writes_no_counter():
    fields = patch_of(changes_of(active(), facts.Suspend))
    assert not fields.keys() & {"crashes_since_progress", "crashes_since_suspension", "route"}


def test_what_records_something_in_each_attempt_and_dies_is_a_suspect_all_the_same():
    execution = active()
    for _ in range(2):
        execution = crashed(after(execution, facts.StepRecorded))
        assert not is_suspect(execution)
    assert is_suspect(crashed(after(execution, facts.StepRecorded)))


def test_a_high_cap_does_not_put_the_quarantine_off():
    assert is_suspect(crashed(active(crash_cap=1_000), 3))


def test_a_low_cap_makes_a_suspect_sooner():
    assert is_suspect(crashed(active(crash_cap=3), 2))


def test_a_failure_between_crashes_leaves_the_suspicion():
    """It says nothing about the code that kills the process: the next attempt runs that again."""
    failed = after(crashed(active(retry=facts.RetryPolicy(max_attempts=3, initial_ms=0)), 3), facts.Fail)
    assert counts(failed) == (3, 3, 3)
    assert is_suspect(failed)


def test_a_life_of_progress_and_crashes_ends_at_its_own_bound():
    execution = active(life_crash_cap=4)
    for _ in range(3):
        execution = crashed(after(execution, facts.StepRecorded))
    ended = after(after(execution, facts.StepRecorded), facts.LeaseLost)
    assert (ended.status, ended.cause, ended.crashes) == (Status.EXPIRED, "crashes_in_life", 4)


def test_the_bound_since_progress_is_named_first_if_both_are_met():
    ended = after(crashed(active(crash_cap=2, life_crash_cap=2)), facts.LeaseLost)
    assert (ended.status, ended.cause) == (Status.EXPIRED, "crashes")


def test_at_the_bound_of_its_life_it_undoes_first_what_it_did():
    told = after(undoable(life_crash_cap=1), facts.LeaseLost)
    assert (told.status, told.expires_for) == (Status.READY, "crashes_in_life")


def test_a_crash_is_decided_anew_if_a_step_was_recorded_meanwhile():
    """It may no longer be one too many."""
    assert Matches(KEY, {"crashes_since_progress": 4}) in changes_of(crashed(active(), 4), facts.LeaseLost).guards
    stepped = after(crashed(active(), 4), facts.StepRecorded)
    guards = [guard for guard in changes_of(stepped, facts.LeaseLost).guards if isinstance(guard, Matches)]
    assert not any("crashes_since_progress" in guard.fields for guard in guards), "there is nothing to reset"


def test_a_new_generation_counts_from_the_start():
    ended = after(active(crash_cap=1), facts.LeaseLost)
    assert counts(after(ended, facts.Retry)) == (0, 0, 0)


def test_the_counters_are_of_one_another():
    with pytest.raises(CorruptState, match="a suspension is progress"):
        check(structs.replace(active(), crashes=1, crashes_since_suspension=0, crashes_since_progress=1, attempt=2))
