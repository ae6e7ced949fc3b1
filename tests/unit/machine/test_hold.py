"""Hold and release: an operator's word, which never stops running code and is never forgotten."""

from __future__ import annotations

import msgspec
import pytest

from outlast.machine import facts
from outlast.machine.changes import Add, Code
from outlast.model import event
from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.status import Status
from tests.unit.machine.build import (
    ENDED_ONES,
    KEY,
    NOW,
    OPEN_ONES,
    active,
    additions_of,
    after,
    as_it_was,
    backing_off,
    changes_of,
    delayed,
    dependent,
    held,
    insert_of,
    patch_of,
    ready,
    refusal_of,
    sleeping,
    suspended,
)


def test_a_ready_execution_is_blocked_by_its_hold():
    execution = held(ready())
    assert (execution.status, execution.reason, execution.waits) == (Status.BLOCKED, "operator", "")
    assert execution.ready_at is None


@pytest.mark.parametrize("make", [delayed, dependent, backing_off])
def test_a_blocked_execution_stays_blocked_and_says_by_whom(make):
    before = make()
    execution = held(before)
    assert (execution.status, execution.reason) == (Status.BLOCKED, "operator")
    assert (execution.waits, execution.wake_at) == (before.waits, before.wake_at)


def test_running_code_goes_on_and_is_held_when_it_stops():
    execution = held(active())
    assert (execution.status, execution.held, execution.reason) == (Status.ACTIVE, True, None)
    assert patch_of(changes_of(active(), facts.Hold)) == {"held": True}
    assert held(active()) == execution


def test_running_code_may_finish_under_a_hold():
    assert after(held(active()), facts.Complete).status is Status.SUCCEEDED


def test_running_code_may_suspend_under_a_hold_and_wakes_into_it():
    execution = after(held(active()), facts.Suspend)
    assert (execution.status, execution.held) == (Status.SUSPENDED, True)
    woken = after(execution, facts.EventSent)
    assert (woken.status, woken.reason) == (Status.BLOCKED, "operator")


def test_a_suspended_execution_goes_on_waiting_for_what_it_waits_for():
    execution = held(suspended())
    assert (execution.status, execution.reason, execution.waits) == (Status.SUSPENDED, "event:plan", "event:plan")


@pytest.mark.parametrize("name", OPEN_ONES)
def test_a_hold_and_its_release_leave_their_trail(name: str):
    before = OPEN_ONES[name]()
    for execution, kind, trail in ((before, facts.Hold, event.HOLD), (held(before), facts.Release, event.RELEASE)):
        changes = changes_of(execution, kind, change_id="op-1")
        assert changes.guards == (as_it_was(execution),)
        assert insert_of(changes, Event).name == trail
        assert additions_of(changes) == [Add(KEY, "inbox", 1)]


@pytest.mark.parametrize("make", [delayed, dependent, active, suspended, sleeping, backing_off])
def test_a_release_puts_back_what_the_hold_took(make):
    before = make()
    released = after(held(before), facts.Release)
    assert released == _heard_twice(before)


def test_a_release_of_a_held_ready_execution_makes_it_ready_again():
    changes = changes_of(held(ready()), facts.Release)
    assert changes.rings == ("lane:shop:default",)
    released = after(held(ready()), facts.Release, now=NOW + 5)
    assert (released.status, released.reason, released.ready_at) == (Status.READY, None, NOW + 5)


def test_a_release_of_what_still_waits_rings_no_lane():
    assert changes_of(held(delayed()), facts.Release).rings == ("home",)


def test_holding_twice_is_holding_once_and_so_is_releasing():
    assert refusal_of(held(ready()), facts.Hold).code is Code.ALREADY
    assert refusal_of(held(active()), facts.Hold).code is Code.ALREADY
    assert refusal_of(active(), facts.Release).code is Code.ALREADY
    assert refusal_of(delayed(), facts.Release).code is Code.ALREADY


def test_a_ready_execution_was_released_before_or_never_held():
    assert refusal_of(ready(), facts.Release).code is Code.ALREADY


@pytest.mark.parametrize("name", ENDED_ONES)
def test_what_has_ended_cannot_be_held_or_released(name: str):
    assert refusal_of(ENDED_ONES[name](), facts.Hold).code is Code.TERMINAL
    assert refusal_of(ENDED_ONES[name](), facts.Release).code is Code.TERMINAL


def _heard_twice(execution: Execution) -> Execution:
    return msgspec.structs.replace(execution, inbox=execution.inbox + 2)
