"""What `claim.lua` takes for granted of the records that it does not take apart."""

from __future__ import annotations

from outlast.machine import facts
from outlast.machine.claiming import claim_fields
from outlast.model.attempt import Attempt
from outlast.model.execution import Execution
from outlast.model.status import Status
from outlast.store.valkey.layout import INDEXES, LAYOUTS

EXECUTION = LAYOUTS[Execution.KIND]
WAITING = Execution(
    namespace="n",
    id="e",
    workflow="w",
    version="1",
    lane="default",
    route="w|1|",
    input_digest="",
    status=Status.READY,
    ready_at=1,
    created_at=1,
)
CLAIMED = claim_fields(WAITING, facts.Claim(change_id="c", worker="w"))


def test_who_an_execution_is_comes_first_and_begins_its_attempts():
    at = EXECUTION.positions
    assert at["flow"] == 9
    assert EXECUTION.fields[:2] == ("namespace", "id")
    assert LAYOUTS[Attempt.KIND].fields[:2] == ("namespace", "execution")


def test_a_claim_changes_how_an_execution_stands_and_three_of_its_times():
    at = EXECUTION.positions
    assert at["status"] < at["epoch"] < at["change_id"] < len(EXECUTION.fields) - len(Execution.TIMES) + 1
    assert EXECUTION.fields[at["change_id"] :] == Execution.TIMES
    assert all(at[name] >= at["status"] for name in CLAIMED)
    assert set(CLAIMED) & set(Execution.TIMES) == {"ready_at", "claimed_at", "attempt_deadline_at"}


def test_a_claim_moves_an_execution_in_these_indexes_and_no_others():
    moved = {one.name for one in INDEXES if one.kind == Execution.KIND and set(one.fields) & set(CLAIMED)}
    assert moved == {"ready", "held", "status", "timeout"}
