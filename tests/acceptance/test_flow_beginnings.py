"""What a flow begins with, begins in the commit that accepts it where there is room; who waits is given what it ends
with."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlast import App, Status
from outlast.errors import StoreUnavailable, UnknownWorkflow
from outlast.machine.changes import Changes, Put
from outlast.model.execution import Execution
from outlast.model.lane import Lane
from outlast.runtime.engine import Engine
from outlast.runtime.worker import Worker
from tests.acceptance.conftest import Gate, Place, until
from tests.acceptance.flow_workflows import member_is, workflows
from tests.acceptance.test_fast_path import cannot_begin, with_room


def engine_of(app: App) -> Engine:
    assert app._opened is not None
    return app._opened._engine


def chain(app: App, kit: Any, length: int = 3) -> Any:
    flow = app.flow("f", id="f")
    last = flow.add("m0", kit.number, 7)
    for n in range(1, length):
        last = flow.add(f"m{n}", kit.number, last.output)
    return flow


async def is_given_back(worker: Worker) -> None:
    await until(lambda: worker._promised == 0 and worker.busy == 0, "room that was promised is not given back")


async def test_a_chain_is_never_looked_for(place: Place, claims: list[str]):
    app = place.app()
    kit = workflows(app)
    async with app:
        worker = await with_room(app)
        fh = await chain(app, kit).start()
        assert await fh.result("20s") == {f"m{n}": 7 for n in range(3)}
        assert await fh.result("20s") == {f"m{n}": 7 for n in range(3)}, "and read, the same"
        assert (await fh.status()).status is Status.SUCCEEDED
        await is_given_back(worker)
    assert claims == []


async def test_members_that_wait_for_nothing_begin_as_far_as_there_is_room(place: Place, gate: Gate, claims: list[str]):
    app = place.app()

    @app.step
    async def waits() -> None:
        await gate()

    @app.workflow
    async def code(number: int) -> int:
        await waits()
        return number

    async with app.worker(concurrency=2) as worker:
        await with_room(app)
        flow = app.flow("f", id="f")
        for n in range(3):
            flow.add(f"m{n}", code, n)
        fh = await flow.start()
        found = [(await app.execution(f"f/m{n}").info()).status for n in range(3)]
        assert found == [Status.ACTIVE, Status.ACTIVE, Status.READY]
        gate.open()
        assert await fh.result("20s") == {"m0": 0, "m1": 1, "m2": 2}
        await is_given_back(worker)
    assert claims == ["f/m2"]


async def test_a_paused_lane_is_not_passed(place: Place):
    app = place.app()
    kit = workflows(app)
    async with app:
        worker = await with_room(app)
        engine = engine_of(app)
        for partition in range(engine.store.partitions):
            lane = Lane(partition=partition, namespace="default", lane="default", paused=True)
            put = Changes(id=f"pause-{partition}", partition=partition, anchors=(lane.key,), writes=(Put(lane),))
            assert (await engine.group.commit(put)).applied
        fh = await chain(app, kit).start()
        await member_is(fh, "m0", Status.READY)
        await asyncio.sleep(0.05)
        await member_is(fh, "m0", Status.READY)
        assert worker._promised == 0


async def test_a_flow_whose_acceptance_was_not_answered_begins_here_too(
    place: Place, claims: list[str], monkeypatch: pytest.MonkeyPatch
):
    app = place.app()
    kit = workflows(app)
    async with app:
        worker = await with_room(app)
        store = engine_of(app).store
        really, lost = store.commit, list[str]()

        async def commit(batch: Any) -> Any:
            committed = await really(batch)
            if not lost and any(isinstance(getattr(w, "record", None), Execution) for c in batch for w in c.writes):
                lost.append("reply")
                raise StoreUnavailable("the reply is lost")
            return committed

        monkeypatch.setattr(store, "commit", commit)
        fh = await chain(app, kit).start()
        assert lost == ["reply"]
        assert await fh.result("20s") == {f"m{n}": 7 for n in range(3)}
        await is_given_back(worker)
    assert claims == []


async def test_a_flow_whose_starter_went_away_begins_all_the_same(
    place: Place, claims: list[str], monkeypatch: pytest.MonkeyPatch
):
    app = place.app()
    kit = workflows(app)
    async with app:
        worker = await with_room(app)
        store, under_way = engine_of(app).store, asyncio.Event()
        really = store.commit

        async def commit(batch: Any) -> Any:
            under_way.set()
            return await really(batch)

        monkeypatch.setattr(store, "commit", commit)
        starting = asyncio.create_task(chain(app, kit).start())
        await under_way.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        fh = app.flow_handle("f")
        await until(lambda: worker.busy == 0 and worker._promised == 0, "it does not begin")
        assert await fh.result("20s") == {f"m{n}": 7 for n in range(3)}
    assert claims == []


async def test_the_same_flow_again_is_the_same_and_room_is_given_back(place: Place):
    app = place.app()
    kit = workflows(app)
    async with app:
        worker = await with_room(app)
        first = await chain(app, kit).start()
        again = await chain(app, kit).start()
        assert await first.result("20s") == await again.result("20s")
        await is_given_back(worker)


async def test_one_that_cannot_begin_gives_nobody_more_room_than_there_is(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    app = place.app()
    kit = workflows(app)
    async with app.worker(concurrency=3) as worker:
        await with_room(app)
        cannot_begin(worker, monkeypatch, 2)
        flow = app.flow("f", id="f")
        for n in range(3):
            flow.add(f"m{n}", kit.number, n)
        with pytest.raises(UnknownWorkflow):
            await flow.start()
        await until(lambda: worker.busy == 0, "what has begun does not end")
        assert worker._promised == 0
        assert worker._free() == 3


async def test_large_outputs_are_read_and_not_kept(place: Place):
    app = place.app()
    kit = workflows(app)
    async with app:
        await with_room(app)
        flow = app.flow("f", id="f")
        flow.add("m0", kit.text, "x" * 20_000)
        fh = await flow.start()
        assert await fh.result("20s") == {"m0": "x" * 20_000}


async def test_who_waits_late_or_elsewhere_hears_of_the_end(place: Place):
    app, other = place.app(), place.app()
    kit = workflows(app)
    workflows(other)
    async with app, other.client():
        await with_room(app)
        fh = await chain(app, kit).start()
        there = asyncio.create_task(other.flow_handle("f").result("20s"))
        await is_given_back(await with_room(app))
        assert await fh.result("20s") == {f"m{n}": 7 for n in range(3)}, "it has ended by now"
        assert await there == await other.flow_handle("f").result("20s") == {f"m{n}": 7 for n in range(3)}
