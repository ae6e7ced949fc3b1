"""Routes, waits, tags, statuses and reasons."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.execution import Execution, Route, execution_key, parse_route, route_of, suspect_route
from outlast.model.retry import RetryPolicy
from outlast.model.status import OPEN, TERMINAL, TIMED_REASONS, Reason, Status, is_reason


def execution(**fields: object) -> Execution:
    usual: dict[str, object] = {"namespace": "shop", "id": "order-42", "workflow": "checkout", "version": "1"}
    usual |= {"lane": "default", "route": "checkout|1|", "input_digest": "d", "status": Status.READY, "created_at": 1}
    return Execution(**{**usual, **fields})  # pyright: ignore[reportArgumentType]


# ---- routes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "requires, route",
    [
        ((), "checkout|1|"),
        (("gpu",), "checkout|1|gpu"),
        (("gpu", "eu"), "checkout|1|eu,gpu"),
    ],
)
def test_a_route_says_what_a_worker_must_offer(requires: tuple[str, ...], route: str):
    assert route_of("checkout", "1", requires) == route
    assert parse_route(route) == Route("checkout", "1", frozenset(requires), suspect=False)


words = st.text(st.characters(exclude_characters="|, ", codec="utf-8"), min_size=1, max_size=8)


@given(words, words, st.sets(words, max_size=4))
def test_every_route_can_be_read_back(workflow: str, version: str, requires: set[str]):
    route = route_of(workflow, version, tuple(requires))
    assert parse_route(route) == Route(workflow, version, frozenset(requires), suspect=False)


@given(words, words)
def test_a_route_is_marked_as_suspect_and_cleared_again(workflow: str, version: str):
    route = route_of(workflow, version, ())
    marked = suspect_route(route, suspect=True)
    assert parse_route(marked) == parse_route(route)._replace(suspect=True)
    assert suspect_route(marked, suspect=True) == marked
    assert suspect_route(marked, suspect=False) == route


# ---- what an execution's texts mean -------------------------------------------------------------------------------


def test_waits_are_read_back_one_by_one():
    assert execution(waits="event:a\ndeferred:b, c").waits_for == ("event:a", "deferred:b, c")
    assert execution().waits_for == ()


def test_an_execution_without_a_policy_is_not_retried():
    assert execution().retry_policy == RetryPolicy()
    assert execution(retry=RetryPolicy(max_attempts=3).encode()).retry_policy.max_attempts == 3


def test_tags_are_read_back():
    assert execution(tags='{"tier":"gold"}').tag_map == {"tier": "gold"}
    assert execution().tag_map == {}


def test_an_execution_is_found_by_namespace_and_id():
    assert execution().key == execution_key("shop", "order-42")
    assert str(execution().key) == "execution(shop, order-42)"


# ---- statuses and reasons -----------------------------------------------------------------------------------------


def test_a_status_is_open_or_terminal():
    assert TERMINAL | OPEN == set(Status)
    assert not TERMINAL & OPEN
    assert [status for status in Status if status.terminal] == [
        "succeeded",
        "failed",
        "cancelled",
        "expired",
        "skipped",
    ]


@pytest.mark.parametrize(
    "reason",
    [
        Reason.DEPENDENCIES,
        Reason.OPERATOR,
        *sorted(TIMED_REASONS),
        Reason.event("plan"),
        Reason.deferred("approval"),
        Reason.child("order-42/ship"),
        Reason.quota("stripe"),
        Reason.capability("gpu"),
        "budget:tokens",
    ],
)
def test_the_vocabulary_knows_its_reasons(reason: str):
    assert is_reason(reason)


@pytest.mark.parametrize("text", ["", "moonlight", "Timer", "event", "timer:x"])
def test_other_words_are_no_reasons(text: str):
    assert not is_reason(text)
