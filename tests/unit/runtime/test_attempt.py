"""An attempt stops at once when its lease is gone, goes on only with what is durable, and replays before all else."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import outlast
from outlast import App, Handle
from outlast.machine import facts
from outlast.model.execution import Execution, execution_key
from outlast.model.lease import ClaimRequest
from outlast.model.status import Status
from outlast.runtime import worker
from outlast.runtime.engine import Engine
from outlast.runtime.worker import Worker
from outlast.store.sqlite import SqliteStore
from outlast.testing import CrashPoints, ManualClock, harness

T = TypeVar("T")


async def soon(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, 10)


async def waits_for_version(handle: Handle[None]) -> None:
    while (await handle.info()).reason != "version":  # noqa: ASYNC110
        await asyncio.sleep(0.01)


class Takeover:
    """An app that runs a workflow in this process, and another process that takes the execution from it."""

    def __init__(self, path: Path) -> None:
        self.clock, self.points = ManualClock(), CrashPoints()
        self.app = App(
            store=lambda: SqliteStore(str(path), clock=self.clock, points=self.points),
            reconcile_shared=False,
            doorbell=False,
        )
        self.begun, self.stopped = asyncio.Event(), asyncio.Event()
        self.go_on = asyncio.Event()
        self.did: list[str] = []
        self.other = SqliteStore(str(path), clock=self.clock)
        self._engine = Engine(self.other)

        @self.app.step
        async def first() -> None:
            self.begun.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.stopped.set()
                raise

        @self.app.step
        async def second() -> None:
            self.did.append("second")

        @self.app.workflow(name="both", version="1")
        async def both() -> None:
            try:
                await first()
                self.did.append("heard of first")
                await second()
            finally:
                self.stopped.set()

        self.both = both

    @property
    def worker(self) -> Worker:
        assert self.app._opened is not None
        assert self.app._opened.worker is not None
        return self.app._opened.worker

    async def seen(self, execution_id: str = "it") -> Execution:
        [execution] = await self.other.load([execution_key("default", execution_id)])
        assert isinstance(execution, Execution)
        return execution

    async def take(self) -> Execution:
        """The session lapses, and another worker has it."""
        held = await self.seen()
        for _ in range(10):  # the ring of its own start lets the worker renew once more, perhaps only now
            self.clock.advance("11s")
            lost = await self._engine.tell("default", "it", facts.LeaseLost(change_id="lost", epoch=held.epoch))
            if lost.applied:
                break
        else:
            pytest.fail("its session does not lapse")
        await self.claim("other")
        return await self.seen()

    async def claim(self, worker: str, lane: str = "default") -> None:
        request = ClaimRequest(
            namespace="default",
            lanes=(lane,),
            serves=frozenset({("both", "1")}),
            worker=worker,
            claim_id=f"{worker} in {lane}",
            limit=1,
            lease_ttl_ms=60_000,
        )
        assert len((await self.other.claim(request)).executions) == 1


@pytest.fixture
async def takeover(tmp_path: Path) -> AsyncIterator[Takeover]:
    takeover = Takeover(tmp_path / "outlast.db")
    # Without room for a second: the ring of its own start may let it look for work once more, perhaps only after it was
    # taken from it.
    async with takeover.app.worker(drain=0, poll="1h", reconcilers=False, concurrency=1):
        await takeover.other.open()
        await takeover.both.options(id="it").start()
        await soon(takeover.begun.wait())
        yield takeover
    await takeover._engine.close()
    await takeover.other.close()


async def test_losing_the_lease_stops_the_code_at_once(takeover: Takeover):
    """Without waiting for the code's next write: its step is in the middle of something."""
    taken = await takeover.take()
    await takeover.worker.renew()
    await soon(takeover.stopped.wait())
    assert takeover.did == []
    assert await takeover.seen() == taken


async def test_a_refused_write_stops_the_code_at_once(takeover: Takeover):
    """A zombie that has not heard of its loss yet hears of it from the store."""
    taken = await takeover.take()
    takeover.go_on.set()
    await soon(takeover.stopped.wait())
    assert takeover.did == []
    assert await takeover.seen() == taken
    assert await takeover.other.scan("journal", ("default", "it")) == []


async def test_a_worker_hands_back_what_it_holds_and_does_not_run(takeover: Takeover, monkeypatch: pytest.MonkeyPatch):
    """A claim whose reply never came. After a while, so that a claim on its way is not taken for it."""
    monkeypatch.setattr(worker, "UNKNOWN_FOR", 1_000)
    await takeover.both.options(id="unknown", lane="elsewhere").start()
    await takeover.claim(takeover.worker.name, "elsewhere")
    await takeover.worker.renew()
    await asyncio.gather(*takeover.worker._errands)
    assert (await takeover.seen("unknown")).status is Status.ACTIVE
    monkeypatch.setattr(worker, "UNKNOWN_FOR", 0)
    await takeover.worker.renew()
    await asyncio.gather(*takeover.worker._errands)
    execution = await takeover.seen("unknown")
    assert (execution.status, execution.crashes, execution.failures) == (Status.READY, 0, 0)
    assert (await takeover.seen()).status is Status.ACTIVE


async def test_code_goes_on_only_with_what_is_durable(takeover: Takeover):
    """Its process dies in the commit of the first step: the code has not heard of the step."""
    takeover.points.crash_at("commit:commit")
    takeover.go_on.set()
    await soon(takeover.stopped.wait())
    assert takeover.did == []
    execution = await takeover.seen()
    assert execution.status is Status.ACTIVE
    assert await takeover.other.scan("journal", ("default", "it")) == []


async def test_code_goes_on_only_with_a_token_that_is_durable(tmp_path: Path):
    """The same of what is no step."""
    points, heard, stopped = CrashPoints(), list[str](), asyncio.Event()
    app = App(
        store=lambda: SqliteStore(str(tmp_path / "outlast.db"), points=points),
        doorbell=False,
        token_keys="key:" + "s" * 32,
    )

    @app.step
    async def until_all_is_recorded() -> None: ...

    @app.workflow
    async def asks() -> None:
        try:
            await outlast.deferred("first", bool).token()
            await until_all_is_recorded()  # the next commit is that of the second token
            heard.append("the first")
            points.crash_at("commit:commit")
            await outlast.deferred("second", bool).token()
            heard.append("the second")
        finally:
            stopped.set()

    async with app.worker(drain=0, poll="1h", reconcilers=False):
        await asks.start()
        await soon(stopped.wait())
    assert heard == ["the first"]


async def test_code_does_nothing_new_before_its_journal_is_replayed(tmp_path: Path):
    """Changed code that would run something else first: it is found out while that something still waits."""
    url, performed, stuck = f"sqlite:///{tmp_path}/outlast.db", list[str](), asyncio.Event()
    before, after = App(url), App(url)

    @before.step(name="charge")
    async def charge() -> None: ...

    @before.step(name="ship")
    async def ship() -> None:
        stuck.set()
        await asyncio.Event().wait()

    @before.workflow(name="checkout")
    async def checkout() -> None:
        await charge()
        await ship()

    @after.step(name="refund")
    async def refund() -> None:
        performed.append("refund")

    @after.workflow(name="checkout")
    async def changed() -> None:
        early = asyncio.ensure_future(refund())
        for _ in range(5_000):  # the real loop has its turn now and then: what was begun would run
            await asyncio.sleep(0)
        await early

    async with before.worker(drain=0):
        await checkout.options(id="it").start()
        await soon(stuck.wait())
    async with after:
        handle = changed.execution("it")
        await soon(waits_for_version(handle))
    assert performed == []


# ---- what is awaited later ----------------------------------------------------------------------------------------


async def test_what_the_code_keeps_to_await_it_later_is_no_mistake_when_it_is_suspended(recwarn: Any):
    app = App("sqlite:///of-the-user.db")

    @app.step
    async def double(number: int) -> int:
        return 2 * number

    async def own(number: int) -> int:
        return await double(number)

    async def plain(number: int) -> int:
        return number

    @app.workflow
    async def later() -> list[int]:
        one, some, many = double(1), [double(2), own(3)], [plain(number) for number in range(1_500)]
        race = outlast.race(double(4), double(4))
        await outlast.sleep("1d")
        assert [await each for each in many] == list(range(1_500))
        return [await one, *[await each for each in some], await race]

    @app.workflow
    async def never() -> None:
        double(1)  # pyright: ignore[reportUnusedCoroutine]
        await outlast.sleep("1d")

    async with harness(app):
        assert await later() == [2, 4, 6, 8]
        assert [str(one.message) for one in recwarn if "never awaited" in str(one.message)] == []
        await never()
        gc.collect()
        assert [one for one in recwarn if "never awaited" in str(one.message)] != []
