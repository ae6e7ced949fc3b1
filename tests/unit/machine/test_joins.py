"""Joins: what a number of answers means to a member."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.machine.joins import Count, counted, runs, settled_by, spares_siblings
from outlast.model.flow import EdgeAnswer, Member, OnFailure, OnSatisfied, Settled
from outlast.model.status import Status

OPEN, SATISFIED, IMPOSSIBLE = Settled.OPEN, Settled.SATISFIED, Settled.IMPOSSIBLE


def member(upstreams: int, needed: int, **fields: Any) -> Member:
    return Member(
        namespace="n",
        execution="f/m",
        flow="f",
        name="m",
        upstreams=upstreams,
        needed=needed,
        change_id="c",
        **fields,
    )


def edge(upstream: str, answer: Status) -> EdgeAnswer:
    return EdgeAnswer(namespace="n", execution="f/m", upstream=upstream, answer=answer, answered_at=1, change_id="e")


@pytest.mark.parametrize(
    "upstreams, needed, answered, succeeded, settled",
    [
        (3, 3, 0, 0, OPEN),
        (3, 3, 2, 2, OPEN),
        (3, 3, 3, 3, SATISFIED),
        (3, 3, 1, 0, IMPOSSIBLE),
        (3, 1, 1, 1, SATISFIED),
        (3, 1, 2, 0, OPEN),
        (3, 1, 3, 0, IMPOSSIBLE),
        (5, 3, 3, 3, SATISFIED),
        (5, 3, 4, 2, OPEN),
        (5, 3, 3, 0, IMPOSSIBLE),
        (5, 3, 5, 3, SATISFIED),
    ],
)
def test_a_join_is_settled_as_early_as_it_can_be(
    upstreams: int, needed: int, answered: int, succeeded: int, settled: Settled
):
    assert settled_by(member(upstreams, needed), Count(answered, succeeded, "")) is settled


def test_one_that_runs_on_failure_waits_for_all_of_its_upstreams():
    cleans_up = member(3, 3, on_failure=OnFailure.RUN)
    assert settled_by(cleans_up, Count(2, 1, "")) is OPEN
    assert settled_by(cleans_up, Count(3, 2, "")) is IMPOSSIBLE
    assert runs(cleans_up, IMPOSSIBLE, [edge("a", Status.SKIPPED)])
    assert runs(cleans_up, SATISFIED, [])
    assert not runs(cleans_up, OPEN, [])
    assert not runs(member(3, 3), IMPOSSIBLE, [edge("a", Status.FAILED)])


@pytest.mark.parametrize("answer", [Status.FAILED, Status.CANCELLED, Status.EXPIRED, Status.SKIPPED])
def test_one_that_waits_for_its_turn_runs_unless_who_had_it_was_skipped(answer: Status):
    waits_for_its_turn = member(1, 1, on_failure=OnFailure.TURN)
    assert settled_by(waits_for_its_turn, Count(1, 0, "")) is IMPOSSIBLE
    assert runs(waits_for_its_turn, IMPOSSIBLE, [edge("a", answer)]) == (answer is not Status.SKIPPED)
    assert runs(waits_for_its_turn, SATISFIED, [edge("a", Status.SUCCEEDED)])


def test_only_successes_count_for_it():
    seen = member(5, 3, answered=1, succeeded=1, drained="f/a")
    more = counted(seen, [edge("f/b", Status.SKIPPED), edge("f/c", Status.SUCCEEDED), edge("f/d", Status.CANCELLED)])
    assert more == Count(4, 2, "f/d")
    assert counted(seen, []) == Count(1, 1, "f/a")


def test_siblings_are_spared_if_some_are_left_and_nobody_wants_them_to_run():
    cancels = member(3, 1, on_satisfied=OnSatisfied.CANCEL_REMAINING)
    assert spares_siblings(cancels, SATISFIED, Count(1, 1, ""))
    assert not spares_siblings(cancels, SATISFIED, Count(3, 3, ""))
    assert not spares_siblings(cancels, IMPOSSIBLE, Count(2, 0, ""))
    assert not spares_siblings(member(3, 1), SATISFIED, Count(1, 1, ""))
