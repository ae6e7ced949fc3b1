"""Streams: the frames of an execution, and the feed of completions."""

from __future__ import annotations

import asyncio

import pytest

from outlast import limits
from outlast.errors import InvalidInput, LimitExceeded
from outlast.machine import facts
from outlast.model.completion import Completion
from outlast.model.execution import Execution
from outlast.model.frame import Frame
from outlast.model.status import Status
from outlast.store.port import EVERYTHING, Appended, Filter, Store
from outlast.testing.conformance.actors import (
    NAMESPACE,
    ROOT,
    WORKFLOW,
    claim,
    claim_one,
    commit_one,
    completes,
    decided,
    ended,
    fails,
    look,
    loses_lease,
    new_id,
    records,
    running,
    start_fact,
    start_many,
    tell,
)
from outlast.testing.conformance.harness import Conformance, World, refused


async def append(store: Store, held: Execution, *frames: bytes, change_id: str | None = None) -> Appended:
    return await store.append(
        held.namespace, held.id, epoch=held.epoch, change_id=change_id or new_id(), frames=list(frames)
    )


class FrameConformance(Conformance):
    async def test_frames_are_numbered_from_one(self, world: World, store: Store) -> None:
        held = await running(store)
        assert await append(store, held, b"a", b"b") == Appended(True, 2)
        world.clock.advance("1s")
        assert await append(store, held, b"\x00\xff") == Appended(True, 3)
        now = world.clock.now_ms()
        expected = [Frame(1, now - 1_000, b"a"), Frame(2, now - 1_000, b"b"), Frame(3, now, b"\x00\xff")]
        assert await store.frames(NAMESPACE, "a") == expected

    async def test_each_execution_has_a_stream_of_its_own(self, store: Store) -> None:
        for name in ("a", "b"):
            held = await running(store, name)
            assert await append(store, held, name.encode()) == Appended(True, 1)
        assert [frame.value for frame in await store.frames(NAMESPACE, "b")] == [b"b"]
        assert await store.frames("other", "b") == []

    async def test_a_stream_is_read_behind_an_offset_page_by_page(self, store: Store) -> None:
        held = await running(store)
        await append(store, held, *[str(n).encode() for n in range(10)])
        page = await store.frames(NAMESPACE, "a", after=3, limit=4)
        assert [frame.seq for frame in page] == [4, 5, 6, 7]
        assert [frame.seq for frame in await store.frames(NAMESPACE, "a", after=7, limit=4)] == [8, 9, 10]
        assert await store.frames(NAMESPACE, "a", after=10) == []

    async def test_a_repeated_append_appends_once(self, store: Store) -> None:
        held = await running(store)
        assert await append(store, held, b"a", b"b", change_id="c") == Appended(True, 2)
        await append(store, held, b"d", change_id="other")
        assert await append(store, held, b"a", b"b", change_id="c") == Appended(True, 3)
        assert [frame.value for frame in await store.frames(NAMESPACE, "a")] == [b"a", b"b", b"d"]

    async def test_a_repeated_append_is_recognised_after_the_lease_is_gone(self, store: Store) -> None:
        held = await running(store)
        await append(store, held, b"a", change_id="c")
        await commit_one(store, decided(store, held, completes(held)))
        assert await append(store, held, b"a", change_id="c") == Appended(True, 1)
        assert await append(store, held, b"late") == Appended(False, 1)

    async def test_only_the_holder_appends(self, world: World, store: Store) -> None:
        held = await running(store)
        await append(store, held, b"a")
        world.clock.advance("11s")
        await tell(store, "a", loses_lease(held))
        assert await append(store, held, b"zombie") == Appended(False, 1)
        taken = await claim_one(store, "w2")
        assert await append(store, held, b"zombie") == Appended(False, 1)
        assert await append(store, taken, b"b") == Appended(True, 2)

    async def test_nobody_appends_to_an_execution_that_does_not_exist(self, store: Store) -> None:
        nobody = await store.append(NAMESPACE, "nobody", epoch=1, change_id="c", frames=[b"x"])
        assert nobody == Appended(False, 0)

    async def test_appending_touches_nothing_else(self, store: Store) -> None:
        held = await running(store)
        await append(store, held, b"a")
        assert await look(store, "a") == held

    async def test_limits_are_enforced_and_nothing_is_written(self, store: Store) -> None:
        held = await running(store)
        big = b"x" * (limits.FRAME_MAX_BYTES + 1)
        await refused(append(store, held, b"small", big), LimitExceeded)
        await refused(append(store, held, *[b""] * (limits.BATCH_MAX_CHANGES + 1)), InvalidInput)
        assert await store.frames(NAMESPACE, "a") == []
        assert await append(store, held, big[:-1]) == Appended(True, 1)
        for limit in (0, limits.SCAN_MAX_RECORDS + 1):
            await refused(store.frames(NAMESPACE, "a", limit=limit), InvalidInput)


async def feed(store: Store, after: str | None = None, *, limit: int = 1_000, filter: Filter = EVERYTHING) -> list[str]:
    """The ids of a feed read to its end, page by page."""
    ids: list[str] = []
    while True:
        page = await store.completions(after=after, limit=limit, filter=filter)
        ids += [completion.execution for completion in page.completions]
        if len(page.completions) < limit:
            return ids
        after = page.cursor


class CompletionConformance(Conformance):
    async def test_an_end_is_in_the_feed_with_its_record(self, world: World, store: Store) -> None:
        await ended(store, "a", tags={"site": "paris"})
        [completion] = (await store.completions()).completions
        assert [completion] == await records(store, Completion)
        assert (completion.execution, completion.status, completion.workflow) == ("a", Status.SUCCEEDED, WORKFLOW)
        assert (completion.tags, completion.finished_at) == ('{"site":"paris"}', world.clock.now_ms())

    async def test_completions_come_in_the_order_of_their_commits(self, store: Store) -> None:
        names = [f"{ROOT}/{n}" for n in (5, 2, 9, 1, 7)]
        for name in names:
            await ended(store, name, parent=ROOT)
        assert await feed(store) == names
        assert await feed(store, limit=2) == names

    async def test_a_cursor_goes_on_where_it_stood(self, store: Store) -> None:
        await ended(store, "a")
        first = await store.completions()
        again = await store.completions(after=first.cursor)
        assert again.completions == []
        await ended(store, "b")
        assert await feed(store, again.cursor) == ["b"]
        assert await feed(store, first.cursor) == ["b"]

    async def test_a_feed_goes_on_behind_each_of_its_completions(self, store: Store) -> None:
        for number in range(12):
            await ended(store, f"x{number}")
        page = await store.completions()
        ids = [completion.execution for completion in page.completions]
        cursors = page.cursors or [str(completion.seq) for completion in page.completions]
        for number, cursor in enumerate(cursors, start=1):
            assert sorted(await feed(store, cursor, limit=5)) == sorted(ids[number:])

    async def test_an_empty_feed_has_a_cursor_too(self, store: Store) -> None:
        empty = await store.completions()
        assert empty.completions == []
        await ended(store, "a")
        assert await feed(store, empty.cursor) == ["a"]

    async def test_a_reader_beside_ten_writers_sees_each_completion_once(self, world: World, store: Store) -> None:
        names = {f"x{n}" for n in range(100)}
        await start_many(store, [start_fact(name) for name in sorted(names)])
        writers = await world.stores(10)

        async def work(number: int) -> None:
            writer = writers[number]
            for taken in (await claim(writer, f"w{number}", limit=10)).executions:
                held = taken.execution
                assert (await commit_one(writer, decided(writer, held, completes(held)))).applied

        async def read() -> list[str]:
            seen: list[str] = []
            cursor: str | None = None
            while len(seen) < len(names):
                page = await store.completions(after=cursor, limit=7)
                seen += [completion.execution for completion in page.completions]
                cursor = page.cursor
            return seen

        reading = asyncio.ensure_future(read())
        await asyncio.gather(*[work(number) for number in range(10)])
        seen = await reading
        assert len(seen) == len(names)
        assert set(seen) == names

    async def test_a_cursor_survives_the_purge_of_the_newest(self, world: World, store: Store) -> None:
        await ended(store, "a", retention_ms=1_000)
        cursor = (await store.completions()).cursor
        await ended(store, "b", retention_ms=1_000)
        newest = (await store.completions()).cursor
        world.clock.advance("1s")
        assert await store.purge() == 2
        await ended(store, "c")
        assert await feed(store, cursor) == ["c"]
        assert await feed(store, newest) == ["c"]

    async def test_a_feed_can_be_filtered(self, store: Store) -> None:
        await ended(store, "a", tags={"site": "paris"})
        await ended(store, "b", tags={"site": "oslo"})
        await ended(store, "c", tags={"site": "paris"}, namespace="other")
        assert await feed(store, filter=Filter(tag=("site", "paris"))) == ["a", "c"]
        assert await feed(store, filter=Filter(namespace=NAMESPACE)) == ["a", "b"]
        assert await feed(store, filter=Filter(namespace="other", tag=("site", "oslo"))) == []

    async def test_a_filtered_feed_moves_past_what_it_does_not_show(self, store: Store) -> None:
        for name in ("a", "b", "c"):
            await ended(store, name)
        page = await store.completions(limit=1, filter=Filter(tag=("site", "paris")))
        assert page.completions == []
        await ended(store, "d", tags={"site": "paris"})
        assert await feed(store, page.cursor, limit=1, filter=Filter(tag=("site", "paris"))) == ["d"]

    async def test_a_new_generation_completes_anew(self, store: Store) -> None:
        held = await running(store)
        await commit_one(store, decided(store, held, fails(held)))
        await tell(store, "a", facts.Retry(change_id="retry"))
        again = await claim_one(store)
        await commit_one(store, decided(store, again, completes(again)))
        statuses = [completion.status for completion in (await store.completions()).completions]
        assert statuses == [Status.FAILED, Status.SUCCEEDED]

    @pytest.mark.parametrize("cursor", ["", "x", "-1", "1.5", "²", "9" * 40, " 1"], ids=repr)
    async def test_what_is_no_cursor_is_refused(self, store: Store, cursor: str) -> None:
        await refused(store.completions(after=cursor), InvalidInput)

    @pytest.mark.parametrize("limit", [0, limits.SCAN_MAX_RECORDS + 1])
    async def test_a_page_past_its_limit_is_refused(self, store: Store, limit: int) -> None:
        await refused(store.completions(limit=limit), InvalidInput)
