"""The outbox across partitions: a word and its striking off are two commits, and it arrives once all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import OutlastError, StoreUnavailable
from outlast.machine import facts
from outlast.machine.changes import Changes, Insert
from outlast.model.child import ChildEnd
from outlast.model.event import UNDELIVERED, Event, answer_id
from outlast.model.execution import ParentClose
from outlast.model.lease import ClaimRequest
from outlast.model.outbox import Delivery
from outlast.model.partition import partition_of
from outlast.model.status import Status
from outlast.runtime import outbox
from outlast.runtime.engine import Engine
from outlast.runtime.forgetting import REPEATED_WITHIN_MS
from outlast.runtime.outbox import Outbox
from outlast.store.port import DueKind
from outlast.store.sqlite import SqliteStore
from outlast.testing import CrashPoints, ManualClock

NS = "shop"
FAR = "far-0"
NEAR = "near"


class Parted(SqliteStore):
    """One file that says it has many partitions: enough for what the engine makes of that."""

    @property
    def partitions(self) -> int:
        return 16


class World:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.recorded = 0

    async def open(self) -> World:
        self.store = await self.another()
        self.engine = Engine(self.store)
        return self

    async def another(self, points: CrashPoints | None = None) -> Parted:
        store = Parted(str(self.path), clock=self.clock, points=points)
        await store.migrate()
        await store.open()
        return store

    async def start(self, execution_id: str, **options: Any) -> None:
        what = {"workflow": "checkout", "version": "1", "input": b"[]", "input_digest": "d"}
        fact = facts.Start(change_id=f"start {execution_id}", namespace=NS, id=execution_id, **{**what, **options})
        assert (await self.engine.tell(NS, execution_id, fact)).applied

    async def hold(self, execution_id: str) -> Any:
        await self.start(execution_id)
        request = ClaimRequest(
            namespace=NS,
            lanes=("default",),
            serves=frozenset({("checkout", "1")}),
            worker="w",
            claim_id=f"claim {execution_id}",
            limit=1,
            lease_ttl_ms=10_000,
        )
        [claimed] = (await self.store.claim(request)).executions
        return claimed.execution

    async def owe(self, held: Any, target: str, fact: Any, **record: Any) -> Delivery:
        [delivery] = await self.all_owed(held, target, fact, **record)
        return delivery

    async def all_owed(self, held: Any, target: str, fact: Any, **record: Any) -> list[Delivery]:
        """One word more, and all that is owed then."""
        tell = facts.Tell(fact.change_id, target, facts.encode_fact(fact))
        self.recorded += 1
        recorded = facts.StepRecorded(
            change_id=f"recorded {self.recorded}",
            epoch=held.epoch,
            scope="",
            name=target,
            occurrence=self.recorded,
            op="send",
            outcome="succeeded",
            value=None,
            tells=(tell,),
            **record,
        )
        assert (await self.engine.tell(NS, held.id, recorded)).applied
        return await self.owed()

    async def owed(self) -> list[Delivery]:
        due = await self.store.due(DueKind.OUTBOX, limit=100)
        return [item.record for item in due.items if isinstance(item.record, Delivery)]

    async def events(self, execution_id: str) -> list[Event]:
        found = await self.store.scan(Event.KIND, (NS, execution_id))
        return [event for event in found if isinstance(event, Event)]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = await World(tmp_path / "outlast.db").open()
    assert partition_of(NS, NEAR, 16) != partition_of(NS, FAR, 16)
    yield world
    await world.engine.close()
    await world.store.close()


def word(**options: Any) -> facts.EventSent:
    home = partition_of(NS, NEAR, 16)
    return facts.EventSent(**{"change_id": f"{home}>word", "name": "plan", "value": b"1", **options})


@pytest.mark.parametrize("point", ["commit:begin", "commit:reply"])
@pytest.mark.parametrize("nth", [1, 2])
async def test_a_word_to_another_partition_cut_off_anywhere_arrives_once(world: World, point: str, nth: int):
    held = await world.hold(NEAR)
    await world.start(FAR)
    delivery = await world.owe(held, FAR, word())
    points = CrashPoints()
    dying = await world.another(points)
    points.crash_at(point, nth=nth)
    with pytest.raises(OutlastError):
        await Engine(dying).deliver(delivery)
    await dying.close()
    for left in await world.owed():
        await world.engine.deliver(left)
    assert len(await world.events(FAR)) == 1
    assert await world.owed() == []


async def test_what_a_far_partition_received_is_kept_while_it_is_owed(world: World):
    """The process died between telling and striking off, and the target has gone on as new: a repetition is known."""
    sender = await world.hold(NEAR)
    receiver = await world.hold(FAR)
    delivery = await world.owe(sender, FAR, word())
    await world.engine.tell(NS, FAR, word())  # told, and dead before it was struck off
    received = facts.StepRecorded(
        change_id="received",
        epoch=receiver.epoch,
        scope="",
        name="plan",
        occurrence=1,
        op="receive",
        outcome="succeeded",
        value=b"1",
        consumes=("plan", word().change_id),
    )
    await world.engine.tell(NS, FAR, received)
    world.clock.advance(REPEATED_WITHIN_MS / 1_000 + 1)
    await world.engine.tell(NS, FAR, facts.Continue(change_id="on", epoch=receiver.epoch, input=b"[]"))
    for debt in await world.owed():
        if debt.target == FAR and debt.id != delivery.id:
            await world.engine.deliver(debt)
    assert [event.consumed for event in await world.events(FAR)] == [True]
    await world.engine.deliver(delivery)
    assert [event.consumed for event in await world.events(FAR)] == [True], "nothing new came of it"
    await world.engine.outbox.deliver(
        Delivery(
            partition=0,
            id="again",
            namespace=NS,
            target=FAR,
            fact=facts.encode_fact(facts.Forget(change_id="again", before=2)),
            due_at=0,
            created_at=0,
            change_id="again",
        )
    )
    assert await world.events(FAR) == [], "it was struck off: nobody will repeat it"


async def test_a_refused_word_is_recorded_with_its_sender_or_dropped_if_that_is_gone(
    world: World, caplog: pytest.LogCaptureFixture
):
    held = await world.hold(NEAR)
    delivery = await world.owe(held, FAR, word())
    await world.engine.deliver(delivery)
    [note] = await world.events(NEAR)
    assert note.name == UNDELIVERED
    assert [record.getMessage() for record in caplog.records if "refused" in record.getMessage()] == [
        f"{NEAR}: EventSent for {FAR} is refused: there is no such execution"
    ]
    gone = Delivery(
        partition=partition_of(NS, "gone", 16),
        id="0>other",
        namespace=NS,
        target=FAR,
        source="gone",
        fact=facts.encode_fact(word(change_id="0>other")),
        due_at=0,
        created_at=0,
        change_id="x",
    )
    await world.engine.deliver(gone)
    assert await world.events("gone") == []


async def test_a_word_to_one_whose_start_is_still_on_its_way_waits_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """A parent starts one, and tells its child of it: what the child says may overtake the start."""
    held = await world.hold(NEAR)
    delivery = await world.owe(held, FAR, word())
    pauses = list[float]()

    async def sleep(delay_s: float) -> None:
        pauses.append(delay_s)
        if len(pauses) == 2:
            await world.start(FAR)

    monkeypatch.setattr(world.engine.timing, "sleep", sleep)
    await world.engine.deliver(delivery)
    assert [event.name for event in await world.events(FAR)] == ["plan"]
    assert await world.events(NEAR) == []
    assert len(pauses) == 2


@pytest.mark.parametrize("fact", [word(), facts.CancelRequested(change_id=word().change_id)], ids=["event", "cancel"])
async def test_a_word_to_one_whose_start_is_put_off_waits_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch, fact: Any
):
    """Its server was away when it was to be started, and is back when its parent tells it something."""
    held = await world.hold(NEAR)
    start = await world.owe(held, FAR, await start_of_far(world))
    await world.engine.postpone(start, error="away", delay_ms=60_000)
    assert await world.owed() == []
    told = await world.owe(held, FAR, fact)
    monkeypatch.setattr(outbox, "NOT_YET_S", (0.0,))
    await world.engine.deliver(told)
    child = await world.engine.look(NS, FAR)
    assert child is not None
    assert child.inbox == 1
    assert [event.name for event in await world.events(NEAR) if event.name == UNDELIVERED] == []
    world.clock.advance(61)
    assert [debt.id for debt in await world.owed() if debt.source == NEAR] == [], "neither is owed any more"


async def test_among_too_many_debts_a_word_to_one_that_is_not_there_is_left_for_later(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """Whether its start is among them cannot be told in bounded time: so it is not called undeliverable."""
    held = await world.hold(NEAR)
    for n in range(4):
        [word, *_] = await world.all_owed(held, FAR, facts.EventSent(change_id=f"w{n}", name="n", value=b"1"))
    monkeypatch.setattr(outbox, "NOT_YET_S", ())
    monkeypatch.setattr(outbox, "PAGE", 2)
    monkeypatch.setattr(outbox, "PAGES_MAX", 1)
    with pytest.raises(StoreUnavailable, match="too much is owed"):
        await world.engine.deliver(word)
    assert len(await world.owed()) == 4


async def test_what_is_said_behind_a_word_that_is_left_for_later_does_not_overtake_it(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    held = await world.hold(NEAR)
    await world.start(FAR)
    home = partition_of(NS, NEAR, 16)
    first, *others = [
        (await world.all_owed(held, FAR, word(change_id=f"{home}>{n}", value=b"%d" % n)))[-1] for n in range(3)
    ]
    await is_left_for_later(world, first, monkeypatch)
    [line] = world.engine.outbox._lines.values()
    assert line.left == {first.id: first.key}, "where it is; what it says may be large"
    for other in others:
        with pytest.raises(StoreUnavailable, match="what was said before"):
            await world.engine.deliver(other)
    for debt in (first, *others):
        await world.engine.deliver(debt)
    assert [event.value for event in await world.events(FAR)] == [b"0", b"1", b"2"]
    assert world.engine.outbox._lines == {}


async def test_what_is_left_for_later_and_was_carried_by_another_process_keeps_nobody_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    held = await world.hold(NEAR)
    await world.start(FAR)
    home = partition_of(NS, NEAR, 16)
    [first] = await world.all_owed(held, FAR, word(change_id=f"{home}>1"))
    await is_left_for_later(world, first, monkeypatch)
    other = Engine(world.store)
    await other.deliver(first)
    await other.close()
    [second] = await world.all_owed(held, FAR, word(change_id=f"{home}>2", value=b"2"))
    await world.engine.deliver(second)
    assert [event.value for event in await world.events(FAR)] == [b"1", b"2"]
    assert world.engine.outbox._lines == {}


async def is_left_for_later(world: World, debt: Delivery, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*args: Any, **options: Any) -> Any:
        raise StoreUnavailable("its server is away")

    with monkeypatch.context() as for_now:
        for_now.setattr(world.engine, "tell", away)
        with pytest.raises(StoreUnavailable, match="away"):
            await world.engine.deliver(debt)


async def start_of_far(world: World, **options: Any) -> facts.Start:
    home = partition_of(NS, NEAR, 16)
    what = {"workflow": "checkout", "version": "1", "input": b"[]", "input_digest": "d", "parent": NEAR}
    return facts.Start(change_id=f"{home}>start", namespace=NS, id=FAR, **{**what, **options})


async def ends_heard(world: World) -> list[tuple[str, ChildEnd]]:
    name = f"outlast:ended:{FAR}"
    return [(e.dedup, ChildEnd.decode(e.value or b"")) for e in await world.events(NEAR) if e.name == name]


async def test_a_start_across_partitions_starts_once(world: World):
    held = await world.hold(NEAR)
    delivery = await world.owe(held, FAR, await start_of_far(world), adopts=(FAR, ParentClose.CANCEL))
    for _ in range(3):
        await world.engine.deliver(delivery)
    child = await world.engine.look(NS, FAR)
    assert child is not None
    assert (child.parent, child.status) == (NEAR, Status.READY)
    assert await ends_heard(world) == []


async def test_a_parent_hears_that_the_id_is_anothers(world: World):
    held = await world.hold(NEAR)
    await world.start(FAR)
    fact = await start_of_far(world)
    await world.engine.deliver(await world.owe(held, FAR, fact))
    [(dedup, end)] = await ends_heard(world)
    assert (dedup, end.status, end.value) == (answer_id(fact.change_id), Status.FAILED, None)
    assert "is not a child" in (end.cause or "")
    assert await world.owed() == []


async def test_a_parent_hears_that_its_child_had_ended_before(world: World):
    held = await world.hold(NEAR)
    await world.start(FAR, parent=NEAR)
    await world.engine.tell(NS, FAR, facts.CancelRequested(change_id="cancel"))
    [told] = await world.owed()
    await world.engine.strike(told)  # it was heard by an earlier generation
    await world.engine.deliver(await world.owe(held, FAR, await start_of_far(world)))
    [(dedup, end)] = await ends_heard(world)
    assert (dedup, end.status) == ("1", Status.CANCELLED)


async def test_children_of_other_partitions_are_cancelled_through_the_outbox(world: World):
    held = await world.hold(NEAR)
    await world.engine.deliver(await world.owe(held, FAR, await start_of_far(world), adopts=(FAR, ParentClose.CANCEL)))
    await world.engine.tell(NS, NEAR, facts.Complete(change_id="done", epoch=held.epoch, output=b"null"))
    [debt] = await world.owed()
    assert await world.engine.deliver(debt) is None
    child = await world.engine.look(NS, FAR)
    assert child is not None
    assert child.status is Status.CANCELLED


async def test_who_comes_late_with_a_word_that_was_carried_does_not_call_it_refused(world: World):
    """The reconciler had it on its list; meanwhile it was delivered at once, and its target has ended."""
    held = await world.hold(NEAR)
    await world.start(f"{NEAR}/other", parent=NEAR)
    delivery = await world.owe(held, f"{NEAR}/other", word())
    await world.engine.deliver(delivery)
    await world.engine.tell(NS, f"{NEAR}/other", facts.CancelRequested(change_id="cancel"))
    await world.engine.deliver(delivery)
    assert [event for event in await world.events(NEAR) if event.name == UNDELIVERED] == []


async def test_a_close_in_the_turn_in_which_the_last_word_arrived_ends(world: World, monkeypatch: pytest.MonkeyPatch):
    """From Python 3.12 on, what has ended is gathered without a turn of the loop: it went round for ever."""
    outbox, arrived = Outbox(world.engine), asyncio.Event()

    async def deliver(delivery: Delivery) -> None:
        arrived.set()

    monkeypatch.setattr(outbox, "deliver", deliver)
    owed = Delivery(partition=0, id="x", namespace=NS, target=FAR, fact=b"", due_at=0, created_at=0, change_id="x")
    outbox.post(Changes(id="x", partition=0, anchors=(), writes=(Insert(owed),)))
    await arrived.wait()
    assert outbox._posted, "it has ended, and nobody was told yet"
    await outbox.close()
    assert not outbox._posted


async def test_what_takes_long_keeps_no_process_from_ending_and_stays_owed(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """Retrying a flow of a hundred thousand members takes minutes: whoever comes next goes on with it."""
    held = await world.hold(NEAR)
    await world.start(FAR)
    ending, begun = Engine(world.store, carries=True), asyncio.Event()

    async def takes_long(delivery: Delivery) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(ending.outbox, "deliver", takes_long)
    monkeypatch.setattr(outbox, "CLOSE_S", 0.05)
    world.engine, mine = ending, world.engine
    delivery = await world.owe(held, FAR, word())
    await begun.wait()
    async with asyncio.timeout(20):
        await ending.close()
    world.engine = mine
    assert await world.owed() == [delivery]
    await mine.deliver(delivery)
    assert len(await world.events(FAR)) == 1
