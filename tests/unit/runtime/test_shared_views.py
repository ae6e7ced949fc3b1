"""Facts told at once about one execution share what this process knows of it; what is stale refuses none of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from outlast.errors import StoreUnavailable
from outlast.machine import facts
from outlast.machine.changes import Changes, Code, Matches
from outlast.model.event import Event
from outlast.model.execution import Execution, execution_key
from outlast.model.record import Key, Record
from outlast.model.status import Status
from outlast.runtime.engine import Engine, Told
from outlast.store.port import ClaimRequest, Committed
from outlast.store.sqlite import SqliteStore

NS = "default"


class World:
    """A store whose answers can be kept back, one engine that meets that, and another one that does not."""

    def __init__(self, path: Path) -> None:
        self.store, self.own = SqliteStore(str(path)), SqliteStore(str(path))
        self.engine, self.other = Engine(self.store, patience_s=0.0), Engine(self.own)
        self.commits, self.verdicts, self.loads = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for gate in (self.commits, self.verdicts, self.loads):
            gate.set()
        self.tries = self.looks = 0
        self.away = False
        self._commit, self._load = self.store.commit, self.store.load
        self.store.commit, self.store.load = self._committed, self._loaded

    async def _committed(self, batch: Sequence[Changes]) -> Committed:
        await self.commits.wait()
        committed = await self._commit(batch)
        self.tries += len(batch)
        await self.verdicts.wait()
        return committed

    async def _loaded(self, keys: Sequence[Key]) -> list[Record | None]:
        found = await self._load(keys)
        self.looks += 1
        await self.loads.wait()
        if self.away:
            raise StoreUnavailable("gone")
        return found

    async def started(self) -> None:
        fact = facts.Start(
            change_id="start", namespace=NS, id="a", workflow="w", version="1", input=b"[]", input_digest="d"
        )
        assert (await self.other.begin(fact)).applied

    async def waiting(self) -> None:
        """… and suspended until it is sent `plan`."""
        await self.started()
        request = ClaimRequest(
            namespace=NS,
            lanes=("default",),
            serves=frozenset({("w", "1")}),
            worker="worker",
            claim_id="claim",
            limit=1,
            lease_ttl_ms=10_000,
        )
        [taken] = (await self.own.claim(request)).executions
        suspend = facts.Suspend(
            change_id="suspend",
            epoch=taken.execution.epoch,
            inbox=0,
            reason="event:plan",
            waits=("event:plan",),
        )
        assert (await self.other.tell(NS, "a", suspend)).applied

    async def seen(self) -> Execution:
        execution = await self.other.look(NS, "a")
        assert execution is not None
        return execution

    def tell(self, fact: facts.AnyFact) -> asyncio.Task[Told]:
        return asyncio.create_task(self.engine.tell(NS, "a", fact))

    async def close(self) -> None:
        await self.engine.close()
        await self.other.close()
        await self.store.close()
        await self.own.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path / "outlast.db")
    await world.own.migrate()
    await world.own.open()
    await world.store.open()
    yield world
    await world.close()


def sent(number: int) -> facts.EventSent:
    return facts.EventSent(change_id=f"send-{number}", name="plan", value=b"1")


async def turns(number: int = 20) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def until_looked(world: World, looks: int) -> None:
    while world.looks < looks:  # noqa: ASYNC110 (nobody announces it)
        await asyncio.sleep(0)


async def until_tried(world: World, tries: int) -> None:
    while world.tries < tries:  # noqa: ASYNC110 (nobody announces it)
        await asyncio.sleep(0)


async def test_a_burst_that_wakes_an_execution_takes_one_look_and_one_try_each(world: World):
    await world.waiting()
    told = await asyncio.gather(*[world.tell(sent(number)) for number in range(100)])
    assert all(answer.applied for answer in told)
    assert (world.looks, world.tries) == (1, 100)
    assert (await world.seen()).status is Status.READY


async def test_a_wrong_prediction_costs_a_second_try_and_no_look(world: World):
    """Another process wakes the execution first: all that was decided upon its waiting is refused."""
    await world.waiting()
    world.commits.clear()
    telling = [world.tell(sent(number)) for number in range(50)]
    await until_looked(world, 1)
    await turns()
    assert (await world.other.tell(NS, "a", sent(1_000))).applied
    world.commits.set()
    assert all(answer.applied for answer in await asyncio.gather(*telling))
    assert world.tries <= 100
    assert world.looks == 1, "the first refusal says what the execution is now"
    assert len(await world.own.scan(Event.KIND, (NS, "a"), limit=100)) == 51


async def test_a_refusal_is_never_decided_on_what_was_read_before_the_call(world: World):
    """The answer to the first look comes late: by then the execution was opened again, and somebody else sends."""
    await world.waiting()
    assert (await world.other.tell(NS, "a", facts.CancelRequested(change_id="cancel", reason="no"))).applied
    world.loads.clear()
    first = world.tell(sent(1))
    await until_looked(world, 1)
    assert (await world.other.tell(NS, "a", facts.Retry(change_id="retry"))).applied
    second = world.tell(sent(2))
    await turns()
    world.loads.set()
    assert (await second).applied
    await first


async def test_a_record_that_came_with_an_earlier_refusal_is_no_reason_to_refuse(world: World):
    """A commit is refused because the execution has ended. Before its verdict is known, it is opened again."""
    await world.waiting()
    world.verdicts.clear()
    first = world.tell(facts.Hold(change_id="hold"))
    await until_looked(world, 1)
    assert (await world.other.tell(NS, "a", facts.CancelRequested(change_id="cancel", reason="no"))).applied
    await until_tried(world, 1)
    assert (await world.other.tell(NS, "a", facts.Retry(change_id="retry"))).applied
    second = world.tell(sent(2))
    await turns()
    world.verdicts.set()
    await first
    assert (await second).applied


async def test_what_a_change_in_flight_would_refuse_waits_for_its_verdict(world: World):
    """A cancel on its way would end the execution, but what it was decided upon holds no more."""
    await world.waiting()
    world.commits.clear()
    still = Matches(execution_key(NS, "a"), {"held": False})
    cancel = asyncio.create_task(
        world.engine.tell(NS, "a", facts.CancelRequested(change_id="cancel", reason="no"), only_if=(still,))
    )
    await until_looked(world, 1)
    await turns()
    event = world.tell(sent(1))
    await turns()
    assert not event.done(), "nobody knows yet whether the execution ends"
    assert (await world.other.tell(NS, "a", facts.Hold(change_id="hold"))).applied
    world.commits.set()
    assert (await event).applied
    assert not (await cancel).applied


async def test_the_second_of_two_cancels_is_answered_by_the_first(world: World):
    await world.waiting()
    told = await asyncio.gather(
        *[world.tell(facts.CancelRequested(change_id=f"cancel-{n}", reason="no")) for n in range(10)]
    )
    assert sum(answer.applied for answer in told) == 1
    assert {answer.refusal.code for answer in told if answer.refusal} == {Code.ALREADY}
    assert world.tries == 1


async def test_a_store_that_is_away_is_told_to_all_who_look(world: World):
    await world.started()
    world.away = True
    told = await asyncio.gather(*[world.tell(sent(number)) for number in range(5)], return_exceptions=True)
    assert [type(error) for error in told] == [StoreUnavailable] * 5
    assert world.looks == 1
    world.away = False
    assert (await world.engine.tell(NS, "a", sent(1))).applied


async def test_one_caller_who_gives_up_takes_nobody_along(world: World):
    await world.started()
    world.loads.clear()
    first, second = world.tell(sent(1)), world.tell(sent(2))
    await until_looked(world, 1)
    first.cancel()
    await turns()
    world.loads.set()
    assert (await second).applied
    assert first.cancelled()


async def test_a_view_is_forgotten_when_nobody_uses_it(world: World):
    await world.started()
    assert (await world.engine.tell(NS, "a", sent(1))).applied
    assert (await world.other.tell(NS, "a", facts.CancelRequested(change_id="cancel", reason="no"))).applied
    refused = await world.engine.tell(NS, "a", sent(2))
    assert refused.refusal is not None
    assert refused.refusal.code is Code.TERMINAL
