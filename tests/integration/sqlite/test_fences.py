"""The writer remembers fences between its transactions. Whoever writes the row otherwise makes it forget."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import apsw
import pytest

from outlast.machine.changes import Changes, Delete, Insert, Matches, Patch, Put, View, execution_after
from outlast.model.execution import Execution, execution_key
from outlast.model.lane import Lane
from outlast.model.session import session_key
from outlast.model.status import Status
from outlast.store.sqlite import SqliteStore
from outlast.store.sqlite.commit import Commit
from outlast.store.sqlite.connection import Transaction
from outlast.testing import ManualClock
from outlast.testing.conformance.actors import (
    LANE,
    NAMESPACE,
    changing,
    claim,
    claim_one,
    commit,
    commit_one,
    completes,
    decided,
    look,
    loses_lease,
    pause,
    running,
    same_but,
    sends,
    start_changes,
    start_fact,
    steps,
    suspends,
    tell,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def new_store(tmp_path: Path, clock: ManualClock) -> Callable[[], SqliteStore]:
    return lambda: SqliteStore(str(tmp_path / "fenced.db"), clock=clock)


@pytest.fixture
async def store(new_store: Callable[[], SqliteStore]) -> AsyncIterator[SqliteStore]:
    store = new_store()
    await store.migrate()
    await store.open()
    yield store
    await store.close()


async def test_a_zombie_whose_fence_the_writer_knew_is_refused_when_another_process_took_over(
    store: SqliteStore, other: SqliteStore, clock: ManualClock
):
    held = await running(store)
    assert (await commit_one(store, decided(store, held, steps(held, "one")))).applied
    clock.advance("11s")
    assert (await tell(other, "a", loses_lease(held))).applied
    fresh = await claim_one(other, "w2")
    assert fresh.epoch == held.epoch + 1
    for late in (steps(held, "two"), completes(held)):
        verdict = await commit_one(store, decided(store, held, late))
        assert not verdict.applied
        assert verdict.current == fresh
    assert (await commit_one(other, decided(other, fresh, steps(fresh, "two")))).applied


async def test_a_zombie_is_refused_when_the_same_process_took_over(store: SqliteStore, clock: ManualClock):
    held = await running(store)
    assert (await commit_one(store, decided(store, held, steps(held, "one")))).applied
    clock.advance("11s")
    assert (await tell(store, "a", loses_lease(held))).applied
    assert not (await commit_one(store, decided(store, held, steps(held, "between")))).applied
    fresh = await claim_one(store, "w2")
    assert not (await commit_one(store, decided(store, held, steps(held, "two")))).applied
    assert (await commit_one(store, decided(store, fresh, steps(fresh, "two")))).applied


async def test_what_comes_from_outside_shows_in_the_next_verdict(store: SqliteStore, other: SqliteStore):
    held = await running(store)
    first = await commit_one(store, decided(store, held, steps(held, "one")))
    await tell(store, "a", sends(change_id="here"))
    second = await commit_one(store, decided(store, held, steps(held, "two")))
    await tell(other, "a", sends(change_id="elsewhere"))
    third = await commit_one(store, decided(store, held, steps(held, "three")))
    assert [verdict.inbox for verdict in (first, second, third)] == [0, 1, 2]


async def test_in_one_batch_an_end_fences_what_stands_behind_it(store: SqliteStore):
    held = await running(store)
    batch = [steps(held, "one"), suspends(held, waits=("event:plan",)), steps(held, "two")]
    verdicts = await commit(store, *[decided(store, held, fact) for fact in batch])
    assert [verdict.applied for verdict in verdicts] == [True, True, False]


async def test_a_start_that_was_taken_back_leaves_no_fence(store: SqliteStore):
    """Its execution was inserted, its input met a record: nothing of it may be remembered."""
    await store.renew("w1", lease_ttl_ms=10_000)
    first = start_changes(store, start_fact("a", worker="w1"))
    [payload] = [write.record for write in first.writes if isinstance(write, Insert) and write.record.KIND == "payload"]
    stranger = Insert(same_but(payload, change_id="somebody"))
    assert (await commit_one(store, changing(store, "a", stranger, change_id="somebody"))).applied
    assert not (await commit_one(store, first)).applied
    assert await store.load([execution_key(NAMESPACE, "a")]) == [None]
    held = begun_by(first)
    assert not (await commit_one(store, decided(store, held, steps(held, "one")))).applied


def begun_by(changes: Changes) -> Execution:
    """The execution that a start by a worker would make."""
    execution = execution_after(View(0, None), changes, 1)
    assert execution is not None
    return execution


async def test_a_deleted_or_patched_row_is_not_remembered(store: SqliteStore):
    held = await running(store)
    assert (await commit_one(store, decided(store, held, steps(held, "one")))).applied
    key = execution_key(NAMESPACE, "a")
    assert (await commit_one(store, changing(store, "a", Patch(key, {"epoch": 9})))).applied
    assert not (await commit_one(store, decided(store, held, steps(held, "two")))).applied
    assert (await commit_one(store, changing(store, "a", Patch(key, {"epoch": held.epoch})))).applied
    assert (await commit_one(store, decided(store, held, steps(held, "two")))).applied
    assert (await commit_one(store, changing(store, "a", Delete(key)))).applied
    assert not (await commit_one(store, decided(store, held, steps(held, "three")))).applied


async def test_a_transaction_that_was_rolled_back_leaves_no_fence(store: SqliteStore):
    """One operation of a shared transaction fails, so all of them are undone: what they knew with them."""
    await store.renew("w1", lease_ttl_ms=10_000)
    writer = store._opened().writer
    assert writer is not None
    begun = start_changes(store, start_fact("a", worker="w1"))

    def begin_and_fail(tx: Transaction) -> None:
        [verdict] = Commit(tx.cursor, tx.now, tx.points, tx.fences).apply([begun])
        assert verdict.applied
        raise apsw.FullError("the disk is full")

    with pytest.raises(Exception, match="full"):
        await writer.call("commit", begin_and_fail)
    held = begun_by(begun)
    assert not (await commit_one(store, decided(store, held, steps(held, "one")))).applied


async def test_a_claim_makes_the_writer_forget(store: SqliteStore):
    held = await running(store)
    await commit_one(store, decided(store, held, steps(held, "one")))
    await tell(store, "a", suspends(held, waits=("event:plan",)))
    await tell(store, "a", sends())
    [again] = (await claim(store, "w2")).executions
    assert (again.execution.status, again.execution.epoch) == (Status.ACTIVE, held.epoch + 1)
    assert not (await commit_one(store, decided(store, held, steps(held, "two")))).applied
    assert (await look(store, "a")).epoch == held.epoch + 1


# ---- gates --------------------------------------------------------------------------------------------------------


async def begins(store: SqliteStore, id: str) -> bool:
    """Whether a worker may start it and hold it at once: its session lives, and the lane is not paused."""
    verdict = await commit_one(store, start_changes(store, start_fact(id, worker="w1")))
    return verdict.applied


async def test_a_gate_that_was_open_is_shut_by_whoever_pauses_the_lane(store: SqliteStore, other: SqliteStore):
    await store.renew("w1", lease_ttl_ms=10_000)
    assert await begins(store, "a")
    await pause(other)
    assert not await begins(store, "b")
    await tell(store, "a", sends())  # this one has written last now: it knows the shut gate
    assert not await begins(store, "c")
    await pause(store, paused=False)
    assert not await begins(store, "d")  # a lane that was ever paused is asked by claims


async def test_a_gate_that_was_open_is_shut_in_the_same_transaction(store: SqliteStore):
    await store.renew("w1", lease_ttl_ms=10_000)
    assert await begins(store, "a")
    pausing = Put(Lane(partition=0, namespace=NAMESPACE, lane=LANE, paused=True))
    starts = [start_changes(store, start_fact(execution_id, worker="w1")) for execution_id in "bc"]
    verdicts = await commit(store, starts[0], changing(store, "b", pausing), starts[1])
    assert [verdict.applied for verdict in verdicts] == [True, True, False]


async def test_a_session_that_was_alive_lapses_with_time_and_lives_again_when_renewed(
    store: SqliteStore, clock: ManualClock
):
    await store.renew("w1", lease_ttl_ms=10_000)
    assert await begins(store, "a")
    clock.advance("9999ms")
    assert await begins(store, "b")
    clock.advance("1ms")
    assert not await begins(store, "c")
    await store.renew("w1", lease_ttl_ms=10_000)
    assert await begins(store, "d")
    clock.advance("11s")
    assert not await begins(store, "e")
    await claim(store, "w1")
    assert await begins(store, "f")


async def test_a_session_that_another_process_removed_is_not_remembered(store: SqliteStore, other: SqliteStore):
    await store.renew("w1", lease_ttl_ms=10_000)
    assert await begins(store, "a")
    assert (await commit_one(other, changing(other, "a", Delete(session_key(0, "w1"))))).applied
    assert not await begins(store, "b")


async def test_no_more_is_remembered_than_there_is_room_for(store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("outlast.store.sqlite.fences.KNOWN_MAX", 4)
    await store.renew("w1", lease_ttl_ms=10_000)
    writer = store._opened().writer
    assert writer is not None
    for execution_id in "abcdefgh":
        assert await begins(store, execution_id)
        assert len(writer._fences.known) <= 4


# ---- what is gathered ---------------------------------------------------------------------------------------------


async def test_two_patches_of_one_row_in_one_change_are_written_in_their_order(store: SqliteStore):
    """Others of the batch have the second one's statement first."""
    first, second = await running(store, "a"), await running(store, "b")
    key_a, key_b = execution_key(NAMESPACE, "a"), execution_key(NAMESPACE, "b")
    fence_a = Matches(key_a, {"status": first.status, "epoch": first.epoch})
    fence_b = Matches(key_b, {"status": second.status, "epoch": second.epoch})
    batch = [
        changing(store, "a", Patch(key_a, {"ran_ms": 1, "priority": 1}), guards=[fence_a]),
        changing(
            store, "b", Patch(key_b, {"priority": 1}), Patch(key_b, {"ran_ms": 2, "priority": 2}), guards=[fence_b]
        ),
    ]
    assert all(verdict.applied for verdict in await commit(store, *batch))
    assert (await look(store, "b")).priority == 2


async def test_a_change_that_patches_another_execution_is_fenced_behind_it(store: SqliteStore):
    first, second = await running(store, "a"), await running(store, "b")
    key_a, key_b = execution_key(NAMESPACE, "a"), execution_key(NAMESPACE, "b")
    fence_a = Matches(key_a, {"status": first.status, "epoch": first.epoch})
    batch = [
        changing(store, "a", Patch(key_b, {"epoch": second.epoch + 1}), guards=[fence_a]),
        decided(store, second, steps(second, "one")),
    ]
    assert [verdict.applied for verdict in await commit(store, *batch)] == [True, False]
