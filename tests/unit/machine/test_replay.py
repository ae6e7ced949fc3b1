"""The replay cursor: recorded outcomes come in their order, a retry may loosen it, and nothing is delivered twice."""

from __future__ import annotations

import msgspec

from outlast.machine.replay import BESIDE, GIVEN_UP, Replay, beside, key_of, note_of
from outlast.model.journal import (
    BEGAN,
    CANCEL,
    CANCELLED,
    FAILED,
    ORIGIN,
    PATCH,
    RETRY,
    STEP,
    SUCCEEDED,
    UNDO_SCOPE,
    UNWIND,
    UPDATE,
    UPDATE_SCOPE,
    WAIT,
    JournalEntry,
    Origin,
)


def entry(
    name: str,
    position: int,
    *,
    op: str = STEP,
    outcome: str = SUCCEEDED,
    scope: str = "",
    occurrence: int = 1,
    value: bytes | None = None,
) -> JournalEntry:
    return JournalEntry(
        namespace="default",
        execution="it",
        generation=1,
        scope=scope,
        name=name,
        occurrence=occurrence,
        op=op,
        outcome=outcome,
        value=value,
        epoch=1,
        position=position,
        recorded_at=position,
        change_id=str(position),
    )


def replay(*entries: JournalEntry, retried: bool = False) -> Replay:
    cursor = Replay()
    cursor.load(entries, retried=retried)
    return cursor


A, B, C = ("", "a", 1), ("", "b", 1), ("", "c", 1)


def taken(cursor: Replay, *called: tuple[str, str, int]) -> str | None:
    found = cursor.take(set(called))
    return None if found is None else found.name


def test_outcomes_come_in_the_order_in_which_they_were_recorded():
    cursor = replay(entry("a", 0), entry("b", 1))
    assert taken(cursor, B) is None, "a was first"
    assert (cursor.head.name, bool(cursor)) == ("a", True)
    assert [taken(cursor, A, B), taken(cursor, A, B), taken(cursor, A, B)] == ["a", "b", None]
    assert not cursor


def test_a_cancel_is_delivered_where_it_was_observed():
    cursor = replay(entry("a", 0), entry("outlast:cancel", 1, op=CANCEL))
    assert cursor.cancelled
    assert ("", "outlast:cancel", 1) not in cursor.recorded
    assert [taken(cursor, A), taken(cursor)] == ["a", "outlast:cancel"]


def test_a_cancel_that_is_new_comes_last():
    cursor = replay(entry("a", 0))
    assert not cursor.cancelled
    cursor.hear(entry("outlast:cancel", 1, op=CANCEL))
    assert cursor.cancelled
    assert [taken(cursor, A), taken(cursor)] == ["a", "outlast:cancel"]


def test_what_the_code_gave_up_is_passed_over():
    cursor = replay(entry("a", 0), entry("b", 1))
    cursor.pass_over(A)
    assert taken(cursor, B) == "b"
    cursor = replay(entry("a", 0))
    cursor.pass_over(A)
    assert (taken(cursor), bool(cursor)) == (None, False)


def test_what_stands_beside_a_call_is_not_delivered():
    tried = entry("a", 0, op=RETRY, outcome=FAILED, scope="1.~2", value=b"5000")
    waits = entry("b", 1, op=WAIT, outcome=BEGAN, scope="~1", occurrence=0, value=msgspec.json.encode(7_000))
    named = entry("cool", 2, op=WAIT, outcome=BEGAN, scope=BESIDE, occurrence=0, value=None)
    cursor = replay(tried, waits, named)
    assert not cursor
    assert cursor.tries == {("1.", "a", 2): [tried]}
    assert cursor.wake_times == {B: 7_000, (BESIDE, "cool", 0): 0}
    assert key_of(waits) == beside(B, 0)


def test_an_outcome_that_came_when_the_call_was_given_up_is_not_delivered():
    entries = [entry("a", 0), entry("a", 1, outcome=CANCELLED, scope=GIVEN_UP), entry("b", 2)]
    cursor = replay(*entries)
    assert set(cursor.given_up) == {A}
    assert taken(cursor, A, B) == "b"
    assert taken(replay(*entries, retried=True), A, B) == "a", "after a retry it may be wanted"


def test_code_that_ends_may_leave_behind_what_it_called_gave_up_or_was_cancelled_by():
    cursor = replay(entry("a", 0), entry("b", 1), entry("outlast:cancel", 2, op=CANCEL))
    cursor.pass_over(B)
    cursor.code_ended({A})
    assert not cursor
    cursor = replay(entry("a", 0))
    cursor.code_ended(set())
    assert cursor, "the code did not do what it did"


# ---- after a retry ------------------------------------------------------------------------------------------------


def test_without_a_retry_the_order_binds():
    cursor = replay(entry("a", 0))
    assert not cursor.loosens({B}, can_move=False)


def test_behind_a_gap_what_is_new_need_not_wait_for_the_rest():
    cursor = replay(entry("a", 0), entry("c", 2))
    assert not cursor.loosens({B}, can_move=True), "the gap is not reached"
    assert taken(cursor, A) == "a"
    assert not cursor.loosens(set(), can_move=True), "nothing new is awaited"
    assert cursor.loosens({B}, can_move=True)
    assert cursor.loose
    assert (taken(cursor, B), bool(cursor)) == (None, True)
    cursor.call(C)
    assert taken(cursor, C) == "c"
    cursor.code_ended(set())
    assert not cursor


def test_a_retried_execution_that_does_not_get_on_loosens():
    cursor = replay(entry("a", 0), entry("b", 1), entry("outlast:cancel", 2, op=CANCEL), entry("c", 3), retried=True)
    assert not cursor.loosens({C}, can_move=True)
    assert cursor.loosens({C}, can_move=False)
    assert taken(cursor, C) == "outlast:cancel", "in the order of the journal, among what is wanted"
    assert taken(cursor, C) == "c"
    cursor.call(C)
    assert taken(cursor, C) is None, "once"
    cursor.call(B)
    cursor.call(B)
    assert taken(cursor, B) == "b"
    assert taken(cursor, B) is None
    cursor.call(A)
    assert taken(cursor) is None, "given up meanwhile"
    assert not cursor


def test_what_escaped_is_taken_out_with_what_stands_beside_it():
    cursor = replay(
        entry("a", 0, op=RETRY, outcome=FAILED, scope="~1", occurrence=1, value=b"1"),
        entry("b", 1, op=WAIT, outcome=BEGAN, scope="~1", occurrence=0, value=b"1"),
        entry("a", 2, outcome=FAILED),
        entry("b", 3, outcome=FAILED),
    )
    assert cursor.escaped([A, C]) == (A, ("~1", "a", 1)), "c is not recorded"
    assert cursor.escaped([B]) == (B, ("~1", "b", 0))


def test_ten_thousand_outcomes_behind_a_gap_are_found_without_a_search():
    count = 10_000
    entries = [entry("a", n, occurrence=n) for n in range(1, count)]
    cursor = replay(*entries)
    assert cursor.loosens({B}, can_move=False)
    for n in reversed(range(1, count)):
        cursor.call(("", "a", n))
        found = cursor.take({("", "a", n)})
        assert found is not None
        assert found.occurrence == n
    assert not cursor


def test_patches_are_known_and_not_delivered():
    cursor = replay(entry("outlast:patches", 0, op=PATCH, value=b'["fraud-check"]'), entry("a", 1))
    assert cursor.patches == {"fraud-check"}
    assert [taken(cursor, A), bool(cursor)] == ["a", False]


def test_what_is_undone_is_known_and_no_code_waits_for_it():
    unwind = entry("outlast:unwind", 1, op=UNWIND)
    cursor = replay(entry("a", 0), unwind, entry("refund", 2, scope=UNDO_SCOPE))
    assert cursor.unwound == unwind
    assert (UNDO_SCOPE, "refund", 1) in cursor.recorded
    assert [taken(cursor, A), bool(cursor)] == ["a", False]


def updated(name: str, position: int) -> JournalEntry:
    return entry(name, position, op=UPDATE, scope=UPDATE_SCOPE, value=b"1")


def test_an_update_comes_where_it_was_accepted_and_no_operation_is_called_for_it():
    cursor = replay(entry("a", 0), updated("add", 1), entry("b", 2))
    assert taken(cursor) is None, "what was recorded before it comes first"
    assert [taken(cursor, A), taken(cursor, A), taken(cursor, A)] == ["a", "add", None]
    assert (UPDATE_SCOPE, "add", 1) not in cursor.recorded


def test_code_that_ends_before_an_update_that_it_had_takes_another_way():
    cursor = replay(entry("a", 0), updated("add", 1))
    assert taken(cursor, A) == "a"
    cursor.code_ended(())
    assert cursor
    assert cursor.head.name == "add"


def test_updates_come_at_once_where_a_retried_execution_does_not_get_on():
    cursor = replay(entry("b", 1), updated("add", 2), retried=True)
    assert taken(cursor) is None
    assert cursor.loosens([A], can_move=False)
    assert taken(cursor) == "add"


# ---- a cancel before what nobody has read -------------------------------------------------------------------------


def test_the_end_of_the_last_wait_is_unread_if_nothing_stands_behind_it():
    woken = entry("plan", 1, op="receive")
    assert replay(entry("a", 0), woken).unread() == woken
    assert replay(woken, entry("a", 2)).unread() is None
    assert replay(entry("a", 0)).unread() is None
    assert replay().unread() is None


def test_what_is_noted_behind_the_end_of_a_wait_was_made_of_it():
    noted = entry("a", 2, scope=f"{BESIDE}1", op=RETRY)
    assert replay(entry("plan", 1, op="receive"), noted).unread() is None


def test_a_cancel_comes_before_what_is_unread_and_behind_all_else():
    cursor = replay(entry("a", 0), entry("plan", 1, op="receive"))
    cursor.hear(entry("outlast:cancel", 1, op=CANCEL))
    assert cursor.cancelled
    waits = ("", "plan", 1)
    assert [cursor.take({A, waits}).op for _ in range(3)] == [STEP, CANCEL, "receive"]  # pyright: ignore[reportOptionalMemberAccess]
    cursor = replay(entry("a", 0))
    cursor.hear(entry("outlast:cancel", 1, op=CANCEL))
    assert [cursor.take({A}).op for _ in range(2)] == [STEP, CANCEL]  # pyright: ignore[reportOptionalMemberAccess]


def test_a_fork_knows_who_recorded_what_is_next():
    first, second = Origin("one", 3, 7), Origin("two", 1, None)
    marks = [
        entry("outlast:origin", 1, op=ORIGIN, value=msgspec.json.encode(first)),
        entry("outlast:origin", 3, op=ORIGIN, value=msgspec.json.encode(second), occurrence=2),
    ]
    cursor = replay(entry("a", 0), marks[0], entry("b", 2), marks[1], entry("c", 4), retried=True)
    assert (cursor.began_at, cursor.origin) == (7, first)
    seen = [(taken(cursor, A, B, C), cursor.origin) for _ in range(3)]
    assert seen == [("a", second), ("b", None), ("c", None)]
    loose = replay(
        entry("a", 0), entry("b", 1), entry("outlast:origin", 2, op=ORIGIN, value=marks[0].value), retried=True
    )
    assert loose.loosens({B}, can_move=False)
    assert (taken(loose, B), loose.origin) == ("b", first)
    assert replay(entry("a", 0)).origin is None


def test_the_note_that_a_call_was_given_up_has_a_key_of_its_own():
    assert note_of(("0-1", "charge", 2)) == (f"0-1{GIVEN_UP}", "charge", 2)
