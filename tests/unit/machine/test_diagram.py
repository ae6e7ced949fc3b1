"""The page of the state machine is the table, drawn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outlast.machine import diagram, facts
from outlast.machine.attempt import MOVES, Input, State
from outlast.machine.transitions import FLOW_TRANSITIONS, TRANSITIONS
from outlast.model.flow import Flow
from outlast.model.status import Status

PAGE = Path(__file__).resolve().parents[3] / "docs" / "state-machine.md"
ARROW = re.compile(r"^    (\S+) --> (\w+): (.+)$", re.MULTILINE)


OF_ATTEMPTS = "## An attempt"


def drawn() -> set[tuple[str, str, str]]:
    """(fact, from, to) of every arrow of an execution on the page, with `ended` meaning all ends."""
    found: set[tuple[str, str, str]] = set()
    for before, after, names in ARROW.findall(diagram.page().partition("## Flows")[0]):
        sources = ["succeeded", "failed", "cancelled", "expired", "skipped"] if before == "ended" else [before]
        found |= {(fact, source, after) for fact in names.split("<br/>") for source in sources}
    return found


def test_the_committed_page_is_the_generated_one():
    assert PAGE.read_text(encoding="utf-8") == diagram.page(), "run `make docs`"


def test_every_move_is_drawn_and_nothing_else():
    moves = {
        (diagram.words(kind), "[*]" if before is None else before, after)
        for kind, rows in TRANSITIONS.items()
        for before, to in rows.items()
        for after in to
        if after is not before
    }
    assert drawn() == moves


def test_the_table_has_a_cell_for_every_fact_in_every_status():
    rows = [line.strip("| \n").split(" | ") for line in diagram.grid(TRANSITIONS).splitlines()]
    assert rows[0] == ["fact", "(none)", *Status]
    assert [row[0] for row in rows[2:]] == [diagram.words(kind) for kind in TRANSITIONS]
    assert {len(row) for row in rows} == {11}
    cells = {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows}
    assert cells["hold"] == {
        "fact": "hold",
        "(none)": "–",
        "blocked": "=",
        "ready": "blocked",
        "active": "=",
        "suspended": "=",
        **dict.fromkeys(["succeeded", "failed", "cancelled", "expired", "skipped"], "–"),
    }


def test_every_move_of_a_flow_is_drawn_and_nothing_else():
    moves = {
        (fact, before or "[*]", after)
        for fact, rows in FLOW_TRANSITIONS.items()
        for before, to in rows.get(Flow.KIND, {}).items()
        for after in to
    }
    assert {(fact, before, after) for before, after, fact in ARROW.findall(diagram.flow_diagram())} == moves
    rows = [line.strip("| \n").split(" | ")[0] for line in diagram.flow_grid().splitlines()[2:]]
    assert rows == [fact for fact, moves in FLOW_TRANSITIONS.items() if moves], "all that move anything"


def test_every_move_of_an_attempt_is_drawn_and_nothing_else():
    moves = {
        (by, before, after)
        for before, row in MOVES.items()
        for by, to in row.items()
        for after in to
        if after is not before
    }
    arrows = ARROW.findall(diagram.page().partition(OF_ATTEMPTS)[2])
    assert {(by, before, after) for before, after, inputs in arrows for by in inputs.split("<br/>")} == moves


def test_the_table_of_attempts_has_a_cell_for_every_input_in_every_state():
    rows = [line.strip("| \n").split(" | ") for line in diagram.attempt_grid().splitlines()]
    assert rows[0] == ["input", *State]
    assert [row[0] for row in rows[2:]] == list(Input)
    cells = {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows}
    assert cells["idle"]["live"] == "=, suspending"
    assert (cells["called"]["ended"], cells["left"]["ended"]) == ("–", "=")


def test_facts_are_written_as_words():
    assert diagram.words(facts.CancelRequested) == "cancel requested"
    assert diagram.words(facts.Start) == "start"


def test_the_command_writes_the_page(tmp_path: Path):
    assert diagram.main([str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == diagram.page()


def test_the_command_wants_one_path(capsys: pytest.CaptureFixture[str]):
    assert diagram.main([]) == 2
    assert "usage" in capsys.readouterr().err
