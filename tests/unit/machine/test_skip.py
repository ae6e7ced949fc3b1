"""Skip: the dependencies of a blocked execution can no longer be satisfied."""

from __future__ import annotations

import pytest

from outlast.machine import facts
from outlast.machine.changes import Code
from outlast.model.attempt import Attempt
from outlast.model.completion import Completion
from outlast.model.outbox import Delivery
from outlast.model.status import Status
from tests.unit.machine.build import (
    active,
    after,
    as_it_was,
    changes_of,
    delayed,
    dependent,
    held,
    insert_of,
    patch_of,
    ready,
    refusal_of,
    skipped,
    suspended,
)


def test_a_skip_ends_what_waits_for_dependencies_with_its_cause():
    before = dependent(parent="cart-1")
    changes = changes_of(before, facts.Skip, cause="upstream order-42/pack failed")
    assert changes.guards == (as_it_was(before),)
    completion = insert_of(changes, Completion)
    assert (completion.status, completion.cause) == (Status.SKIPPED, "upstream order-42/pack failed")
    assert insert_of(changes, Delivery).target == "cart-1"
    assert patch_of(changes, Attempt.KIND) == {}


def test_a_held_execution_is_skipped_too():
    ended = after(held(dependent()), facts.Skip)
    assert (ended.status, ended.held) == (Status.SKIPPED, False)


def test_what_is_blocked_on_something_else_is_not_skipped():
    refusal = refusal_of(delayed(), facts.Skip)
    assert (refusal.code, refusal.message) == (Code.NOT_ALLOWED, "waits for delay, not for dependencies")
    assert refusal_of(held(ready()), facts.Skip).code is Code.NOT_ALLOWED


@pytest.mark.parametrize("make", [ready, active, suspended])
def test_what_has_begun_is_not_skipped(make):
    assert refusal_of(make(), facts.Skip).code is Code.NOT_ALLOWED


def test_skipping_twice_is_skipping_once():
    assert refusal_of(skipped(), facts.Skip).code is Code.ALREADY
