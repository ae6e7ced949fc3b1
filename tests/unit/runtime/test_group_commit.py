"""Group commit on a real store: what comes while a commit is in flight shares the next one, in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from outlast import limits
from outlast.errors import IdHeld, ReplyLost, StoreClosed, StoreFull, StoreUnavailable
from outlast.machine.changes import Absent, Add, Changes, Delete, Insert, Matches, Patch, started_by
from outlast.model.execution import execution_key
from outlast.model.flow import EdgeAnswer, edge_answer_key
from outlast.model.lane import Lane, lane_key
from outlast.model.record import Now
from outlast.model.status import Status
from outlast.runtime.group_commit import GroupCommit
from outlast.store.port import Committed, CommittedInPart, Verdict
from outlast.store.sqlite import SqliteStore
from outlast.testing import CrashPoints, ManualClock
from outlast.testing.conformance import actors

NS = "default"


class Gate:
    """Points that can hold the writer before its next commit: what is submitted meanwhile must wait together."""

    def __init__(self) -> None:
        self.points = CrashPoints()
        self.held, self.free = threading.Event(), threading.Event()
        self.unavailable = 0
        self.let_through = 0
        self.free.set()

    def __call__(self, name: str) -> None:
        self.points(name)
        if name == "commit:begin":
            self.held.set()
            assert self.free.wait(10)
            if self.let_through:
                self.let_through -= 1
            elif self.unavailable:
                self.unavailable -= 1
                raise StoreUnavailable("not now")

    async def until_held(self) -> None:
        assert await asyncio.to_thread(self.held.wait, 10)

    @property
    def commits(self) -> int:
        return self.points.passed.count("commit:begin")


class Pauses:
    """Waits for nothing, and remembers for how long it was asked to."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def __call__(self, delay_s: float, /) -> None:
        self.asked.append(delay_s)
        await asyncio.sleep(0)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
async def store(tmp_path: Path, gate: Gate) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "outlast.db"), clock=ManualClock(), points=gate)
    await store.migrate()
    await store.open()
    yield store
    gate.free.set()
    await store.close()


@pytest.fixture
async def group(store: SqliteStore, pauses: Pauses) -> AsyncIterator[GroupCommit]:
    group = GroupCommit(store, batch_max=10, patience_s=1.0, pause=pauses)
    yield group
    await group.close()


def edge(n: int, *, change_id: str | None = None) -> Changes:
    """A record that the store numbers: its `seq` tells in which order changes were applied."""
    change_id = change_id or f"change-{n}"
    record = EdgeAnswer(
        namespace=NS, execution="x", upstream=f"{n:04}", answer="", answered_at=Now(), change_id=change_id
    )
    return Changes(id=change_id, partition=0, anchors=(record.key,), writes=(Insert(record),))


def end(n: int) -> Changes:
    """Of an execution that there is not: it is refused."""
    key = execution_key(NS, f"x{n}")
    guards = (Matches(key, {"epoch": 1}),)
    return Changes(
        id=f"end-{n}", partition=0, anchors=(key,), guards=guards, writes=(Patch(key, {"status": Status.SUCCEEDED}),)
    )


def impossible(n: int = 0) -> Changes:
    """No store can apply it."""
    key = lane_key(0, NS, f"l{n}")
    return Changes(id=f"bad-{n}", partition=0, anchors=(key,), writes=(Patch(key, {"colour": 1}),))


async def order(store: SqliteStore) -> list[str]:
    return [record.upstream for record in await store.scan("edge", (NS, "x")) if isinstance(record, EdgeAnswer)]


async def submitted_while_held(group: GroupCommit, gate: Gate, *batch: Changes) -> list[asyncio.Future[Verdict]]:
    """One commit is in flight; these are submitted meanwhile."""
    gate.held.clear()
    gate.free.clear()
    first = group.commit(edge(0))
    await gate.until_held()
    rest = [group.commit(changes) for changes in batch]
    await asyncio.sleep(0)
    gate.points.passed.clear()
    gate.free.set()
    assert (await first).applied
    return rest


# ---- gathering ----------------------------------------------------------------------------------------------------


async def test_alone_it_is_committed_at_once(group: GroupCommit, gate: Gate):
    for n in range(3):
        assert (await group.commit(edge(n))).applied
    assert gate.commits == 3


async def test_what_comes_while_a_commit_is_in_flight_shares_the_next(group: GroupCommit, gate: Gate):
    rest = await submitted_while_held(group, gate, *[edge(n) for n in range(1, 9)])
    assert all(verdict.applied for verdict in await asyncio.gather(*rest))
    assert gate.commits == 1


async def test_batch_has_a_bound_and_order_is_kept_across_batches(group: GroupCommit, gate: Gate, store: SqliteStore):
    rest = await submitted_while_held(group, gate, *[edge(n) for n in range(1, 36)])
    await asyncio.gather(*rest)
    assert gate.commits == 4
    assert await order(store) == [f"{n:04}" for n in range(36)]


async def test_batch_has_a_bound_of_bytes_and_one_change_may_have_more(
    group: GroupCommit, gate: Gate, store: SqliteStore, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "BATCH_MAX_BYTES", 100)
    sizes = [40, 40, 40, 200, 10, 10, 10, 70, 1]
    batch = [start(store, f"x{n}", input=bytes(size)) for n, size in enumerate(sizes)]
    rest = await submitted_while_held(group, gate, *batch)
    assert all(verdict.applied for verdict in await asyncio.gather(*rest))
    # Where few are left, nobody counts: they are small enough if none is larger than a value may be.
    assert [len(ids) for ids in elsewhere.batches[1:]] == [2, 1, 1, 4, 1]


@pytest.mark.parametrize(
    "apart, number, expected",
    [
        (True, 100, [50, 50, 50, 50]),
        (True, 65, [33, 32, 33, 32]),
        (True, 63, [63, 63]),
        (False, 100, [100, 100]),
    ],
)
async def test_those_that_come_round_together_are_halved_where_a_server_does_the_work(
    store: SqliteStore,
    elsewhere: Elsewhere,
    monkeypatch: pytest.MonkeyPatch,
    apart: bool,
    number: int,
    expected: list[int],
):
    """While the one half is at the server, this process goes on with the other: both are never away together."""
    declared = structs.replace(store.capabilities, apart=apart)
    monkeypatch.setattr(SqliteStore, "capabilities", declared)
    group = GroupCommit(store)

    async def twice(n: int) -> None:
        for turn in range(2):
            assert (await group.commit(edge(n + turn * number))).applied

    await asyncio.gather(*(twice(n) for n in range(number)))
    assert [len(ids) for ids in elsewhere.batches] == expected
    committed = [change_id for batch in elsewhere.batches for change_id in batch]
    assert committed == [edge(n).id for n in range(2 * number)], "in the order in which they came"


async def test_ends_are_not_halved_nobody_goes_on_behind_them(
    store: SqliteStore, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(SqliteStore, "capabilities", structs.replace(store.capabilities, apart=True))
    group = GroupCommit(store)
    await asyncio.gather(*(group.commit(end(n)) for n in range(100)))
    await asyncio.gather(*(group.commit(end(n)) for n in range(30)), *(group.commit(edge(n)) for n in range(70)))
    assert [len(ids) for ids in elsewhere.batches] == [100, 65, 35]


async def test_each_change_has_its_own_verdict(group: GroupCommit, gate: Gate):
    rest = await submitted_while_held(group, gate, edge(1), edge(1, change_id="another"), edge(2), edge(1))
    one, other, two, again = await asyncio.gather(*rest)
    assert one.applied
    assert two.applied
    assert not other.applied
    assert other.refused_by == Absent(edge_answer_key(NS, "x", "0001"))
    assert again.applied
    assert again.again
    assert gate.commits == 1


async def test_the_stores_time_is_remembered(group: GroupCommit, store: SqliteStore):
    assert group.now == 0
    await group.commit(edge(1))
    assert group.now == await store.now()


# ---- answers that do not come -------------------------------------------------------------------------------------


async def test_lost_reply_is_retried_verbatim(group: GroupCommit, gate: Gate, pauses: Pauses, store: SqliteStore):
    gate.points.lose_reply("commit")
    verdict = await group.commit(edge(1))
    assert verdict.applied
    assert verdict.again
    assert await order(store) == ["0001"]
    assert pauses.asked == [0.01]


async def test_lost_reply_of_a_batch_tells_each_what_became_of_it(group: GroupCommit, gate: Gate, store: SqliteStore):
    await group.commit(edge(2, change_id="was-there"))
    gate.points.lose_reply("commit", nth=2)  # the first commit in flight is answered, the batch is not
    rest = await submitted_while_held(group, gate, edge(1), edge(2), edge(3))
    one, two, three = await asyncio.gather(*rest)
    assert (one.applied, one.again) == (True, True)
    assert (two.applied, two.again) == (False, False)
    assert (three.applied, three.again) == (True, True)
    assert await order(store) == ["0002", "0000", "0001", "0003"]


async def test_unavailable_store_is_asked_again_with_growing_pauses(group: GroupCommit, gate: Gate, pauses: Pauses):
    gate.unavailable = 4
    assert (await group.commit(edge(1))).applied
    assert pauses.asked == [0.01, 0.02, 0.04, 0.08]
    assert gate.commits == 5


async def test_patience_ends(group: GroupCommit, gate: Gate, pauses: Pauses):
    gate.unavailable = 1_000
    with pytest.raises(StoreUnavailable, match="not now"):
        await group.commit(edge(1))
    assert 1.0 <= sum(pauses.asked) <= 2.0
    assert max(pauses.asked) <= 1.0
    gate.unavailable = 0
    assert (await group.commit(edge(1))).applied


async def test_patience_that_ends_while_replies_are_lost_says_so(group: GroupCommit, gate: Gate, store: SqliteStore):
    for _ in range(100):
        gate.points.lose_reply("commit")
    with pytest.raises(ReplyLost):
        await group.commit(edge(1))
    assert await order(store) == ["0001"]  # it may well have been done: that is what the error says


# ---- one bad change -----------------------------------------------------------------------------------------------


async def test_one_bad_change_fails_alone_and_order_is_kept(group: GroupCommit, gate: Gate, store: SqliteStore):
    rest = await submitted_while_held(group, gate, edge(1), impossible(), edge(2), impossible(1), edge(3))
    outcomes = await asyncio.gather(*rest, return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "Verdict",
        "InvalidInput",
        "Verdict",
        "InvalidInput",
        "Verdict",
    ]
    assert await order(store) == ["0000", "0001", "0002", "0003"]


async def test_a_commit_in_part_answers_who_was_heard_and_asks_again_for_the_rest(
    group: GroupCommit, gate: Gate, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    """Of a store on several servers, one of which was full, and another cut off."""
    asked: list[list[str]] = []
    whole = store.commit

    async def commit(batch: Sequence[Changes]) -> Committed:
        asked.append([changes.id for changes in batch])
        if len(batch) < 5:
            return await whole(batch)
        heard, full = (await whole(batch[:1])).verdicts[0], StoreFull("full")
        raise CommittedInPart(7, [heard, full, ReplyLost("lost"), full, ReplyLost("lost")], full, [5, 0, 0, 0, 0])

    monkeypatch.setattr(store, "commit", commit)
    futures = await submitted_while_held(group, gate, edge(1), edge(2), edge(3), impossible(), edge(5))
    told = await asyncio.gather(*futures, return_exceptions=True)
    assert [isinstance(answer, Verdict) and (answer.applied, answer.again) for answer in told] == [
        (True, False),
        (True, False),
        (True, False),
        False,
        (True, False),
    ]
    assert asked[2:] == [["change-2"], ["bad-0"], ["change-3", "change-5"]]


async def test_caller_who_gave_up_takes_nobody_with_it(group: GroupCommit, gate: Gate, store: SqliteStore):
    gate.held.clear()
    gate.free.clear()
    first = group.commit(edge(0))
    await gate.until_held()
    second, third = group.commit(edge(1)), asyncio.ensure_future(group.commit(edge(2)))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    gate.free.set()
    assert (await third).applied
    assert first.cancelled()
    assert second.cancelled()
    assert await order(store) == ["0000", "0001", "0002"]  # what was taken is done, whoever waits


# ---- an id that somebody else's transaction holds ------------------------------------------------------------------


class Elsewhere:
    """A transaction of somebody else's, which has started `ids` and is still open."""

    def __init__(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids: set[str] = set()
        self.batches: list[list[str]] = []
        self._commit = store.commit
        monkeypatch.setattr(store, "commit", self.commit)

    async def commit(self, batch: list[Changes]) -> Committed:
        started = [execution.id for changes in batch for execution in started_by(changes)]
        self.batches.append([changes.id for changes in batch])
        if self.ids.intersection(started):
            await asyncio.sleep(0.01)
            raise IdHeld(started)
        return await self._commit(batch)


@pytest.fixture
def elsewhere(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    return Elsewhere(store, monkeypatch)


def start(store: SqliteStore, name: str, **options: Any) -> Changes:
    return actors.start_changes(store, actors.start_fact(name, **options))


async def test_a_start_of_a_held_id_waits_alone(store: SqliteStore, elsewhere: Elsewhere):
    elsewhere.ids = {"held"}
    group = GroupCommit(store, patience_s=20.0)
    first = group.commit(edge(0))
    waits = group.commit(start(store, "held"))
    others = [group.commit(edge(1)), group.commit(start(store, "other")), group.commit(edge(2))]
    async with asyncio.timeout(10):
        assert all(verdict.applied for verdict in await asyncio.gather(first, *others))
        assert (await group.commit(start(store, "late"))).applied
        assert not waits.done()
        elsewhere.ids.clear()
        assert (await waits).applied
        await group.close()
    assert await order(store) == ["0000", "0001", "0002"]


async def test_what_comes_later_for_the_same_execution_waits_behind_it(store: SqliteStore, elsewhere: Elsewhere):
    elsewhere.ids = {"held"}
    group = GroupCommit(store, patience_s=20.0)
    key = actors.execution_key(actors.NAMESPACE, "held")
    starting = start(store, "held")
    late = [actors.changing(store, "held", Add(key, "inbox", 1), change_id=f"late-{n}") for n in range(3)]
    verdicts = [group.commit(starting)]
    await asyncio.sleep(0.05)
    verdicts += [group.commit(changes) for changes in late]
    async with asyncio.timeout(10):
        assert (await group.commit(edge(1))).applied
        assert not any(verdict.done() for verdict in verdicts)
        elsewhere.ids.clear()
        assert [verdict.inbox for verdict in await asyncio.gather(*verdicts)] == [0, 1, 2, 3]
        await group.close()
    decided = [change for batch in elsewhere.batches for change in batch if change != "change-1"]
    assert decided == sorted(decided, key=[starting.id, *(changes.id for changes in late)].index)


async def test_an_id_that_stays_held_is_an_error_within_the_patience(
    store: SqliteStore, elsewhere: Elsewhere, pauses: Pauses
):
    elsewhere.ids = {"held"}
    group = GroupCommit(store, patience_s=0.3, pause=pauses)
    async with asyncio.timeout(10):
        waiting = [group.commit(start(store, "held")) for _ in range(3)]
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, IdHeld)
            assert str(outcome).startswith("execution 'held' is being started by another transaction")
        elsewhere.ids.clear()
        assert (await group.commit(start(store, "held"))).applied


async def test_a_start_with_a_claim_does_not_wait_for_a_held_id(store: SqliteStore, elsewhere: Elsewhere):
    """A worker keeps room for it: it is told soon, and starts without the claim."""
    elsewhere.ids = {"held"}
    await store.renew("w1", lease_ttl_ms=60_000)
    group = GroupCommit(store, patience_s=20.0)
    async with asyncio.timeout(10):
        claims = [group.commit(start(store, name, worker="w1")) for name in ("held", "held", "other")]
        held, behind, other = await asyncio.gather(*claims, return_exceptions=True)
        assert isinstance(held, IdHeld)
        assert isinstance(behind, IdHeld)
        assert isinstance(other, Verdict)
        assert other.applied, "who only shares its batch keeps its claim"
        batches = len(elsewhere.batches)
        apart = group.commit_aside(start(store, "held"))
        with pytest.raises(IdHeld):
            await group.commit(start(store, "held", worker="w1"))
        behind = group.commit(
            actors.changing(store, "held", Add(actors.execution_key(actors.NAMESPACE, "held"), "inbox", 1))
        )
        assert (await group.commit(edge(1))).applied
        assert not apart.done()
        elsewhere.ids.clear()
        assert [(await apart).inbox, (await behind).inbox] == [0, 1]
        await group.close()
    assert all(len(batch) == 1 for batch in elsewhere.batches[batches:]), "nobody shares a commit with it"


async def test_closing_does_not_wait_for_an_id_that_stays_held(store: SqliteStore, elsewhere: Elsewhere):
    elsewhere.ids = {"held", "freed"}
    group = GroupCommit(store, patience_s=60.0)
    key = actors.execution_key(actors.NAMESPACE, "held")
    waiting = [group.commit(start(store, name)) for name in ("held", "held", "freed")]
    await asyncio.sleep(0.05)
    late = group.commit(actors.changing(store, "held", Add(key, "inbox", 1)))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(10):
        closing = asyncio.create_task(group.close())
        await asyncio.sleep(0)
        elsewhere.ids.remove("freed")
        await closing
    assert isinstance(waiting[0].exception(), IdHeld)
    assert isinstance(waiting[1].exception(), IdHeld)
    assert waiting[2].result().applied, "each was tried once more"
    assert late.done()


# ---- the end ------------------------------------------------------------------------------------------------------


async def test_close_answers_what_was_taken_and_takes_nothing_more(group: GroupCommit, gate: Gate, store: SqliteStore):
    gate.held.clear()
    gate.free.clear()
    taken = [group.commit(edge(n)) for n in range(25)]
    await gate.until_held()
    closing = asyncio.ensure_future(group.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreClosed, match="the engine is closed"):
        await group.commit(edge(99))
    gate.free.set()
    await closing
    assert all(task.done() for task in taken)
    assert all(task.result().applied for task in taken)
    assert await order(store) == [f"{n:04}" for n in range(25)]
    await group.close()


async def test_closed_store_is_an_error_for_everybody_who_waits(store: SqliteStore, gate: Gate, pauses: Pauses):
    group = GroupCommit(store, pause=pauses)
    await store.close()
    outcomes = await asyncio.gather(*[group.commit(edge(n)) for n in range(3)], return_exceptions=True)
    assert all(isinstance(outcome, StoreClosed) for outcome in outcomes)
    assert pauses.asked == []


async def test_change_that_only_deletes_needs_no_answer_to_be_safe(group: GroupCommit, gate: Gate, store: SqliteStore):
    lane = Lane(partition=0, namespace=NS, lane="x", paused=True)
    await store.commit([Changes(id="a", partition=0, anchors=(lane.key,), writes=(Insert(lane),))])
    gate.points.lose_reply("commit")
    verdict = await group.commit(Changes(id="b", partition=0, anchors=(lane.key,), writes=(Delete(lane.key),)))
    assert verdict.applied
    assert await store.load([lane.key]) == [None]


async def test_crash_of_the_store_reaches_everybody_who_waits(store: SqliteStore, gate: Gate, pauses: Pauses):
    group = GroupCommit(store, batch_max=2, pause=pauses)
    gate.points.crash_at("commit:commit")
    commits = [group.commit(edge(n)) for n in range(5)]
    done, _ = await asyncio.wait(commits, timeout=10)
    assert len(done) == 5
    assert all(isinstance(commit.exception(), StoreClosed) for commit in commits)


async def test_patience_is_not_spent_again_for_every_change_of_a_batch(group: GroupCommit, gate: Gate, pauses: Pauses):
    gate.let_through, gate.unavailable = 1, 100_000
    rest = await submitted_while_held(group, gate, *[edge(n) for n in range(1, 9)])
    outcomes = await asyncio.gather(*rest, return_exceptions=True)
    gate.unavailable = 0
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    assert sum(pauses.asked) <= 2.0


async def test_a_store_that_takes_its_time_to_fail_uses_up_the_patience(
    store: SqliteStore, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
):
    """A store has a patience of its own: the caller's is no multiple of it."""
    asked = 0

    async def away(_: object) -> Committed:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.2)
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "commit", away)
    group = GroupCommit(store, patience_s=0.5, pause=pauses)
    with pytest.raises(StoreUnavailable):
        await group.commit(edge(1))
    assert asked <= 3
