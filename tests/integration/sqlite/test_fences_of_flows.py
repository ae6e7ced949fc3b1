"""The writer remembers the records of a flow as it inserted them: what an end asks for need not be read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from outlast.machine.changes import Absent, Changes, Insert, Matches, Patch, Write
from outlast.model.execution import execution_key
from outlast.model.flow import FlowState, flow_key, member_key, summary_key
from outlast.model.payload import Payload, Role
from outlast.store.sqlite import SqliteStore
from outlast.store.sqlite import fences as fences_of_sqlite
from outlast.store.sqlite.fences import Fences
from outlast.testing import ManualClock
from outlast.testing.conformance.actors import NAMESPACE, commit, commit_one, new_id
from outlast.testing.conformance.flow_batches import flow_start

FLOW, SUMMARY = flow_key(NAMESPACE, "f"), summary_key(NAMESPACE, "f")
OPEN = Matches(FLOW, {"state": FlowState.OPEN, "revision": 0})


@pytest.fixture
def new_store(tmp_path: Path) -> Callable[[], SqliteStore]:
    clock = ManualClock()
    return lambda: SqliteStore(str(tmp_path / "flows.db"), clock=clock)


@pytest.fixture
async def store(new_store: Callable[[], SqliteStore]) -> AsyncIterator[SqliteStore]:
    store = new_store()
    await store.migrate()
    await store.open()
    await store.renew("w1", lease_ttl_ms=10_000)
    yield store
    await store.close()


def counting(number: int, *guards: Matches | Absent) -> Changes:
    """The flow's ends are counted, once."""
    count = Patch(SUMMARY, {"succeeded": number, "change_id": new_id()})
    return Changes(id=new_id(), partition=0, anchors=(SUMMARY,), guards=(*guards, _uncounted()), writes=(count,))


def _uncounted() -> Matches:
    return Matches(SUMMARY, {"succeeded": 0, "outcome": None})


async def test_what_a_known_flow_is_not_refuses(store: SqliteStore):
    await commit(store, flow_start(0, "e", "w1"), flow_start(0, "f", "w1"))
    stopped = Matches(FLOW, {"state": FlowState.STOPPED, "revision": 0})
    verdict = await commit_one(store, counting(1, stopped))
    assert (verdict.applied, verdict.refused_by) == (False, stopped)
    assert (await commit_one(store, counting(1, OPEN))).applied


async def test_what_waits_in_a_known_flow_is_asked_for_in_full(store: SqliteStore):
    await commit(store, flow_start(0, "e", "w1"), flow_start(0, "f", "w1"))
    for cancelled in (True, False):
        waits = Matches(execution_key(NAMESPACE, "f/two"), {"status": "blocked", "cancel_requested": cancelled})
        assert (await commit_one(store, counting(1, waits))).applied is not cancelled


async def test_of_two_who_count_in_one_batch_the_second_is_refused(store: SqliteStore):
    start = [flow_start(0, "e", "w1"), flow_start(0, "f", "w1")]
    verdicts = await commit(store, *start, counting(1, OPEN), counting(2, OPEN))
    assert [verdict.applied for verdict in verdicts] == [True, True, True, False]


async def test_a_flow_that_another_process_stopped_is_not_taken_for_open(store: SqliteStore, other: SqliteStore):
    await commit(store, flow_start(0, "e", "w1"), flow_start(0, "f", "w1"))
    stop = Changes(id="stop", partition=0, anchors=(FLOW,), writes=(Patch(FLOW, {"state": FlowState.STOPPED}),))
    assert (await commit_one(other, stop)).applied
    assert not (await commit_one(store, counting(1, OPEN))).applied


async def test_a_flow_that_was_stopped_here_is_not_taken_for_open(store: SqliteStore):
    stop = Changes(id="stop", partition=0, anchors=(FLOW,), writes=(Patch(FLOW, {"state": FlowState.STOPPED}),))
    start = [flow_start(0, "e", "w1"), flow_start(0, "f", "w1")]
    verdicts = await commit(store, *start, stop, counting(1, OPEN))
    assert [verdict.applied for verdict in verdicts] == [True, True, True, False]


async def test_the_id_of_a_member_in_the_same_batch_is_not_free(store: SqliteStore):
    free = Absent(execution_key(NAMESPACE, "f/two"))
    start = [flow_start(0, "e", "w1"), flow_start(0, "f", "w1")]
    verdicts = await commit(store, *start, counting(1, free))
    assert [verdict.applied for verdict in verdicts] == [True, True, False]


async def test_a_flow_one_of_whose_members_was_there_leaves_nothing(store: SqliteStore):
    first = flow_start(0, "f", "w1")
    [taken] = [write for write in first.writes if _is_input_of(write, "f/two")]
    stranger = Changes(id="s", partition=0, anchors=(execution_key(NAMESPACE, "f/two"),), writes=(taken,))
    assert (await commit_one(store, stranger)).applied
    verdicts = await commit(store, flow_start(0, "e", "w1"), flow_start(0, "f", "w1"), flow_start(0, "g", "w1"))
    assert [verdict.applied for verdict in verdicts] == [True, False, True]
    keys = [FLOW, SUMMARY, execution_key(NAMESPACE, "f/one"), member_key(NAMESPACE, "f/one")]
    assert await store.load(keys) == [None] * 4
    assert not (await commit_one(store, counting(1, OPEN))).applied


def _is_input_of(write: Write, execution_id: str) -> bool:
    if not isinstance(write, Insert) or not isinstance(write.record, Payload):
        return False
    return write.record.execution == execution_id and write.record.role in (Role.INPUT, Role.TEMPLATE)


async def test_of_many_records_of_flows_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fences_of_sqlite, "ROWS_MAX", 2)
    fences = Fences()
    records = [write.record for write in flow_start(0, "f", "w1").writes[:3] if isinstance(write, Insert)]
    for record in records:
        fences.keep_row(record)
    assert list(fences.rows.values()) == records[1:]
