"""The engine carries facts until they are settled: applied, refused by the machine, or by the record that was first."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec import structs

from outlast.errors import StoreUnavailable
from outlast.machine import facts
from outlast.machine.changes import Changes, Code
from outlast.machine.decide import decide
from outlast.machine.upkeep import session_lapsed
from outlast.model.child import ChildEnd
from outlast.model.deferred import Deferred, Resolution
from outlast.model.event import Event, event_key
from outlast.model.execution import Execution
from outlast.model.lease import ClaimRequest
from outlast.model.outbox import Delivery
from outlast.model.session import Session
from outlast.model.status import Reason, Status
from outlast.runtime import engine as engine_module
from outlast.runtime.engine import Engine
from outlast.runtime.entropy import SeededEntropy
from outlast.store.port import DueKind, Verdict
from outlast.store.sqlite import SqliteStore
from outlast.testing import CrashPoints, ManualClock

NS = "default"


class World:
    """One store, two engines on it, a clock and crash points."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock, self.points = ManualClock(), CrashPoints()
        self.meddle = False
        self.store = SqliteStore(str(path), clock=self.clock, points=self._points)
        self.engine = Engine(self.store, entropy=SeededEntropy(1), pause=self._pause)
        self.other = Engine(self.store, entropy=SeededEntropy(2), pause=self._pause)

    async def _pause(self, delay_s: float, /) -> None:
        await asyncio.sleep(0)

    def _points(self, name: str) -> None:
        self.points(name)
        if self.meddle and name == "commit:begin":
            connection = apsw.Connection(str(self.path))
            connection.execute("UPDATE outlast_execution SET unwinds = 1 - unwinds")
            connection.close()

    async def start(self, execution_id: str = "order", **options: object) -> Execution:
        given = {"workflow": "checkout", "version": "1", "input": b"[]", "input_digest": "d", **options}
        fact = facts.Start(change_id=f"start {execution_id}", namespace=NS, id=execution_id, **given)
        assert (await self.engine.tell(NS, execution_id, fact)).applied
        return await self.seen(execution_id)

    async def claim(self) -> None:
        request = ClaimRequest(
            namespace=NS,
            lanes=("default",),
            serves=frozenset({("checkout", "1")}),
            worker="worker",
            claim_id="claim",
            limit=10,
            lease_ttl_ms=10_000,
        )
        await self.store.claim(request)

    async def seen(self, execution_id: str = "order") -> Execution:
        execution = await self.engine.look(NS, execution_id)
        assert execution is not None
        return execution

    async def owed(self) -> list[Delivery]:
        due = await self.store.due(DueKind.OUTBOX, limit=10)
        return [item.record for item in due.items if isinstance(item.record, Delivery)]

    @property
    def commits(self) -> int:
        return self.points.passed.count("commit:begin")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path / "outlast.db")
    await world.store.migrate()
    await world.store.open()
    yield world
    await world.engine.close()
    await world.other.close()
    await world.store.close()


def event(change_id: str, *, value: bytes = b"1", dedup: str | None = None) -> facts.EventSent:
    return facts.EventSent(change_id=change_id, name="plan", value=value, dedup=dedup)


# ---- tell ---------------------------------------------------------------------------------------------------------


async def test_applied_fact_tells_what_was_before(world: World):
    before = await world.start()
    told = await world.engine.tell(NS, "order", facts.Hold(change_id="hold"))
    assert told.applied
    assert told.before == before
    assert told.verdict is not None
    assert told.verdict.inbox == 1
    assert (await world.seen()).held


async def test_engine_looks_again_when_something_changed_in_between(world: World):
    stale = await world.start()
    await world.other.tell(NS, "order", facts.Hold(change_id="hold"))
    world.points.passed.clear()
    told = await world.engine.tell(NS, "order", facts.CancelRequested(change_id="cancel"), seen=stale)
    assert told.applied
    assert told.before is not None
    assert told.before.held  # not what was seen first
    assert world.commits == 2
    assert (await world.seen()).status is Status.CANCELLED


async def test_second_look_may_end_in_a_refusal(world: World):
    stale = await world.start()
    await world.other.tell(NS, "order", facts.CancelRequested(change_id="cancel"))
    told = await world.engine.tell(NS, "order", facts.Hold(change_id="hold"), seen=stale)
    assert told.refusal is not None
    assert told.refusal.code is Code.TERMINAL
    assert not told.applied


async def test_contention_without_end_is_reported(world: World, monkeypatch: pytest.MonkeyPatch):
    """Somebody changes it before each of our commits."""
    monkeypatch.setattr(engine_module, "LOOKS_MAX", 5)
    await world.start()
    world.meddle = True
    world.points.passed.clear()
    with pytest.raises(StoreUnavailable, match="'order' changed 5 times"):
        await world.engine.tell(NS, "order", facts.Hold(change_id="hold"))
    assert world.commits == 5


async def test_what_is_decided_again_hears_what_refused_it_and_contention_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine_module, "LOOKS_MAX", 3)
    execution = await world.start()
    heard: list[object] = []

    async def stale(refused: Verdict | None) -> Changes:
        heard.append(None if refused is None else refused.refused_by)
        return session_lapsed(Session(partition=0, worker="none", expires_at=0, started_at=0), "gone")

    async def refused(refused: Verdict | None) -> Changes:
        heard.append(None if refused is None else refused.refused_by)
        fact = facts.Hold(change_id="hold")
        answer = decide(world.engine.view(NS, "order", structs.replace(execution, epoch=9)), fact, 0)
        assert isinstance(answer, Changes)
        return answer

    assert not isinstance(await world.engine.settle("a session", stale), Changes)
    with pytest.raises(StoreUnavailable, match="'order' changed 3 times"):
        await world.engine.settle("execution 'order'", refused)
    assert [type(one).__name__ for one in heard] == ["NoneType", "NoneType", "Matches", "Matches"]


async def test_same_start_by_two_is_one_execution(world: World):
    def start(change_id: str, digest: str = "d") -> facts.Start:
        return facts.Start(
            change_id=change_id,
            namespace=NS,
            id="order",
            workflow="checkout",
            version="1",
            input=b"[]",
            input_digest=digest,
        )

    one, other, third = await asyncio.gather(
        world.engine.tell(NS, "order", start("one")),
        world.other.tell(NS, "order", start("two")),
        world.other.tell(NS, "order", start("three", digest="other")),
    )
    assert one.applied
    assert other.refusal is not None
    assert other.refusal.code is Code.ALREADY
    assert third.refusal is not None
    assert third.refusal.code is Code.CONFLICT


def start_of(execution_id: str, change_id: str, **options: Any) -> facts.Start:
    given = {"workflow": "checkout", "version": "1", "input": b"[]", "input_digest": "d", **options}
    return facts.Start(change_id=change_id, namespace=NS, id=execution_id, **given)


async def test_many_starts_settle_as_each_by_itself(world: World):
    await world.start("known")
    await world.start("other")
    starts = [
        *(start_of(f"order-{number}", f"start {number}") for number in range(5)),
        start_of("known", "again"),
        start_of("other", "differs", input_digest="e"),
        start_of("order-0", "twice"),
    ]
    told = await world.engine.begin_all(starts)
    assert [one.applied for one in told] == [True] * 5 + [False] * 3
    codes = [one.refusal.code for one in told[5:] if one.refusal is not None]
    assert codes == [Code.ALREADY, Code.CONFLICT, Code.ALREADY]
    assert await world.engine.begin_all([]) == []


async def test_many_starts_are_on_their_way_while_the_next_are_decided(world: World):
    engine = Engine(world.store, entropy=SeededEntropy(3), batch_max=10)
    told = await engine.begin_all([start_of(f"order-{number}", f"start {number}") for number in range(35)])
    assert all(one.applied for one in told)
    assert world.commits == 4
    await engine.close()


async def test_many_starts_that_fail_fail_once(world: World, caplog: pytest.LogCaptureFixture):
    engine = Engine(world.store, entropy=SeededEntropy(3), patience_s=0.0, batch_max=10)
    for nth in range(1, 5):
        world.points.lose_reply("commit", nth=nth)
    with pytest.raises(StoreUnavailable):
        await engine.begin_all([start_of(f"order-{number}", f"start {number}") for number in range(35)])
    await engine.close()
    gc.collect()
    await asyncio.sleep(0)
    assert caplog.records == []


async def test_start_without_a_look_settles_as_one_with_a_look(world: World):
    fact = facts.Start(
        change_id="one", namespace=NS, id="order", workflow="checkout", version="1", input=b"[]", input_digest="d"
    )
    assert (await world.engine.begin(fact)).applied
    again = await world.engine.begin(fact)
    assert again.applied  # its own record: done before
    other = await world.engine.begin(facts.Start(**{**_fields(fact), "change_id": "two"}))
    assert other.refusal is not None
    assert other.refusal.code is Code.ALREADY


def _fields(fact: facts.Start) -> dict[str, object]:
    return {name: getattr(fact, name) for name in fact.__struct_fields__}


async def test_event_with_a_key_that_was_sent_before_shows_the_first(world: World):
    await world.start()
    assert (await world.engine.tell(NS, "order", event("one", value=b"gold", dedup="once"))).applied
    told = await world.other.tell(NS, "order", event("two", value=b"silver", dedup="once"))
    assert not told.applied
    assert told.refusal is None
    assert isinstance(told.instead, Event)
    assert told.instead.value == b"gold"
    assert (await world.seen()).inbox == 1


async def test_deferred_that_was_resolved_before_shows_the_first(world: World):
    await world.start()
    first = facts.DeferredResolved(change_id="one", name="approval", value=b"yes")
    assert (await world.engine.tell(NS, "order", first)).applied
    second = facts.DeferredResolved(change_id="two", name="approval", value=b"no", resolution=Resolution.REJECTED)
    told = await world.other.tell(NS, "order", second)
    assert isinstance(told.instead, Deferred)
    assert (told.instead.value, told.instead.resolution) == (b"yes", Resolution.RESOLVED)


async def test_unknown_execution_is_refused_by_the_machine(world: World):
    told = await world.engine.tell(NS, "nobody", facts.Hold(change_id="hold"))
    assert told.before is None
    assert told.refusal is not None
    assert told.refusal.code is Code.UNKNOWN
    assert world.commits == 0


async def test_wake_that_is_early_by_the_stores_clock_is_not_due(world: World):
    await world.start(delay_ms=60_000)
    wake = facts.Wake(change_id="wake", cause=Reason.DELAY)
    told = await world.engine.tell(NS, "order", wake)
    assert told.refusal is not None
    assert told.refusal.code is Code.NOT_DUE
    world.clock.advance("60s")
    assert (await world.engine.tell(NS, "order", wake)).applied
    assert (await world.seen()).status is Status.READY


async def test_lease_that_was_renewed_meanwhile_is_not_lost(world: World):
    await world.start()
    await world.claim()
    lost = facts.LeaseLost(change_id="lost", epoch=1)
    world.clock.advance("11s")
    await world.store.renew("worker", lease_ttl_ms=10_000)
    told = await world.engine.tell(NS, "order", lost)
    assert told.refusal is not None
    assert told.refusal.code is Code.NOT_DUE
    world.clock.advance("11s")
    assert (await world.engine.tell(NS, "order", lost)).applied


async def test_timeout_belongs_to_a_worker_that_lives(world: World):
    await world.start(timeout_ms=1_000)
    await world.claim()
    world.clock.advance("11s")
    told = await world.engine.tell(NS, "order", facts.TimeOut(change_id="late", epoch=1))
    assert told.refusal is not None
    assert told.refusal.code is Code.NOT_DUE  # the session lapsed: it is a lost lease
    await world.store.renew("worker", lease_ttl_ms=10_000)
    assert (await world.engine.tell(NS, "order", facts.TimeOut(change_id="late", epoch=1))).applied


async def test_lost_reply_is_no_second_event(world: World):
    await world.start()
    world.points.lose_reply("commit")
    told = await world.engine.tell(NS, "order", event("one"))
    assert told.applied
    assert told.verdict is not None
    assert told.verdict.again
    assert len(await world.store.scan("event", (NS, "order"))) == 1
    assert (await world.seen()).inbox == 1


async def test_many_writers_of_one_execution_all_end_in_an_answer(world: World):
    await world.start()
    told = await asyncio.gather(
        *[
            engine.tell(NS, "order", event(f"{n}-{id(engine)}"))
            for n in range(30)
            for engine in (world.engine, world.other)
        ],
        world.engine.tell(NS, "order", facts.Hold(change_id="hold")),
        world.other.tell(NS, "order", facts.Release(change_id="release")),
    )
    assert sum(answer.applied for answer in told) >= 61
    assert (await world.seen()).inbox == sum(answer.applied for answer in told)


# ---- deliveries ---------------------------------------------------------------------------------------------------


async def child_that_ended(world: World) -> Delivery:
    await world.start("order")
    await world.start("order/ship", parent="order")
    await world.engine.tell(NS, "order/ship", facts.CancelRequested(change_id="cancel"))
    [delivery] = await world.owed()
    return delivery


async def test_delivery_reaches_its_target_and_is_struck_off(world: World):
    delivery = await child_that_ended(world)
    told = await world.engine.deliver(delivery)
    assert told is not None
    assert told.applied
    [word] = await world.store.load([event_key(NS, "order", "outlast:ended:order/ship", "1")])
    assert isinstance(word, Event)
    assert ChildEnd.decode(word.value or b"").status == "cancelled"
    assert await world.owed() == []


async def test_delivery_may_be_repeated(world: World):
    """By two engines at once, and by one that crashed before it struck it off."""
    delivery = await child_that_ended(world)
    await asyncio.gather(world.engine.deliver(delivery), world.other.deliver(delivery))
    await world.engine.deliver(delivery)
    assert (await world.seen("order")).inbox == 1
    assert len(await world.store.scan("event", (NS, "order"))) == 1
    assert await world.owed() == []


async def test_delivery_to_nobody_is_struck_off(world: World):
    await world.start("gone/child", parent="gone")
    await world.engine.tell(NS, "gone/child", facts.CancelRequested(change_id="cancel"))
    [delivery] = await world.owed()
    told = await world.engine.deliver(delivery)
    assert told is not None
    assert told.refusal is not None
    assert told.refusal.code is Code.UNKNOWN
    assert await world.owed() == []


async def test_postponed_delivery_comes_later_and_says_why(world: World):
    delivery = await child_that_ended(world)
    await world.engine.postpone(delivery, error="x" * 5_000, delay_ms=30_000)
    assert await world.owed() == []
    world.clock.advance("30s")
    [later] = await world.owed()
    assert later.tries == 1
    assert later.error == "x" * 1_000
    assert later.fact == delivery.fact


async def test_delivery_is_postponed_once_by_two_who_saw_the_same(world: World):
    delivery = await child_that_ended(world)
    await asyncio.gather(
        world.engine.postpone(delivery, error="one", delay_ms=30_000),
        world.other.postpone(delivery, error="two", delay_ms=90_000),
    )
    world.clock.advance("30s")
    [later] = await world.owed()
    assert (later.tries, later.error) == (1, "one")


async def test_postponing_what_was_delivered_meanwhile_brings_nothing_back(world: World):
    delivery = await child_that_ended(world)
    await world.other.deliver(delivery)
    await world.engine.postpone(delivery, error="late", delay_ms=0)
    world.clock.advance("1h")
    assert await world.owed() == []
