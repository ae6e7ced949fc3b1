"""The deadline: wall time of the whole execution, wherever it is."""

from __future__ import annotations

import pytest

from outlast.machine import facts
from outlast.machine.changes import Code, TimeReached
from outlast.model.attempt import Attempt, Outcome
from outlast.model.completion import Completion
from outlast.model.status import Status
from tests.unit.machine.build import (
    KEY,
    OPEN_ONES,
    after,
    as_it_was,
    changes_of,
    held,
    insert_of,
    patch_of,
    refusal_of,
    succeeded,
)


@pytest.mark.parametrize("name", OPEN_ONES)
def test_a_deadline_ends_whatever_has_not_ended(name: str):
    before = OPEN_ONES[name](deadline_ms=60_000)
    changes = changes_of(before, facts.DeadlinePassed)
    assert changes.guards == (as_it_was(before), TimeReached(KEY, "deadline_at"))
    completion = insert_of(changes, Completion)
    assert (completion.status, completion.cause) == (Status.EXPIRED, "deadline")
    ended = after(before, facts.DeadlinePassed)
    assert (ended.failures, ended.crashes) == (before.failures, before.crashes)


@pytest.mark.parametrize("name", OPEN_ONES)
def test_an_open_attempt_ends_with_it(name: str):
    before = OPEN_ONES[name](deadline_ms=60_000)
    attempt = patch_of(changes_of(before, facts.DeadlinePassed), Attempt.KIND)
    assert attempt.get("outcome") == (Outcome.TIMED_OUT if before.attempt_open else None)


def test_a_hold_does_not_stop_the_clock():
    ended = after(held(OPEN_ONES["ready"](deadline_ms=60_000)), facts.DeadlinePassed)
    assert (ended.status, ended.held) == (Status.EXPIRED, False)


@pytest.mark.parametrize("name", OPEN_ONES)
def test_without_a_deadline_nothing_passes(name: str):
    refusal = refusal_of(OPEN_ONES[name](), facts.DeadlinePassed)
    assert (refusal.code, refusal.message) == (Code.NOT_DUE, "has no deadline")


def test_what_ended_in_time_does_not_expire():
    assert refusal_of(succeeded(deadline_ms=60_000), facts.DeadlinePassed).code is Code.TERMINAL
