"""The attempt: what its code may do next in each state, and what becomes of it."""

from __future__ import annotations

from itertools import product

import pytest

from outlast.errors import CorruptState
from outlast.machine.attempt import (
    MOVES,
    AttemptMachine,
    Called,
    CodeEnd,
    IdleCode,
    Input,
    Note,
    NoWayOn,
    Replayed,
    State,
    Suspension,
    Unmet,
    when_idle,
)
from outlast.model.journal import (
    CANCEL,
    CANCELLED,
    RECEIVE,
    START,
    STEP,
    SUCCEEDED,
    UNWIND,
    JournalEntry,
    OperationKey,
)

CHARGE, SHIP, LABEL = ("", "charge", 1), ("", "ship", 1), ("", "label", 1)
Machine = AttemptMachine[str, str, None]
"""Its operations and outcomes are known by their names."""


def entry(key: OperationKey, position: int, *, op: str = STEP, outcome: str = SUCCEEDED) -> JournalEntry:
    return JournalEntry(
        namespace="default",
        execution="it",
        generation=1,
        scope=key[0],
        name=key[1],
        occurrence=key[2],
        op=op,
        outcome=outcome,
        value=None,
        epoch=1,
        position=position,
        recorded_at=position,
        change_id=str(position),
    )


def begun(*entries: JournalEntry, retried: bool = False) -> Machine:
    machine = Machine()
    machine.replay.load(entries, retried=retried)
    machine.begin()
    return machine


def called(machine: Machine, *keys: OperationKey) -> list[Called]:
    return [machine.call(key[1], key, STEP) for key in keys]


def suspending() -> Machine:
    machine = begun()
    machine.suspend()
    return machine


def unwinding() -> Machine:
    machine = begun()
    assert machine.code_ended(CodeEnd.CANCELLED, undos=True)
    return machine


def ending() -> Machine:
    machine = begun()
    assert machine.finish(CodeEnd.COMPLETED, has_children=True)
    return machine


def ended() -> Machine:
    machine = begun()
    assert machine.leave()
    return machine


def loose() -> Machine:
    """A retry took the failure of `charge` out of the journal: what is behind it may not be called any more."""
    machine = begun(entry(SHIP, 1), entry(LABEL, 2), retried=True)
    called(machine, CHARGE)
    assert machine.next_recorded(can_move=False) is Replayed.NOTHING
    return machine


EVERY_ONE = {
    State.READING: Machine,
    State.REPLAYING: lambda: begun(entry(CHARGE, 0)),
    State.LOOSE: loose,
    State.LIVE: begun,
    State.SUSPENDING: suspending,
    State.UNWINDING: unwinding,
    State.ENDING: ending,
    State.ENDED: ended,
}


# ---- the table ----------------------------------------------------------------------------------------------------


def test_there_is_a_row_for_every_state():
    assert set(MOVES) == set(State) == set(EVERY_ONE)


@pytest.mark.parametrize("state", list(State))
def test_each_state_is_reached_by_its_inputs(state: State):
    assert EVERY_ONE[state]().state is state


@pytest.mark.parametrize("state", list(State))
def test_an_attempt_can_be_left_in_every_state_and_only_once(state: State):
    machine = EVERY_ONE[state]()
    assert machine.leave() is (state is not State.ENDED)
    assert machine.over
    assert not machine.leave()


def test_nothing_leads_out_of_the_end():
    assert set().union(*MOVES[State.ENDED].values()) == {State.ENDED}


def test_a_move_that_is_not_in_the_table_is_a_bug():
    with pytest.raises(CorruptState, match="begun would turn an attempt that is ended into one that is live"):
        ended().begin()


@pytest.mark.parametrize("state, by", list(product(State, Input)))
def test_an_input_leads_only_where_it_is_drawn(state: State, by: Input):
    machine = EVERY_ONE[state]()
    allowed = MOVES[state].get(by, frozenset())
    for to in State:
        machine.state = state
        if to in allowed:
            machine._move(by, to)
            assert machine.state is to
        else:
            with pytest.raises(CorruptState):
                machine._move(by, to)


# ---- what the state says ------------------------------------------------------------------------------------------


def those_that(say: str) -> set[State]:
    return {state for state, make in EVERY_ONE.items() if getattr(make(), say)}


def test_code_that_lives_has_begun_and_is_not_over():
    assert those_that("lives") == set(State) - {State.READING, State.ENDED}


def test_what_the_code_does_counts_until_it_has_ended_for_good():
    assert those_that("left") == {State.ENDING, State.ENDED}


def test_code_is_given_nothing_once_it_has_ended():
    assert those_that("listens") == set(State) - {State.UNWINDING, State.ENDING, State.ENDED}


def test_code_is_at_rest_when_all_that_is_recorded_was_delivered():
    assert those_that("at_rest") == {State.LIVE, State.SUSPENDING, State.UNWINDING}
    machine = begun()
    machine.arrived(entry(("", "cancel", 1), 0, op=CANCEL))
    assert not machine.at_rest


def test_an_outcome_comes_next_if_nothing_else_does():
    assert those_that("comes_next") == {State.LIVE}
    machine = begun()
    machine.send("charge", None)
    assert not machine.comes_next
    assert machine.answered("charge")
    assert not machine.answered("charge"), "nobody waits for it any more"
    assert machine.comes_next
    machine.recorded("charge", "paid", 7)
    assert not machine.comes_next
    assert machine.arrivals == [("charge", "paid", 7)]


def test_the_journal_is_asked_as_long_as_it_may_have_something():
    assert those_that("replays") == {State.REPLAYING, State.LOOSE}


# ---- calls --------------------------------------------------------------------------------------------------------


def test_live_code_begins_what_it_calls():
    machine = begun()
    assert called(machine, CHARGE) == [Called.BEGIN]
    assert machine.outstanding == {CHARGE: "charge"}


def test_what_is_recorded_is_replayed_and_what_is_new_is_held_until_then():
    machine = begun(entry(CHARGE, 0))
    assert called(machine, CHARGE, SHIP) == [Called.REPLAY, Called.HOLD]
    assert machine.next_recorded(can_move=False) == entry(CHARGE, 0)
    machine.delivered(CHARGE, timer=False)
    assert called(machine, LABEL) == [Called.BEGIN], "all that is recorded was delivered"
    assert machine.next_recorded(can_move=False) is Replayed.NOTHING
    assert machine.state is State.LIVE
    assert machine.release() == ["ship"]
    assert machine.release() == ()


def test_another_operation_in_the_same_place_is_a_divergence():
    machine = begun(entry(CHARGE, 0, op=RECEIVE))
    assert called(machine, CHARGE) == [Called.DIVERGE]
    assert not machine.outstanding


def test_a_loose_replay_holds_what_is_new_until_the_code_is_idle():
    machine = loose()
    assert machine.release() == ["charge"]
    assert called(machine, SHIP, ("", "new", 1)) == [Called.REPLAY, Called.HOLD]
    assert machine.next_recorded(can_move=True) == entry(SHIP, 1)


def test_what_is_called_while_a_suspension_is_on_its_way_is_held():
    machine = suspending()
    assert called(machine, CHARGE) == [Called.HOLD]
    assert machine.hold_or_begin("ship") is Called.HOLD
    assert machine.release() == ()
    machine.stay()
    assert machine.release() == ["charge", "ship"]
    assert machine.hold_or_begin("label") is Called.BEGIN


def test_def_code_hears_of_a_cancel_that_is_next():
    cancel = entry(("", "cancel", 1), 1, op=CANCEL)
    machine, replaying = begun(), begun(entry(CHARGE, 0))
    assert not machine.hears_cancel()
    machine.arrived(cancel)
    replaying.arrived(cancel)
    assert machine.hears_cancel()
    assert not replaying.hears_cancel()


# ---- replay -------------------------------------------------------------------------------------------------------


def test_code_that_may_still_go_on_is_waited_for_and_other_code_is_not_what_it_was():
    machine = begun(entry(CHARGE, 0))
    assert machine.next_recorded(can_move=True) is Replayed.WAIT
    assert machine.next_recorded(can_move=False) == Unmet(entry(CHARGE, 0))


def test_what_the_code_gave_up_is_passed_over():
    machine = begun(entry(CHARGE, 0))
    called(machine, CHARGE)
    machine.replay.pass_over(CHARGE)
    assert machine.next_recorded(can_move=False) is Replayed.NOTHING
    assert machine.state is State.LIVE


def test_code_that_had_ended_before_must_not_go_on():
    unwound = entry(("", "outlast:unwind", 1), 0, op=UNWIND, outcome=CANCELLED)
    machine = begun(unwound)
    assert machine.state is State.REPLAYING
    assert machine.next_recorded(can_move=True) is Replayed.WAIT
    assert machine.next_recorded(can_move=False) == Unmet(unwound)


def test_what_a_loose_replay_has_is_delivered_also_while_the_attempt_suspends():
    machine = loose()
    machine.suspend()
    called(machine, SHIP)
    assert machine.replays
    assert machine.next_recorded(can_move=False) == entry(SHIP, 1)
    machine.stay()
    assert machine.state is State.LOOSE
    called(machine, LABEL)
    machine.suspend()
    assert machine.next_recorded(can_move=False) == entry(LABEL, 2)
    assert machine.next_recorded(can_move=False) is Replayed.NOTHING
    assert machine.state is State.SUSPENDING
    machine.stay()
    assert machine.state is State.LIVE


# ---- giving up ----------------------------------------------------------------------------------------------------


def test_what_was_given_up_is_not_awaited_nor_held_and_the_timer_that_fired_is_to_blame():
    machine = suspending()
    called(machine, CHARGE, SHIP)
    machine.delivered(LABEL, timer=True)
    assert machine.give_up("charge", CHARGE)
    assert (machine.struck, machine.held) == (LABEL, {"ship": None})
    assert not machine.give_up("charge", CHARGE)
    machine.delivered(LABEL, timer=False)
    assert machine.fired is None
    assert machine.give_up("ship", SHIP)
    machine = begun()
    called(machine, CHARGE)
    machine.leave()
    assert not machine.give_up("charge", CHARGE), "the attempt has left the code"


def test_what_is_given_up_is_noted_once():
    machine = begun(entry(CHARGE, 0), entry(SHIP, 1, op=START), entry(LABEL, 2))
    assert machine.note(("", "new", 1), STEP, noted=True) is Note.NOW
    assert machine.note(("", "timer", 1), STEP, noted=False) is Note.NOT
    assert machine.note(CHARGE, STEP, noted=True) is Note.NOT, "the code did so before"
    assert machine.note(SHIP, START, noted=True) is Note.LATER
    machine.replay.given_up[LABEL] = STEP
    assert machine.note(LABEL, STEP, noted=True) is Note.NOT
    for _ in range(3):
        machine.next_recorded(can_move=True)
    assert machine.note(CHARGE, STEP, noted=True) is Note.NOW, "what came too late is noted"


# ---- suspending ---------------------------------------------------------------------------------------------------


def test_a_refusal_of_a_suspension_that_is_over_changes_nothing():
    machine = begun()
    machine.stay()
    assert machine.state is State.LIVE


def idle(
    *waits: str, wake_at: int | None = None, next_try_at: int | None = None, listens: bool = False, awaits: bool = True
) -> IdleCode:
    return IdleCode(waits, wake_at, next_try_at, ("event:update",) if listens else (), awaits)


@pytest.mark.parametrize(
    "code, found",
    [
        (idle("event:go"), Suspension("event:go", ("event:go",), None, alone=True)),
        (idle("timer", wake_at=9_000), Suspension("timer", (), 9_000, alone=True)),
        (idle("event:go", "timer", wake_at=9_000), Suspension("event:go", ("event:go",), 9_000, alone=True)),
        (idle(next_try_at=9_000), Suspension("retry", (), 9_000, alone=False)),
        (idle(wake_at=9_500, next_try_at=9_000), Suspension("timer", (), 9_000, alone=False)),
        (idle(listens=True, awaits=False), Suspension("event:update", ("event:update",), None, alone=False)),
        (idle("event:go", listens=True), Suspension("event:go", ("event:go", "event:update"), None, alone=False)),
        (idle("timer", wake_at=1_500), None),
        (idle(), None),
        (idle(awaits=False), NoWayOn.FOR_EVER),
    ],
)
def test_idle_code_suspends_unless_it_is_woken_soon(code: IdleCode, found: Suspension | NoWayOn | None):
    assert when_idle(code, now=1_000, resident_ms=1_000, refused=None) == found


def test_what_no_suspension_can_name_stays():
    code = idle("event:go", listens=True)
    assert when_idle(code, now=0, resident_ms=0, refused=("event:go", "event:update")) is None
    assert when_idle(code, now=0, resident_ms=0, refused=("event:go",)) is not None


# ---- the end ------------------------------------------------------------------------------------------------------


def test_code_that_ends_before_what_is_recorded_is_not_what_it_was():
    assert begun().end_of_replay(observed_cancel=False) is None
    assert begun(entry(CHARGE, 0)).end_of_replay(observed_cancel=False) == entry(CHARGE, 0)
    assert begun(entry(CHARGE, 0)).end_of_replay(observed_cancel=True) is None


@pytest.mark.parametrize("end", list(CodeEnd))
def test_only_an_end_for_good_is_undone(end: CodeEnd):
    for_good = end in (CodeEnd.CANCELLED, CodeEnd.FAILED_FOR_GOOD)
    assert begun().code_ended(end, undos=True) is for_good
    assert not begun().code_ended(end, undos=False)


@pytest.mark.parametrize("end", list(CodeEnd))
def test_undos_that_began_are_finished_whatever_the_code_comes_to_now(end: CodeEnd):
    machine = begun(entry(("", "outlast:unwind", 1), 0, op=UNWIND, outcome=CANCELLED))
    assert machine.code_ended(end, undos=False)
    assert machine.state is State.UNWINDING


@pytest.mark.parametrize("end", list(CodeEnd))
@pytest.mark.parametrize("make", [begun, unwinding], ids=["live", "unwinding"])
def test_an_end_by_its_own_doing_asks_for_children_first(make: type[Machine], end: CodeEnd):
    waits = end in (CodeEnd.COMPLETED, CodeEnd.FAILED_FOR_GOOD)
    machine = make()
    assert not machine.finish(end, has_children=False)
    assert machine.finish(end, has_children=True) is waits
    assert (machine.state is State.ENDING) is waits
