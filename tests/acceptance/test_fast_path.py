"""The in-process fast path: what is started where there is room begins there, held from its first commit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlast import App, ExecutionConflict, Status
from outlast.errors import UnknownWorkflow
from outlast.model.lease import Claimed, ClaimRequest
from outlast.runtime.local_holder import LocalHolder
from outlast.runtime.parts import WorkflowDefinition
from outlast.runtime.worker import Worker
from tests.acceptance.conftest import Gate, Place, status_is, until


def worker_of(app: App) -> Worker:
    assert app._opened is not None
    assert app._opened.worker is not None
    return app._opened.worker


async def with_room(app: App) -> Worker:
    """Once the worker has looked and found nothing that waits."""
    worker = worker_of(app)
    await until(lambda: worker._lanes_empty and not worker._kick.is_set(), "the worker does not know of an empty lane")
    return worker


def cannot_begin(worker: Worker, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    """The code of what begins as the nth one is not found."""
    really, asked = worker._definition, list[str]()

    def definition(name: str, version: str) -> WorkflowDefinition:
        asked.append(name)
        if len(asked) == nth:
            raise UnknownWorkflow(name, version)
        return really(name, version)

    monkeypatch.setattr(worker, "_definition", definition)


async def test_what_is_started_where_there_is_room_is_held_from_its_first_commit(app: App, gate: Gate):
    @app.step
    async def wait() -> None:
        await gate()

    @app.workflow
    async def waiting() -> str:
        await wait()
        return "done"

    async with app:
        worker = await with_room(app)
        handle = await waiting.start()
        info, [attempt] = await handle.info(), await handle.attempts()
        assert (info.status, attempt.worker) == (Status.ACTIVE, worker.name)
        gate.open()
        assert await handle.result(timeout=20) == "done"
        [attempt] = await handle.attempts()
        assert attempt.outcome == "succeeded"


async def test_without_room_it_waits_and_nothing_overtakes_it(place: Place, gate: Gate):
    app = place.app()
    ran: list[int] = []

    @app.step
    async def pass_gate(number: int) -> None:
        if number == 0:
            await gate()

    @app.workflow
    async def numbered(number: int) -> int:
        await pass_gate(number)
        ran.append(number)
        return number

    async with app.worker(concurrency=1):
        await with_room(app)
        handles = [await numbered.start(number) for number in range(5)]
        assert [(await handle.info()).status for handle in handles] == ["active", *["ready"] * 4]
        gate.open()
        assert [await handle.result(timeout=20) for handle in handles] == list(range(5))
    assert ran == list(range(5))


async def test_what_is_started_while_others_wait_does_not_pass_them(place: Place, gate: Gate):
    """Room that frees belongs to what waits longest, also when a start comes at that moment."""
    app = place.app()
    ran: list[str] = []

    @app.step
    async def hold() -> None:
        await gate()

    @app.workflow
    async def named(name: str) -> str:
        if name == "first":
            await hold()
        ran.append(name)
        return name

    async with app.worker(concurrency=1):
        await with_room(app)
        first = await named.start("first")
        waiting = await named.start("waiting")
        gate.open()
        await first.result(timeout=20)
        new = await named.start("new")
        await waiting.result(timeout=20)
        await new.result(timeout=20)
    assert ran == ["first", "waiting", "new"]


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Where looks for work wait for their answer, from now on."""
    answered = Gate()
    really = LocalHolder.claim

    async def slowly(self: LocalHolder, request: ClaimRequest) -> Claimed:
        await answered()
        return await really(self, request)

    monkeypatch.setattr(LocalHolder, "claim", slowly)
    return answered


async def test_a_look_for_work_keeps_only_the_room_that_it_asked_for(place: Place, gate: Gate, looking: Gate):
    """Else what is started meanwhile has to be looked for too, and what is started during that: for ever."""
    app = place.app()

    @app.step
    async def wait() -> None:
        await gate()

    @app.workflow
    async def waiting() -> str:
        await wait()
        return "done"

    @app.workflow
    async def quick() -> str:
        return "done"

    async with app.worker(concurrency=2):
        looking.open()
        worker = await with_room(app)
        first = await waiting.start()
        await gate.reached()
        looking.close()
        worker.kick()
        await looking.reached()  # for one: there is room for no more
        gate.open()
        assert await first.result(timeout=20) == "done"
        second = await quick.start()
        held_by = [attempt.worker for attempt in await second.attempts()]
        looking.open()
        assert held_by == [worker.name]
        assert await second.result(timeout=20) == "done"


async def test_what_a_look_for_work_may_find_has_its_room_kept(place: Place, looking: Gate):
    app = place.app()

    @app.workflow
    async def quick() -> str:
        return "done"

    async with app.worker(concurrency=2):
        looking.open()
        worker = await with_room(app)
        looking.close()
        worker.kick()
        await looking.reached()
        new = await quick.start()
        status = (await new.info()).status
        looking.open()
        assert status == Status.READY
        assert await new.result(timeout=20) == "done"


async def test_the_same_id_is_the_same_execution_on_the_fast_path_too(app: App):
    ran: list[str] = []

    @app.workflow
    async def echo(text: str) -> str:
        ran.append(text)
        return text

    async with app:
        await with_room(app)
        first = await echo.options(id="same").start("a")
        again = await echo.options(id="same").start("a")
        assert await first.result(timeout=20) == await again.result(timeout=20) == "a"
        with pytest.raises(ExecutionConflict):
            await echo.options(id="same").start("b")
        worker = await with_room(app)
        assert (worker.busy, worker._promised) == (0, 0), "room that was promised in vain is given back"
    assert ran == ["a"]


async def test_a_refused_start_gives_its_room_back(app: App):
    @app.workflow
    async def echo(text: str) -> str:
        return text

    async with app:
        worker = await with_room(app)
        with pytest.raises(Exception, match="text"):
            await echo.start(3)  # pyright: ignore[reportArgumentType]
        with pytest.raises(Exception, match="id"):
            await echo.options(id="a/b").start("x")
        assert worker._promised == 0


async def test_a_start_whose_caller_was_cancelled_runs_or_never_was(app: App):
    """A start that nobody waits for any more may have been accepted: then it runs now, not when its lease runs out."""
    ran: list[int] = []

    @app.workflow
    async def numbered(number: int) -> int:
        ran.append(number)
        return number

    async with app:
        worker = await with_room(app)
        for number in range(20):
            await with_room(app)
            starting = asyncio.create_task(numbered.options(id=str(number)).start(number))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        await until(lambda: worker._promised == 0 and worker.busy == 0, "promises are not kept")
        started = await app.find(limit=50)
        assert {info.status for info in started} <= {Status.SUCCEEDED}
        assert sorted(ran) == sorted(int(info.id) for info in started)
        assert ran, "some had been accepted"


async def test_what_is_started_while_the_worker_drains_is_handed_back(place: Place):
    app, other = place.app(), place.app()

    for one in (app, other):

        @one.workflow
        async def echo(text: str) -> str:
            return text

    async with other.client():
        async with app:
            worker = await with_room(app)
            starting = asyncio.create_task(echo_of(app).options(id="late").start("late"))
            while not worker._promised and not starting.done():  # noqa: ASYNC110 (it lasts for one commit)
                await asyncio.sleep(0)
        await asyncio.gather(starting, return_exceptions=True)
        [info] = await other.find()
        assert (info.status, info.reason) in ((Status.READY, None), (Status.SUCCEEDED, None))
    async with other:
        assert await other.execution("late").result(timeout=20) == "late"
        attempts = await other.execution("late").attempts()
        assert [attempt.outcome for attempt in attempts] == ["succeeded"], "nothing was counted as a crash"


def echo_of(app: App) -> Any:
    [workflow] = app.registry
    return workflow


async def test_a_paused_lane_is_not_passed_by_the_fast_path(app: App):
    from outlast.machine.changes import Changes, Put
    from outlast.model.lane import Lane

    @app.workflow
    async def echo(text: str) -> str:
        return text

    async with app:
        worker = await with_room(app)
        assert app._opened is not None
        engine = app._opened._engine
        for partition in range(engine.store.partitions):
            lane = Lane(partition=partition, namespace="default", lane="default", paused=True)
            put = Changes(id=f"pause-{partition}", partition=partition, anchors=(lane.key,), writes=(Put(lane),))
            assert (await engine.group.commit(put)).applied
        handle = await echo.start("x")
        await status_is(handle, "ready")
        await asyncio.sleep(0.05)
        assert (await handle.info()).status == Status.READY
        assert worker._promised == 0
