"""What code can ask about itself, and what it shows while it works."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import outlast
from outlast import App, InvalidInput, LimitExceeded, WrongPlace
from outlast.client.portal import portal
from tests.acceptance.conftest import Gate, Place, claims_no_more, status_is, until

pytestmark = pytest.mark.on_carried


async def crash(app: App) -> None:
    """As a killed process: its leases run out."""
    opened, app._opened = app._opened, None
    assert opened is not None
    await opened.abandon()


async def take_over(place: Place, app: App) -> None:
    await place.pass_time(app, "2d")


Seen = list[tuple[str, Any]]


def asking(app: App, seen: list[Seen], gate: Gate) -> Any:
    """A workflow that asks for everything that a replay must see again, before, between and behind two steps."""

    @app.step
    async def first() -> int:
        return 1

    @app.step
    async def second() -> int:
        await gate()
        return 2

    def ask(mine: Seen) -> None:
        mine.append(("now", outlast.now()))
        mine.append(("random", outlast.random().random()))
        mine.append(("uuid4", outlast.uuid4()))

    async def branch(mine: Seen) -> int:
        ask(mine)
        return await first()

    @app.workflow(name="asking")
    async def workflow() -> list[str]:
        mine: Seen = []
        seen.append(mine)
        ask(mine)
        await first()
        ask(mine)
        await asyncio.gather(branch(mine), branch(mine))
        ask(mine)
        await second()
        return [str(value) for _, value in mine]

    return workflow


async def test_a_replay_sees_the_same_time_random_numbers_and_uuids(clocked: Place) -> None:
    seen: list[Seen] = []
    gate = Gate()
    first, second = clocked.app(), clocked.app()
    asking(first, seen, gate)
    theirs = asking(second, seen, Gate())
    async with first:
        await first.registry.get("asking", "1").options(id="it").start()
        await gate.reached()
        await crash(first)
    async with second:
        await take_over(clocked, second)
        await until(lambda: len(seen) == 2 and len(seen[1]) == 15, "it is not replayed")
        assert seen[1] == seen[0]
        await theirs.execution("it").cancel()
    times = [value for what, value in seen[0] if what == "now"]
    assert all(isinstance(time, datetime) and time.tzinfo is UTC for time in times)
    assert times == sorted(times)
    numbers = [value for what, value in seen[0] if what != "now"]
    assert len(set(numbers)) == len(numbers)
    assert {number.version for number in numbers if isinstance(number, uuid.UUID)} == {4}


async def test_the_time_is_that_of_the_last_outcome_by_the_stores_clock(clocked: Place) -> None:
    app, gate = clocked.app(), Gate()

    @app.step
    async def slow() -> None:
        await gate()

    @app.workflow
    async def timed() -> tuple[datetime, datetime, datetime]:
        before = outlast.now()
        await slow()
        return before, outlast.now(), outlast.now()

    async with app:
        handle = await timed.start()
        await gate.reached()
        await clocked.pass_time(app, "3h")
        gate.open()
        before, after, again = await handle.result(timeout=20)
        created = (await handle.info()).created_at
    assert before == created
    assert after == again == before + timedelta(hours=3)


async def test_executions_do_not_share_their_random_numbers(app: App) -> None:
    @app.workflow
    async def drawing() -> float:
        return outlast.random().random()

    async with app:
        handles = await app.start_many(drawing.bind() for _ in range(20))
        numbers = [await handle.result(timeout=20) for handle in handles]
    assert len(set(numbers)) == 20


async def test_code_knows_who_it_is(app: App) -> None:
    found: list[outlast.Current] = []

    @app.step
    async def in_a_loop() -> None:
        found.append(outlast.current())

    @app.step
    def in_a_thread() -> None:
        found.append(outlast.current())

    @app.workflow(name="knowing", version="7")
    async def knowing() -> None:
        found.append(outlast.current())
        await in_a_loop()
        await in_a_loop()
        await in_a_thread.aio()

    async with app:
        handle = await knowing.options(id="it", tags={"tenant": "a"}).start()
        await handle.result(timeout=20)
    for one in found:
        assert (one.id, one.namespace, one.workflow, one.version, one.attempt, one.generation) == (
            "it",
            "default",
            "knowing",
            "7",
            1,
            1,
        )
        assert one.tags == {"tenant": "a"}
        assert one.worker is not None
    assert [one.step for one in found] == [None, "in_a_loop", "in_a_loop", "in_a_thread"]
    calls = [one.call for one in found]
    assert calls[0] is None
    assert len(set(calls)) == 4


@pytest.mark.parametrize(
    "ask",
    [
        outlast.now,
        outlast.random,
        outlast.uuid4,
        lambda: outlast.query("items"),
        lambda: outlast.update("add"),
        lambda: outlast.patched("fraud-check"),
        lambda: outlast.sleep(1),
    ],
)
async def test_what_is_for_workflow_code_is_refused_in_a_step(app: App, ask: Any) -> None:
    @app.step
    async def asked() -> None:
        ask()

    @app.workflow
    async def asking() -> None:
        await asked()

    async with app:
        with pytest.raises(WrongPlace, match="inside step 'asked': it is for a workflow's own code"):
            await (await asking.start()).result(timeout=20)


@pytest.mark.parametrize(
    "ask",
    [
        outlast.now,
        outlast.random,
        outlast.uuid4,
        outlast.current,
        lambda: outlast.emit(1),
        lambda: outlast.progress(0.5),
        lambda: outlast.query("items"),
        lambda: outlast.patched("fraud-check"),
    ],
)
def test_all_of_it_is_refused_outside(ask: Any) -> None:
    with pytest.raises(WrongPlace, match="outside of a workflow: it is for"):
        ask()


# ---- frames -------------------------------------------------------------------------------------------------------


async def test_frames_come_in_order_from_workflows_and_steps_of_both_colours(app: App) -> None:
    @app.step
    async def in_a_loop() -> None:
        outlast.emit("loop 1")
        outlast.emit("loop 2")

    @app.step
    def in_a_thread() -> None:
        for n in range(3):
            outlast.emit({"thread": n})

    @app.workflow
    async def emitting() -> str:
        outlast.emit("begin")
        await in_a_loop()
        await in_a_thread.aio()
        outlast.emit(None)
        return "done"

    async with app:
        handle = await emitting.start()
        frames = [frame async for frame in handle.frames()]
        assert [frame.value for frame in frames] == [
            "begin",
            "loop 1",
            "loop 2",
            {"thread": 0},
            {"thread": 1},
            {"thread": 2},
            None,
        ]
        assert [frame.offset for frame in frames] == list(range(1, 8))
        assert [frame.step for frame in frames][:4] == [None, "in_a_loop", "in_a_loop", "in_a_thread"]
        assert [frame.value async for frame in handle.frames(after=5)] == [{"thread": 2}, None]


async def test_a_def_workflow_emits_too(app: App) -> None:
    @app.workflow
    def emitting() -> None:
        for n in range(20):
            outlast.emit(n)

    async with app:
        handle = await emitting.start()
        assert [frame.value async for frame in handle.frames()] == list(range(20))


def test_the_blocking_face_reads_frames(app: App) -> None:
    @app.workflow
    async def emitting() -> None:
        outlast.emit(1)
        outlast.emit(2)

    async def serve() -> None:
        async with app:
            await (await emitting.options(id="it").start()).result(timeout=20)

    asyncio.run(serve())
    try:
        assert [frame.value for frame in emitting.sync.execution("it").frames()] == [1, 2]
    finally:
        portal().call(app._close)  # the blocking face opened it, for as long as the process lives


async def test_a_reader_tails_across_the_death_of_a_worker(clocked: Place) -> None:
    gate, opened = Gate(), Gate()
    opened.open()

    def build(app: App, gate: Gate) -> Any:
        @app.step
        async def work(n: int) -> None:
            outlast.emit(f"step {n}")
            if n == 1:
                await gate()

        @app.workflow(name="emitting")
        async def emitting() -> None:
            for n in range(3):
                outlast.emit(f"workflow {n}")
                await work(n)

        return emitting

    first, second, reader = clocked.app(), clocked.app(), clocked.app()
    build(second, opened)
    heard: list[str] = []

    async def read(after: int = 0) -> None:
        async for frame in reader.execution("it").frames(after=after):
            heard.append(frame.value)

    async with reader.client():
        async with first:
            await build(first, gate).options(id="it").start()
            reading = asyncio.create_task(read())
            await gate.reached()
            await until(lambda: "step 1" in heard, "the frames do not come while it runs")
            await crash(first)
        async with second:
            await take_over(clocked, second)
            await asyncio.wait_for(reading, 20)
    # The workflow's own frames are there once; those of the step that died, again.
    assert heard == ["workflow 0", "step 0", "workflow 1", "step 1", "step 1", "workflow 2", "step 2"]


async def test_parallel_branches_emit_each_frame_once_across_a_crash(clocked: Place) -> None:
    gate = Gate()

    def build(app: App, gate: Gate) -> Any:
        @app.step
        async def work() -> None: ...

        @app.step
        async def stop() -> None:
            await gate()

        async def branch(name: str) -> None:
            for n in range(3):
                outlast.emit(f"{name}{n}")
                await work()

        @app.workflow(name="branches")
        async def branches() -> None:
            await asyncio.gather(branch("a"), branch("b"))
            await stop()
            outlast.emit("end")

        return branches

    first, second = clocked.app(), clocked.app()
    gate_2 = Gate()
    gate_2.open()
    theirs = build(second, gate_2)
    async with first:
        await build(first, gate).options(id="it").start()
        await gate.reached()
        await crash(first)
    async with second:
        await take_over(clocked, second)
        handle = theirs.execution("it")
        await handle.result(timeout=20)
        values = [frame.value async for frame in handle.frames()]
    assert sorted(values) == ["a0", "a1", "a2", "b0", "b1", "b2", "end"]


async def test_a_frame_that_cannot_be_stored_is_refused_where_it_is_emitted(app: App) -> None:
    refused: list[Exception] = []

    @app.workflow
    async def emitting() -> None:
        for frame in (object(), float("nan"), "x" * 70_000):
            try:
                outlast.emit(frame)
            except InvalidInput as error:
                refused.append(error)

    async with app:
        handle = await emitting.start()
        await handle.result(timeout=20)
        assert [frame async for frame in handle.frames()] == []
        with pytest.raises(InvalidInput, match="offset"):
            handle.frames(after=-1)
    assert len(refused) == 3
    assert isinstance(refused[2], LimitExceeded)


async def test_code_that_never_lets_others_run_meets_a_limit_and_not_the_end_of_memory(app: App) -> None:
    @app.step
    async def flood() -> int:
        for n in range(20_000):
            try:
                outlast.emit(n)
            except LimitExceeded:
                return n
        return -1

    @app.step
    def thread() -> None:
        for n in range(12_000):
            outlast.emit(n)

    @app.workflow
    async def flooding() -> int:
        await thread.aio()
        return await flood()

    async with app:
        handle = await flooding.start()
        assert 10_000 <= await handle.result(timeout=60) <= 20_000
        last = [frame async for frame in handle.frames(after=11_999)]
        assert last[0].value == 11_999


async def test_a_zombie_emits_nothing(clocked: Place) -> None:
    gate = Gate()

    def build(app: App, gate: Gate, name: str) -> Any:
        @app.step
        async def work() -> str:
            await gate()
            outlast.emit(name)
            return name

        @app.workflow(name="fenced")
        async def fenced() -> str:
            return await work()

        return fenced

    first, second = clocked.app(), clocked.app()
    open_gate = Gate()
    open_gate.open()
    async with first:
        await build(first, gate, "zombie").options(id="it").start()
        await gate.reached()
        claims_no_more(first)
        theirs = build(second, open_gate, "heir")
        async with second:
            await take_over(clocked, second)
            handle = theirs.execution("it")
            assert await handle.result(timeout=20) == "heir"
            gate.open()
            await asyncio.sleep(0.05)
            assert [frame.value async for frame in handle.frames()] == ["heir"]


# ---- progress -----------------------------------------------------------------------------------------------------


async def test_progress_is_seen_while_it_works_and_stays(app: App, gate: Gate) -> None:
    @app.step
    async def work() -> None:
        outlast.progress(0.25, "a quarter")
        outlast.progress(0.5, "half")
        await gate()

    @app.workflow
    async def working() -> None:
        outlast.progress(0)
        await work()
        outlast.progress(1, "all of it")

    async with app:
        handle = await working.start()
        await gate.reached()

        async def shown() -> bool:
            return (await handle.info()).progress == outlast.ProgressInfo(fraction=0.5, text="half")

        await until(shown, "the progress is not shown")
        gate.open()
        await handle.result(timeout=20)
        assert (await handle.info()).progress == outlast.ProgressInfo(fraction=1.0, text="all of it")


async def test_a_replay_does_not_turn_progress_back(clocked: Place) -> None:
    gate, gate_2 = Gate(), Gate()

    def build(app: App, gate: Gate) -> Any:
        @app.step
        async def work(n: int) -> None:
            if n == 3:
                await gate()
                outlast.progress(0.9)

        @app.workflow(name="working")
        async def working() -> None:
            for n in range(4):
                outlast.progress(n / 10)
                await work(n)

        return working

    first, second = clocked.app(), clocked.app()
    theirs = build(second, gate_2)
    async with first:
        await build(first, gate).options(id="it").start()
        await gate.reached()
        await crash(first)
    async with second:
        await take_over(clocked, second)
        await gate_2.reached()
        handle = theirs.execution("it")
        info = await handle.info()
        assert info.progress is not None
        assert info.progress.fraction == 0.3
        gate_2.open()
        await handle.result(timeout=20)
        info = await handle.info()
        assert info.progress is not None
        assert info.progress.fraction == 0.9


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan"), float("inf"), "half", None, True])
async def test_progress_is_a_number_from_0_to_1(app: App, bad: Any) -> None:
    @app.workflow
    async def working() -> None:
        outlast.progress(bad)

    async with app:
        handle = await working.start()
        with pytest.raises(InvalidInput, match="progress"):
            await handle.result(timeout=20)
        assert (await handle.info()).progress is None
        await status_is(handle, "failed")


async def test_a_progress_text_has_a_limit(app: App) -> None:
    @app.workflow
    async def working() -> None:
        outlast.progress(0.5, "x" * 501)

    async with app:
        with pytest.raises(LimitExceeded, match="text of a progress"):
            await (await working.start()).result(timeout=20)
