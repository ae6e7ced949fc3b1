"""Views are plain data: every reason has an explanation, and all of them are JSON as they are."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec
import pytest

from outlast.cli.main import COMMANDS
from outlast.client.views.explanation import WAITS, Explanation, explain
from outlast.client.views.situation import Situation
from outlast.client.views.timeline import Row, timeline
from outlast.model.child import ChildEnd
from outlast.model.event import Event, answer_id, ended_name
from outlast.model.execution import UNWINDING, Execution, route_of
from outlast.model.flow import Flow, FlowState
from outlast.model.journal import JournalEntry
from outlast.model.payload import Standstill
from outlast.model.status import NAMED_REASONS, PLAIN_REASONS, TERMINAL, Status

NOW = 1_800_000_000_000
NAMES = {command.__name__ for commands in COMMANDS.values() for command in commands}
ALIVE = Situation(NOW, {"w-1": NOW + 5_000})
NOBODY = Situation(NOW, {})


def execution(status: Status, **fields: Any) -> Execution:
    return Execution(
        namespace="default",
        id="order 42",
        workflow="checkout",
        version="2",
        lane="mail",
        route=route_of("checkout", "2", ("gpu",)),
        input_digest="",
        status=status,
        created_at=NOW - 60_000,
        **fields,
    )


EXPLAINED = [
    *(
        explain(execution(Status.SUSPENDED, reason=reason, wake_at=NOW - 9_000), NOBODY)
        for reason in sorted(PLAIN_REASONS)
    ),
    *(explain(execution(Status.SUSPENDED, reason=f"{reason}gpu"), ALIVE) for reason in NAMED_REASONS),
    *(explain(execution(status, finished_at=NOW, cause="failed"), ALIVE) for status in sorted(TERMINAL)),
    explain(execution(Status.READY, ready_at=NOW), NOBODY),
    explain(execution(Status.READY, ready_at=NOW, held=True, deadline_at=NOW + 1), ALIVE),
    explain(execution(Status.READY, ready_at=NOW), Situation(NOW, {}, lane_paused=True)),
    *(
        explain(
            execution(Status.BLOCKED, reason="dependencies", flow="day"),
            Situation(NOW, {}, flow=Flow(namespace="default", id="day", state=state, created_at=NOW, change_id="")),
        )
        for state in FlowState
    ),
    explain(execution(Status.ACTIVE, worker="w-0", claimed_at=NOW, cancel_requested=True, held=True), NOBODY),
    explain(
        execution(Status.ACTIVE, worker="w-1", attempt_deadline_at=NOW + 9, cause=f"{UNWINDING}deadline"),
        Situation(NOW, {"w-1": NOW + 1}, standstill=Standstill(1, 0, ("shop.py:7",))),
    ),
]


def test_every_reason_of_the_vocabulary_has_a_function_that_explains_it():
    kinds = {reason.partition(":")[0] for reason in (*PLAIN_REASONS, *NAMED_REASONS)}
    assert set(WAITS) == kinds


@pytest.mark.parametrize("given", EXPLAINED, ids=lambda given: given.code)
def test_an_explanation_is_json_as_it_is(given: Explanation):
    read = msgspec.json.decode(msgspec.json.encode(given), type=Explanation)
    assert (read.code, read.text, read.action) == (given.code, given.text, given.action)
    assert [one.code for one in read.beside] == [one.code for one in given.beside]


@pytest.mark.parametrize("given", EXPLAINED, ids=lambda given: given.code)
def test_an_action_is_a_command_that_the_command_line_has(given: Explanation):
    for action in (one.action for one in (given, *given.beside)):
        if action is not None:
            name, *words = shlex.split(action.command)[:3]
            assert name == "outlast"
            assert words[0] == action.verb.split()[0]
            assert words[0] in NAMES


def test_what_would_end_a_wait_names_the_execution_as_a_shell_reads_it():
    held = explain(execution(Status.BLOCKED, reason="operator", held=True), ALIVE).action
    assert held is not None
    assert (held.verb, held.target, held.command) == ("release", "order 42", "outlast release 'order 42'")
    waits = explain(execution(Status.SUSPENDED, reason="event:plan"), ALIVE).action
    assert waits is not None
    assert waits.command == "outlast send 'order 42' plan VALUE"


def entry(op: str, **fields: Any) -> JournalEntry:
    known: dict[str, Any] = {"scope": "", "name": "charge", "occurrence": 1, "outcome": "succeeded", "value": b"7"}
    return JournalEntry(
        namespace="default",
        execution="order 42",
        generation=1,
        op=op,
        epoch=1,
        recorded_at=NOW,
        change_id="",
        **(known | fields),
    )


def test_a_timeline_is_rows_of_json_with_what_they_are_about():
    started_nothing = Event(
        namespace="default",
        execution="order 42",
        name=ended_name("taken"),
        dedup=answer_id("start"),
        value=ChildEnd(status=Status.FAILED, cause="is there").encode(),
        sent_at=NOW,
        change_id="",
    )
    journal = [entry("step", occurrence=2, tries=3), entry("retry", scope="~2", outcome="failed", value=b"1")]
    rows = timeline(execution(Status.FAILED, finished_at=NOW, cause="crashes"), [], journal, [started_nothing], NOW)
    read = msgspec.json.decode(msgspec.json.encode(rows), type=tuple[Row, ...])
    assert read == rows
    assert [(row.code, row.what, row.outcome) for row in rows] == [
        ("started", "started", ""),
        ("not_started", "start of taken", "not started"),
        ("step", "step charge #2", "succeeded"),
        ("retry", "step charge #2", "try 1 failed"),
        ("ended", "ended", "failed"),
    ]
    assert rows[2].about == {"scope": "", "name": "charge", "occurrence": 2, "tries": 3}
