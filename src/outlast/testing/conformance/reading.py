"""Load and scan: what was written comes back exactly, in order, page by page."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outlast import limits
from outlast.errors import CorruptState, InvalidInput
from outlast.machine.changes import Delete, Insert, Patch, Put
from outlast.model.event import Event, event_key
from outlast.model.execution import Execution, execution_key
from outlast.model.journal import JournalEntry
from outlast.model.kinds import KINDS
from outlast.model.record import Key, Record
from outlast.store.port import Store
from outlast.testing.conformance.actors import (
    NAMESPACE,
    changing,
    commit,
    commit_one,
    decided,
    partition,
    records,
    running,
    same_but,
    sends,
    start,
    steps,
    tell,
)
from outlast.testing.conformance.harness import Conformance, refused
from outlast.testing.conformance.samples import (
    ID,
    active_execution,
    ended_execution,
    ready_execution,
    samples,
    suspended_execution,
)


class LoadConformance(Conformance):
    @pytest.mark.parametrize("sample", [active_execution, ended_execution, suspended_execution, ready_execution])
    async def test_an_execution_comes_back_exactly(self, store: Store, sample: Callable[[], Execution]) -> None:
        execution = sample()
        await commit_one(store, changing(store, execution.id, Insert(execution)))
        assert await store.load([execution.key]) == [execution]

    async def test_every_kind_comes_back_exactly(self, store: Store) -> None:
        home = partition(store, ID)
        every = samples(home)
        assert {record.KIND for record in every} | {Execution.KIND} == set(KINDS)
        verdict = await commit_one(store, changing(store, ID, *[Insert(record) for record in every]))
        assert verdict.applied
        found = await store.load([record.key for record in every])
        for written, read in zip(every, found, strict=True):
            assert read is not None
            assert type(read) is type(written)
            numbered = {"seq": getattr(read, "seq", 0)} if written.SEQUENCED else {}
            assert read == same_but(written, **numbered)
            for flag in written.FLAGS:
                assert isinstance(getattr(read, flag), bool)
            for word, words in written.WORDS.items():
                assert isinstance(getattr(read, word), words | None)

    async def test_a_put_of_every_kind_comes_back_exactly(self, store: Store) -> None:
        every = samples(partition(store, ID))
        for _ in range(2):
            await commit_one(store, changing(store, ID, *[Put(record) for record in every]))
        for written in every:
            [read] = await store.load([written.key])
            assert read is not None
            numbered = {"seq": getattr(read, "seq", 0)} if written.SEQUENCED else {}
            assert read == same_but(written, **numbered)

    async def test_every_kind_can_be_deleted(self, store: Store) -> None:
        every = samples(partition(store, ID))
        await commit_one(store, changing(store, ID, *[Insert(record) for record in every]))
        await commit_one(store, changing(store, ID, *[Delete(record.key) for record in every]))
        assert await store.load([record.key for record in every]) == [None] * len(every)

    async def test_answers_come_in_the_order_of_the_keys_with_none_for_the_missing(self, store: Store) -> None:
        for name in "ab":
            await start(store, name)
        keys = [execution_key(NAMESPACE, name) for name in ("b", "nobody", "a", "b")]
        found = await store.load(keys)
        assert [record and record.key.values[1] for record in found] == ["b", None, "a", "b"]

    async def test_loading_nothing_answers_nothing(self, store: Store) -> None:
        assert await store.load([]) == []

    async def test_too_many_keys_are_refused(self, store: Store) -> None:
        key = execution_key(NAMESPACE, "a")
        assert await store.load([key] * limits.LOAD_MAX_KEYS) == [None] * limits.LOAD_MAX_KEYS
        await refused(store.load([key] * (limits.LOAD_MAX_KEYS + 1)), InvalidInput)

    async def test_an_unknown_kind_is_refused(self, store: Store) -> None:
        await refused(store.load([Key("unicorn", ("a",))]), InvalidInput)
        await refused(store.scan("unicorn", ("a",)), InvalidInput)

    async def test_a_record_that_breaks_an_invariant_is_not_handed_out(self, store: Store) -> None:
        await start(store)
        key = execution_key(NAMESPACE, "a")
        await commit_one(store, changing(store, "a", Patch(key, {"worker": "ghost"})))
        await refused(store.load([key]), CorruptState)


class ScanConformance(Conformance):
    async def test_records_come_in_the_order_of_their_keys(self, store: Store) -> None:
        held = await running(store)
        names = [("b", 2), ("b", 10), ("a", 1), ("é", 1), ("B", 1), ("b", 1)]
        for name, occurrence in names:
            await commit_one(store, decided(store, held, steps(held, name, occurrence=occurrence)))
        found = [(e.name, e.occurrence) for e in await records(store, JournalEntry)]
        assert found == sorted(names)

    async def test_a_prefix_selects_whole_key_values(self, store: Store) -> None:
        for name in ("a", "ab", "b"):
            held = await running(store, name)
            await commit_one(store, decided(store, held, steps(held)))
        assert {e.execution for e in await records(store, JournalEntry, "a")} == {"a"}
        assert await store.scan(JournalEntry.KIND, (NAMESPACE, "a", 2)) == []
        assert len(await store.scan(JournalEntry.KIND, (NAMESPACE, "a", 1))) == 1

    async def test_pages_join_without_gap_or_repetition(self, store: Store) -> None:
        held = await running(store)
        batch = [decided(store, held, steps(held, f"s{n % 7}", occurrence=n)) for n in range(50)]
        await commit(store, *batch)
        whole = await store.scan(JournalEntry.KIND, (NAMESPACE, "a"))
        pages: list[Record] = []
        after: Key | None = None
        while page := await store.scan(JournalEntry.KIND, (NAMESPACE, "a"), after=after, limit=7):
            pages += page
            after = page[-1].key
        assert pages == whole
        assert len(whole) == 50

    async def test_a_page_goes_on_behind_a_key_that_is_gone(self, store: Store) -> None:
        held = await running(store)
        await commit(store, *[decided(store, held, steps(held, name)) for name in "abc"])
        first, second, third = await store.scan(JournalEntry.KIND, (NAMESPACE, "a"))
        await commit_one(store, changing(store, "a", Delete(second.key)))
        assert await store.scan(JournalEntry.KIND, (NAMESPACE, "a"), after=second.key) == [third]
        assert await store.scan(JournalEntry.KIND, (NAMESPACE, "a")) == [first, third]

    async def test_events_come_in_the_order_they_were_sent_whatever_their_keys(self, store: Store) -> None:
        await start(store)
        keys = ["m", "z", "a", "y", "b", "0"]
        for key in keys:
            await tell(store, "a", sends(f"name-{key}" if key in "za" else "plan", dedup=key))
        found = await records(store, Event)
        assert [event.dedup for event in found] == keys
        assert [event.seq for event in found] == sorted(event.seq for event in found)
        plans = await store.scan(Event.KIND, (NAMESPACE, "a", "plan"))
        assert [event.dedup for event in plans if isinstance(event, Event)] == ["m", "y", "b", "0"]

    async def test_events_of_one_batch_keep_its_order(self, store: Store) -> None:
        execution = await start(store)
        keys = [f"{n * 37 % 100:02}" for n in range(100)]
        await commit(store, *[decided(store, execution, sends(dedup=key)) for key in keys])
        assert [event.dedup for event in await records(store, Event)] == keys

    async def test_pages_of_events_follow_their_order(self, store: Store) -> None:
        execution = await start(store)
        keys = [f"{n * 37 % 100:02}" for n in range(100)]
        await commit(store, *[decided(store, execution, sends(dedup=key)) for key in keys])
        found: list[str] = []
        after: Key | None = None
        while page := await store.scan(Event.KIND, (NAMESPACE, "a"), after=after, limit=9):
            found += [event.dedup for event in page if isinstance(event, Event)]
            after = page[-1].key
        assert found == keys

    async def test_a_late_event_comes_last_although_earlier_ones_are_gone(self, store: Store) -> None:
        await start(store)
        for key in ("c", "b"):
            await tell(store, "a", sends(dedup=key))
        await commit_one(store, changing(store, "a", Delete(event_key(NAMESPACE, "a", "plan", "b"))))
        await tell(store, "a", sends(dedup="a"))
        assert [event.dedup for event in await records(store, Event)] == ["c", "a"]

    @pytest.mark.parametrize("limit", [0, -1, limits.SCAN_MAX_RECORDS + 1])
    async def test_a_page_past_its_limit_is_refused(self, store: Store, limit: int) -> None:
        await refused(store.scan(JournalEntry.KIND, (NAMESPACE, "a"), limit=limit), InvalidInput)
