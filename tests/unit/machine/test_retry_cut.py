"""Which journal entries a retry runs again, and in which order they leave: the end must be found again half-way."""

from __future__ import annotations

import pytest
from msgspec import structs

from outlast import limits
from outlast.machine import retry_cut
from outlast.model.journal import (
    BEGAN,
    CANCEL,
    CANCELLED,
    FAILED,
    RECEIVE,
    RETRY,
    SLEEP,
    START,
    STEP,
    SUCCEEDED,
    WAIT,
    JournalEntry,
)


def entry(position: int, outcome: str = SUCCEEDED, *, op: str = STEP) -> JournalEntry:
    return JournalEntry(
        namespace="shop",
        execution="order-42",
        generation=1,
        scope="",
        name=f"s{position}",
        occurrence=1,
        op=op,
        outcome=outcome,
        value=None,
        epoch=1,
        position=position,
        recorded_at=0,
        change_id="c",
    )


def key(position: int) -> tuple[str, str, int]:
    return ("", f"s{position}", 1)


def test_what_was_given_up_leaves_first_and_the_first_failure_last():
    """A replay of what is left meets the same failure, and gives the same up again."""
    journal = [
        entry(0),
        entry(1, FAILED, op=RETRY),
        entry(2, FAILED),
        entry(3, CANCELLED),
        entry(4, FAILED),
        entry(5, CANCELLED),
        entry(6, op=START),
        entry(7, FAILED, op=START),
    ]
    left = retry_cut.escaped(journal, {key(n) for n in range(1, 8)})
    assert [one.position for one in left] == [6, 5, 3, 1, 7, 4, 2]


def test_the_cancel_and_what_it_cut_short_run_again_and_the_cancel_leaves_last():
    journal = [entry(0, CANCELLED), entry(1, op=CANCEL), entry(2, CANCELLED), entry(3, FAILED)]
    assert [one.position for one in retry_cut.cut_short(journal)] == [2, 1]


def test_without_a_cancel_nothing_was_cut_short():
    assert retry_cut.cut_short([entry(0), entry(1, CANCELLED)]) == []


def wait(position: int, scope: str, name: str) -> JournalEntry:
    return structs.replace(entry(position, BEGAN, op=WAIT), scope=scope, name=name, occurrence=0)


def test_what_has_no_outcome_waits_anew_but_for_named_timers():
    journal = [
        wait(0, "~1", "s1"),
        entry(1, op=SLEEP),
        wait(2, "~1", "s3"),
        structs.replace(entry(3, CANCELLED, op=RECEIVE), scope="!"),
        wait(4, "~1", "s5"),
        wait(5, "~", "cooling-off"),
        wait(6, "1.~2", "s1"),
    ]
    assert [one.position for one in retry_cut.still_waiting(journal)] == [6, 4, 2]


def test_how_long_it_waits_leaves_before_the_failures():
    journal = [wait(0, "~1", "s1"), entry(1, FAILED, op=RECEIVE), wait(2, "~1", "s9")]
    assert [one.position for one in retry_cut.in_order(journal)] == [2, 0, 1]


def test_entries_are_found_by_their_places():
    journal = [entry(0), entry(7, FAILED), entry(8, CANCELLED), entry(9)]
    bits = retry_cut.places_of([journal[1], journal[2]])
    assert retry_cut.places_in(bits) == {7, 8}
    assert [one.position for one in retry_cut.at_places(journal, retry_cut.places_in(bits))] == [8, 7]
    assert retry_cut.places_in(retry_cut.places_of([])) == frozenset()


def test_the_places_of_the_longest_journal_fit_into_a_failure():
    last = limits.JOURNAL_MAX_ENTRIES - 1
    bits = retry_cut.places_of([entry(0), entry(last)])
    assert retry_cut.places_in(bits) == {0, last}
    assert len(bits) * 4 / 3 < limits.FAILURE_MAX_BYTES / 4


@pytest.mark.parametrize(
    "count, ahead, last",
    [
        (0, [], 0),
        (1, [], 1),
        (retry_cut.PART_MAX, [], retry_cut.PART_MAX),
        (retry_cut.PART_MAX + 1, [1], retry_cut.PART_MAX),
        (3_000, [retry_cut.PART_MAX, retry_cut.PART_MAX, 150], retry_cut.PART_MAX),
    ],
)
def test_what_one_change_does_not_hold_leaves_ahead_in_parts(count: int, ahead: list[int], last: int):
    entries = [entry(number) for number in range(count)]
    parts, rest = retry_cut.parts(entries)
    assert ([len(part) for part in parts], len(rest)) == (ahead, last)
    assert [one for part in (*parts, rest) for one in part] == [key(number) for number in range(count)]
