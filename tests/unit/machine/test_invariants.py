"""What is always true of an execution. Each invariant is broken here once, and must complain."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlast.errors import CorruptState
from outlast.machine.invariants import check, violations
from outlast.model.execution import Execution
from outlast.model.status import Status
from tests.unit.machine.build import (
    ENDED_ONES,
    NOW,
    OPEN_ONES,
    active,
    delayed,
    dependent,
    failed,
    held,
    ready,
    sleeping,
    suspended,
)


def but(execution: Execution, **fields: Any) -> Execution:
    return msgspec.structs.replace(execution, **fields)


@pytest.mark.parametrize("name", [*OPEN_ONES, *ENDED_ONES])
def test_what_the_machine_makes_is_sound(name: str):
    execution = (OPEN_ONES | ENDED_ONES)[name]()
    assert violations(execution) == []
    assert check(execution) is execution


BROKEN: list[tuple[Execution, str]] = [
    # A lease: exactly the active have one, and all of it.
    (but(active(), worker=None), "exactly the active hold a lease: worker"),
    (but(ready(), worker="worker-1"), "exactly the active hold a lease: worker"),
    (but(failed(), worker="worker-1"), "exactly the active hold a lease: worker"),
    (but(active(), claim_id=None), "exactly the active hold a lease: claim_id"),
    (but(suspended(), claim_id="c"), "exactly the active hold a lease: claim_id"),
    (but(active(), claimed_at=None), "exactly the active hold a lease: claimed_at"),
    (but(delayed(), claimed_at=NOW), "exactly the active hold a lease: claimed_at"),
    (but(suspended(), attempt_deadline_at=NOW), "only an active attempt can time out"),
    (but(active(), epoch=0), "a lease has an epoch"),
    (but(active(), attempt_open=False), "an active execution has an open attempt"),
    # Times and order.
    (but(ready(), ready_at=None), "exactly the ready are in the order of claims"),
    (but(active(), ready_at=NOW), "exactly the ready are in the order of claims"),
    (but(failed(), finished_at=None), "exactly the ended have an end"),
    (but(ready(), finished_at=NOW), "exactly the ended have an end"),
    (but(ready(), purge_at=NOW), "retention counts from the end"),
    (but(ready(), wake_at=NOW), "a ready execution has no timer"),
    (but(active(), wake_at=NOW), "an active execution has no timer"),
    (but(failed(), wake_at=NOW), "an ended execution has no timer"),
    (but(failed(), deadline_at=NOW), "an ended execution has no timer"),
    (but(delayed(), wake_at=None), "exactly a delay and a backoff have a wake time"),
    (but(dependent(), wake_at=NOW), "exactly a delay and a backoff have a wake time"),
    # Counters.
    (but(ready(), attempt=2), "attempts are failures and crashes, plus one"),
    (but(ready(), failures=1), "attempts are failures and crashes, plus one"),
    (but(ready(), crashes=1), "attempts are failures and crashes, plus one"),
    (but(failed(), attempt=3), "at most one attempt of an ended execution is not counted"),
    (but(failed(), attempt=0), "at most one attempt of an ended execution is not counted"),
    (but(ready(), failures=-1, attempt=0), "counters do not go below zero"),
    (but(ready(), crashes=-1, attempt=0), "counters do not go below zero"),
    (but(ready(), ran_ms=-1), "counters do not go below zero"),
    (but(ready(), journal_generation=2), "a journal is of this generation or an earlier one"),
    (but(ready(), journal_generation=0), "a journal is of this generation or an earlier one"),
    # Reasons and waits.
    (but(suspended(), reason="moonlight"), "a reason of the vocabulary, not 'moonlight'"),
    (but(ready(), reason="retry"), "a ready execution waits for nothing but a worker"),
    (but(ready(), waits="retry"), "a ready execution waits for nothing but a worker"),
    (but(active(), reason="timer"), "an active execution waits for nothing"),
    (but(active(), waits="timer"), "an active execution waits for nothing"),
    (but(failed(), reason="timer"), "an ended execution waits for nothing"),
    (but(failed(), waits="timer"), "an ended execution waits for nothing"),
    (but(suspended(), waits=""), "a suspended execution has something that can wake it"),
    (but(sleeping(), wake_at=None), "a suspended execution has something that can wake it"),
    (but(suspended(), reason=None), "a suspended execution says why"),
    (but(suspended(), attempt_open=False), "a suspension is part of an attempt"),
    (but(failed(), attempt_open=True), "an ended execution has no open attempt"),
    (but(dependent(), waits=""), "a blocked execution waits for something or is held"),
    (but(dependent(), waits="event:plan"), "cannot be blocked on 'event:plan'"),
    (but(dependent(), reason="delay"), "the reason says what it is blocked on"),
    (but(held(dependent()), reason="dependencies"), "the reason says what it is blocked on"),
    # Holds.
    (but(ready(), held=True), "a held execution is not ready"),
    (but(failed(), held=True), "an ended execution is not held"),
]


@pytest.mark.parametrize("execution, complaint", BROKEN, ids=[text for _, text in BROKEN])
def test_what_is_broken_is_named(execution: Execution, complaint: str):
    assert complaint in violations(execution)
    with pytest.raises(CorruptState, match="order-42"):
        check(execution)


def test_every_broken_invariant_is_named_at_once():
    broken = but(active(), worker=None, wake_at=NOW)
    with pytest.raises(CorruptState) as caught:
        check(broken)
    assert str(caught.value) == (
        "execution 'order-42' (active): exactly the active hold a lease: worker; an active execution has no timer"
    )


@pytest.mark.parametrize("status", Status)
def test_every_status_has_invariants_of_its_own(status: Status):
    """A record that is wrong in every way is noticed in every status."""
    wrong = but(ready(), status=status, worker="w", wake_at=NOW, waits="nonsense", reason="nonsense", held=True)
    assert len(violations(wrong)) >= 3
