"""What a copy refuses, what it makes of partitions, and that it can be stopped anywhere and begun again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio

from outlast.copying import Copying, Progress, copying
from outlast.copying.copying import PAGE_BYTES
from outlast.copying.records import GATES, NOT_COPIED, WALKED, cut, same, spread, weight
from outlast.errors import CopyBusy, CopyConflict, CopyMismatch, CopyRefused, InvalidInput, StoreFull, StoreUnavailable
from outlast.machine.changes import Add, Changes, Delete, Insert, Patch
from outlast.machine.decide_flow import NewFlow, accepted
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import Flow, flow_key
from outlast.model.journal import JournalEntry, journal_key
from outlast.model.kinds import KINDS
from outlast.model.lane import Lane
from outlast.model.outbox import Delivery
from outlast.model.partition import partition_of
from outlast.model.payload import Role, payload_key
from outlast.model.session import Session
from outlast.store.port import Committed, CommittedInPart, Feed, Store
from outlast.store.sqlite import SqliteStore
from outlast.testing.conformance.actors import (
    NAMESPACE,
    changing,
    commit,
    commit_one,
    completes,
    decided,
    partition,
    running,
    sends,
    start,
    steps,
    tell,
)
from outlast.testing.conformance.samples import samples
from tests.integration.copying.places import ENDS, end, ends, everything


@pytest_asyncio.fixture
async def stores(tmp_path: Path) -> AsyncIterator[tuple[SqliteStore, SqliteStore]]:
    both = SqliteStore(f"sqlite:///{tmp_path}/one.db"), SqliteStore(f"sqlite:///{tmp_path}/other.db")
    for store in both:
        await store.migrate()
        await store.open()
    yield both
    for store in both:
        await store.close()


async def filled(store: Store) -> None:
    """Some that ended, some that wait, one that runs and emits; events out of the order of their keys."""
    for number in range(6):
        held = await running(store, f"x{number:02}")
        await commit(store, *[decided(store, held, steps(held, f"s{n}")) for n in range(4)])
        for dedup in ("z", "a", "m"):
            await tell(store, held.id, sends(dedup=dedup))
        if number == 4:
            frames = [f"frame {n}".encode() for n in range(250)]
            await store.append(NAMESPACE, held.id, epoch=held.epoch, change_id="f", frames=frames)
        if number % 3 == 0:
            await commit_one(store, decided(store, held, completes(held)))
    await start(store, "waits")
    await start_flow(store, "flow")
    await gone(store)


async def start_flow(store: Store, flow_id: str, digest: str = "") -> None:
    partition = partition_of(NAMESPACE, flow_id, store.partitions)
    new = NewFlow(namespace=NAMESPACE, id=flow_id, name="f", digest=digest, members=0, change_id=f"{flow_id} {digest}")
    assert (await store.commit([accepted(partition, new, [])])).verdicts[0].applied


async def gone(store: Store) -> None:
    """The workers' sessions are over."""
    for session in await store.scan(Session.KIND, ()):
        await commit_one(store, changing(store, "x", Delete(session.key)))


async def assert_equal(one: Store, other: Store) -> None:
    before, after = await everything(one), await everything(other)
    assert before.keys() == after.keys()
    assert all(same(before[key], after[key]) for key in before)
    for record in before.values():
        if isinstance(record, Execution):
            emitted = [(f.seq, f.value) for f in await one.frames(record.namespace, record.id)]
            assert [(f.seq, f.value) for f in await other.frames(record.namespace, record.id)] == emitted
            told = [r.key for r in await one.scan("event", record.key.values)]
            assert [r.key for r in await other.scan("event", record.key.values)] == told


class Around:
    """A store, but for what a test does otherwise."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Stopping:
    """A store that stops the copy at its n-th write, before it is done or after."""

    def __init__(self, store: Store, nth: int, *, after: bool) -> None:
        self._store, self._left, self._after = store, nth, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._stopping(found) if name in ("commit", "append", "renew") else found

    def _stopping(self, write: Any) -> Any:
        async def stopping(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise KeyboardInterrupt
            answer = await write(*args, **kwargs)
            if self._left == 0:
                raise KeyboardInterrupt
            return answer

        return stopping


class StoppingAfter(Around):
    """A store that stops the copy once it has a record of this kind."""

    def __init__(self, store: Store, kind: str) -> None:
        super().__init__(store)
        self._kind = kind

    async def commit(self, batch: Any) -> Any:
        answer = await self._store.commit(batch)
        if any(type(w) is Insert and w.record.KIND == self._kind for changes in batch for w in changes.writes):
            raise KeyboardInterrupt
        return answer


def test_every_kind_of_record_is_copied_or_left_on_purpose():
    assert {kind.KIND for kind in (*GATES, *WALKED)} | NOT_COPIED == KINDS.keys()


async def test_a_record_of_every_kind_arrives(stores: tuple[Store, Store]):
    one, other = stores
    every = [record for record in samples(partition(one, "x")) if record.KIND not in NOT_COPIED]
    await commit_one(one, changing(one, "x", *[Insert(record) for record in every]))
    copied = await Copying(one, other).run()
    assert sum(copied.records.values()) == len(every)
    await assert_equal(one, other)


@pytest.mark.slow
async def test_a_copy_that_is_stopped_at_any_write_goes_on(tmp_path: Path, stores: tuple[Store, Store]):
    one, _ = stores
    await filled(one)
    stops = 0
    for after in (False, True):
        for nth in range(1, 1_000):
            target = SqliteStore(f"sqlite:///{tmp_path}/{after}-{nth}.db?synchronous=normal")
            await target.migrate()
            await target.open()
            try:
                await Copying(one, Stopping(target, nth, after=after)).run()  # type: ignore[arg-type]
                break
            except KeyboardInterrupt:
                stops += 1
            copied = await Copying(one, target).run()
            assert (
                copied.resumed
                or nth <= 2
                or copied.found == sum(number for kind, number in copied.records.items() if kind != "frame")
            )
            await assert_equal(one, target)
            assert await target.scan(Session.KIND, ()) == []
            await target.close()
    assert stops > 30


async def test_a_store_that_is_away_for_a_moment_does_not_stop_it(stores: tuple[Store, Store]):
    one, other = stores
    await filled(one)

    class Away(Stopping):
        def _stopping(self, write: Any) -> Any:
            async def stopping(*args: Any, **kwargs: Any) -> Any:
                self._left += 1
                answer = await write(*args, **kwargs)
                if self._left % 5 == 0:
                    raise StoreUnavailable("for a moment")
                return answer

            return stopping

    await Copying(one, Away(other, 0, after=True)).run()  # type: ignore[arg-type]
    await assert_equal(one, other)


async def test_large_values_behind_small_ones_are_written_in_small_parts(stores: tuple[Store, Store]):
    source, target = stores
    for number in range(120):
        await start(source, f"a{number:03}")
    for number in range(12):
        await start(source, f"b{number:03}", input=b"x" * 1_000_000)
    written: list[int] = []

    class Weighing(Around):
        async def commit(self, batch: Sequence[Changes]) -> Committed:
            inserted = [write.record for changes in batch for write in changes.writes if isinstance(write, Insert)]
            written.append(sum(map(weight, inserted)))
            return await target.commit(batch)

    await Copying(source, cast(Store, Weighing(target))).run()
    assert 1_000_000 < max(written) <= PAGE_BYTES
    await assert_equal(source, target)


def test_records_are_cut_by_what_they_weigh():
    lanes = [Lane(partition=0, namespace="n", lane=f"l{n}", paused=False) for n in range(5)]
    of_two = 2 * weight(lanes[0])
    assert [len(part) for part in cut(lanes, of_two)] == [2, 2, 1]
    assert [len(part) for part in cut(lanes, 1)] == [1, 1, 1, 1, 1]
    assert list(cut([], 1)) == []


async def test_completions_come_in_the_order_of_the_feed(stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch):
    source, target = stores
    await end(source)
    monkeypatch.setattr(copying, "PAGE_MAX", 2)
    await Copying(source, target).run()
    assert await ends(target) == ENDS


async def test_completions_that_the_feed_holds_back_are_copied_too(stores: tuple[Store, Store]):
    source, target = stores
    await end(source)

    class HeldBack(Around):
        async def completions(self, **options: Any) -> Feed:
            return Feed([], "0")

    await Copying(cast(Store, HeldBack(source)), target).run()
    assert sorted(await ends(target)) == sorted(ENDS)


async def test_a_record_that_the_target_cannot_keep_is_named(stores: tuple[Store, Store]):
    source, target = stores
    await filled(source)
    bad = execution_key(NAMESPACE, "x03")

    class Picky(Around):
        async def commit(self, batch: Sequence[Changes]) -> Committed:
            if any(isinstance(write, Insert) and write.record.key == bad for one in batch for write in one.writes):
                raise InvalidInput("a value that a record cannot have")
            return await target.commit(batch)

    with pytest.raises(CopyRefused, match=r"x03.* cannot be written to .*: a value that a record cannot have"):
        await Copying(source, cast(Store, Picky(target))).run()
    assert (await Copying(source, target).run()).resumed
    await assert_equal(source, target)


async def test_a_target_that_is_full_in_part_says_so(stores: tuple[Store, Store]):
    source, target = stores
    await filled(source)

    class Full(Around):
        async def commit(self, batch: Sequence[Changes]) -> Committed:
            if len(batch) < 3:
                return await target.commit(batch)
            committed, full = await target.commit(batch[:1]), StoreFull("no room")
            raise CommittedInPart(
                committed.now, [*committed.verdicts, *[full for _ in batch[1:]]], full, [committed.now] * len(batch)
            )

    with pytest.raises(StoreFull):
        await Copying(source, cast(Store, Full(target))).run()
    await Copying(source, target).run()
    await assert_equal(source, target)


async def test_other_executions_under_the_same_ids_are_refused_before_anything_is_written(
    stores: tuple[Store, Store],
):
    one, other = stores
    await filled(one)
    for name in ("x03", "x04", "somebody else"):
        await start(other, name)
    before = await everything(other)
    with pytest.raises(CopyConflict, match=r"2 names.*x03.*x04") as refused:
        await Copying(one, other).run()
    assert refused.value.number == 2
    assert await everything(other) == before


async def test_flows_under_the_same_ids_are_refused_before_anything_is_written(stores: tuple[Store, Store]):
    """Another flow, an execution that has the id of a flow, a flow that has the id of an execution."""
    one, other = stores
    await filled(one)
    await start_flow(one, "rival")
    await start_flow(other, "flow", digest="other members")
    await start_flow(other, "waits")
    await start(other, "rival")
    before = await everything(other)
    with pytest.raises(CopyConflict, match=r"flow.*waits.*flow.*execution.*rival") as refused:
        await Copying(one, other).run()
    assert refused.value.number == 4, "a flow and its summary are two records"
    assert await everything(other) == before


async def test_a_copy_is_not_continued_from_a_source_whose_flow_has_gone_on(stores: tuple[Store, Store]):
    one, other = stores
    await filled(one)
    with pytest.raises(KeyboardInterrupt):
        await Copying(one, StoppingAfter(other, Flow.KIND)).run()  # type: ignore[arg-type]
    await commit_one(one, changing(one, "flow", Patch(flow_key(NAMESPACE, "flow"), {"reason": "enough"})))
    with pytest.raises(CopyRefused, match="has changed since"):
        await Copying(one, other).run()


async def test_a_target_keeps_what_it_has_under_other_ids(stores: tuple[Store, Store]):
    one, other = stores
    await start(one, "a")
    await start(other, "b")
    await Copying(one, other).run()
    found = [record.key.values[1] for record in await other.scan(Execution.KIND, ())]
    assert found == ["a", "b"]


async def test_a_record_of_another_copy_in_the_way_is_a_conflict(stores: tuple[Store, Store]):
    one, other = stores
    held = await running(one, "a")
    await gone(one)
    await commit_one(one, decided(one, held, steps(held, "s")))
    [entry] = await one.scan(JournalEntry.KIND, (NAMESPACE, "a"))
    await commit_one(other, changing(other, "a", Insert(msgspec.structs.replace(entry, value=b"else"))))
    with pytest.raises(CopyConflict, match="journal"):
        await Copying(one, other).run()


async def test_a_copy_is_not_continued_from_a_source_that_has_gone_on(stores: tuple[Store, Store]):
    one, other = stores
    await filled(one)
    with pytest.raises(KeyboardInterrupt):
        await Copying(one, Stopping(other, 6, after=True)).run()  # type: ignore[arg-type]
    await commit_one(one, changing(one, "waits", Add(execution_key(NAMESPACE, "waits"), "inbox", 1)))
    with pytest.raises(CopyRefused, match="has changed since"):
        await Copying(one, other).run()


async def test_half_a_copy_is_not_copied_on(stores: tuple[Store, Store], tmp_path: Path):
    one, other = stores
    await filled(one)
    with pytest.raises(KeyboardInterrupt):
        await Copying(one, Stopping(other, 6, after=True)).run()  # type: ignore[arg-type]
    third = SqliteStore(f"sqlite:///{tmp_path}/third.db")
    await third.migrate()
    await third.open()
    with pytest.raises(CopyRefused, match="did not come to its end"):
        await Copying(other, third).run()
    await third.close()


async def test_a_store_is_not_copied_to_itself(stores: tuple[Store, Store], tmp_path: Path):
    one, _ = stores
    await filled(one)
    again = SqliteStore(f"sqlite:///{tmp_path}/../{tmp_path.name}/one.db")
    await again.open()
    before = await everything(one)
    with pytest.raises(InvalidInput, match="the same store"):
        await Copying(one, again).run()
    assert await everything(one) == before
    await again.close()


async def test_workers_that_live_are_in_the_way_unless_told(stores: tuple[Store, Store]):
    one, other = stores
    await running(one, "a")
    with pytest.raises(CopyBusy, match="copied from"):
        await Copying(one, other).run()
    copied = await Copying(one, other, ignore_workers=True).run()
    assert copied.records["execution"] == 1
    await gone(one)
    await other.renew("late", lease_ttl_ms=60_000)
    with pytest.raises(CopyBusy, match=r"copied to.*late"):
        await Copying(one, other).run()


async def test_what_is_lost_on_the_way_is_noticed(stores: tuple[Store, Store]):
    one, other = stores
    await filled(one)
    lost = [journal_key(NAMESPACE, "x01", 1, "", "s2", 1), payload_key(NAMESPACE, "x02", 1, Role.INPUT)]
    assert None not in await one.load(lost)

    class Losing(Stopping):
        """Forgets something of what it has taken."""

        def _stopping(self, write: Any) -> Any:
            async def stopping(*args: Any, **kwargs: Any) -> Any:
                answer = await write(*args, **kwargs)
                await commit_one(other, changing(other, "x01", *[Delete(key) for key in lost]))
                return answer

            return stopping

    with pytest.raises(CopyMismatch, match="Do not use this copy") as found:
        await Copying(one, Losing(other, 0, after=True)).run()  # type: ignore[arg-type]
    assert found.value.number == 2


async def test_only_the_namespace_that_is_asked_for_is_copied(stores: tuple[Store, Store]):
    one, other = stores
    await filled(one)
    mine = samples(0)
    renamed = [
        msgspec.structs.replace(record, namespace="elsewhere")
        for record in mine
        if record.KIND not in NOT_COPIED and hasattr(record, "namespace")
    ]
    await commit_one(one, changing(one, "x", *[Insert(record) for record in renamed]))
    await Copying(one, other, namespace="elsewhere").run()
    after = await everything(other)
    assert {getattr(record, "namespace", None) for record in after.values()} == {"elsewhere"}
    assert len(after) == len(renamed)


async def test_progress_is_told(stores: tuple[Store, Store]):
    one, other = stores
    await filled(one)
    told: list[Progress] = []
    await Copying(one, other, tell=told.append).run()
    assert {progress.doing for progress in told} == {"looked at", "copied", "compared"}
    assert max(p.records for p in told if (p.doing, p.kind) == ("copied", JournalEntry.KIND)) == 24


def test_gates_are_spread_over_other_partitions():
    lanes = [Lane(partition=p, namespace="n", lane="mail", paused=p == 1) for p in range(2)]
    assert spread(lanes, 2, 2) == lanes
    assert [gate.paused for gate in spread(lanes, 2, 3) if isinstance(gate, Lane)] == [True] * 3


async def test_what_is_owed_lives_with_the_execution_that_owes_it(stores: tuple[Store, Store]):
    """Where the partitions are others, an outbox record moves to another one."""
    one, other = stores
    owed = next(record for record in samples(0) if isinstance(record, Delivery))
    await commit_one(one, changing(one, "x", Insert(owed)))
    written: list[Changes] = []

    class Parted(Stopping):
        partitions = 7

        def _stopping(self, write: Any) -> Any:
            async def stopping(batch: list[Changes]) -> Any:
                written.extend(batch)
                return await write([msgspec.structs.replace(changes, partition=0) for changes in batch])

            return stopping

    await Copying(one, Parted(other, 0, after=True)).run()  # type: ignore[arg-type]
    home = partition_of(owed.namespace, owed.source or owed.target, 7)
    [moved] = await other.scan(Delivery.KIND, ())
    assert isinstance(moved, Delivery)
    assert moved.partition == home
    assert [c.partition for c in written for w in c.writes if isinstance(w, Insert)] == [home]
