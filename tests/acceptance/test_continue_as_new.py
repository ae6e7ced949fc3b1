"""`continue_as_new`: the same execution from a clean page, for loops that never end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import outlast
from outlast import App, ExecutionConflict, InvalidArguments, Retry, Status, WrongPlace
from outlast.model.kinds import OF_EXECUTION
from tests.acceptance.conftest import Place, status_is, until

pytestmark = pytest.mark.on_carried


async def records_of(app: App, execution_id: str) -> dict[str, int]:
    """How much a store keeps for an execution, by kind."""
    assert app._opened is not None
    store = app._opened._store
    return {kind.KIND: len(await store.scan(kind.KIND, ("default", execution_id))) for kind in OF_EXECUTION}


async def test_the_next_generation_begins_with_the_arguments_and_an_empty_journal(app: App):
    @app.step
    async def work(turn: int) -> int:
        return turn + 1

    @app.workflow
    async def loop(turn: int = 0, *, last: int) -> int:
        turn = await work(turn)
        if turn < last:
            outlast.continue_as_new(turn, last=last)
        return turn

    async with app:
        handle = await loop.options(id="it").start(last=5)
        assert await handle.result(timeout=20) == 5
        info = await handle.info()
        assert (info.id, info.generation, info.attempts) == ("it", 5, 1)
        assert len(await handle.journal()) == 1


async def test_a_def_workflow_goes_on_too(app: App):
    @app.workflow
    def loop(turn: int) -> int:
        return turn if turn == 3 else outlast.continue_as_new(turn + 1)

    async with app:
        assert await loop.aio(0) == 3


async def test_events_not_yet_received_survive(app: App):
    @app.workflow
    async def counts(total: int, turns: int) -> int:
        total += await outlast.receive("n", int)
        if turns == 1:
            return total
        return outlast.continue_as_new(total, turns - 1)

    async with app:
        handle = await counts.options(id="it").start(0, 50)
        await asyncio.gather(*(handle.send("n", number) for number in range(50)))
        assert await handle.result(timeout=30) == sum(range(50))


async def test_a_hundred_turns_keep_a_bounded_number_of_records(app: App):
    """Each turn records a step, receives an event of its own and goes on; the clock stands for the events' grace."""

    @app.step
    async def work(turn: int) -> int:
        return turn + 1

    @app.workflow
    async def loop(turn: int, last: int) -> int:
        await app.execution("it").send("tick", turn)
        turn = await work(await outlast.receive("tick", int))
        if turn < last:
            outlast.continue_as_new(turn, last)
        return turn

    largest: dict[str, int] = {}

    async def watch() -> None:
        while True:
            for kind, number in (await records_of(app, "it")).items():
                largest[kind] = max(largest.get(kind, 0), number)
            await asyncio.sleep(0.1)

    async with app:
        watching = asyncio.create_task(watch())
        handle = await loop.options(id="it").start(0, 100)
        assert await handle.result(timeout=100) == 100
        watching.cancel()
        await until(lambda: _is_small(app, "it"), "old generations are left behind")
    assert max(largest.values()) < 60, largest


async def _is_small(app: App, execution_id: str) -> bool:
    return sum((await records_of(app, execution_id)).values()) < 12


async def test_received_events_of_clients_are_kept_until_no_send_can_be_repeated(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def loop(turn: int = 0) -> None:
        await outlast.receive("tick", int)
        outlast.continue_as_new(turn + 1)

    async with app:
        handle = await loop.options(id="it").start()
        for turn in range(20):
            await handle.send("tick", turn, key=f"key-{turn}" if turn % 2 else None)
            await until(lambda turn=turn: _generation_is(handle, turn + 2), "it does not go on")
        assert (await records_of(app, "it"))["event"] == 20
        await clocked.pass_time(app, "2m")
        await handle.send("tick", 20, key="key-1")  # the same as before: nothing comes of it
        await handle.send("tick", 20)
        await until(lambda: _generation_is(handle, 22), "it does not go on")
        await until(lambda: _events_are(app, 11), "what came without a key is left")
        await clocked.pass_time(app, "2d")
        await handle.send("tick", 21)
        await until(lambda: _events_are(app, 1), "what came with a key is left")


async def _generation_is(handle: Any, generation: int) -> bool:
    info = await handle.info()
    return info.generation == generation and info.status is Status.SUSPENDED


async def _events_are(app: App, number: int) -> bool:
    return (await records_of(app, "it"))["event"] == number


async def test_the_same_start_is_still_the_same_execution(app: App):
    @app.workflow
    async def loop(turn: int = 0) -> None:
        await outlast.receive("tick", int)
        outlast.continue_as_new(turn + 1)

    async with app:
        handle = await loop.options(id="it").start()
        await handle.send("tick", 1)
        await until(lambda: _generation_is(handle, 2), "it does not go on")
        await loop.options(id="it", send={"tick": 2}).start()
        await until(lambda: _generation_is(handle, 3), "it has not heard")


async def test_a_cancel_ends_the_loop(app: App):
    @app.workflow
    async def loop(turn: int = 0) -> None:
        outlast.continue_as_new(turn + 1)

    async with app:
        handle = await loop.start()
        await until(lambda: _turned(handle, 5), "it does not turn")
        await handle.cancel()
        await status_is(handle, "cancelled")


async def _turned(handle: Any, generations: int) -> bool:
    return (await handle.info()).generation > generations


async def test_failures_are_counted_anew_and_the_deadline_is_that_of_the_whole(clocked: Place):
    app = clocked.app()
    tries: list[int] = []

    @app.workflow(retry=Retry(max_attempts=2, initial=0, jitter=0), deadline="1h")
    async def loop(turn: int = 0) -> int:
        tries.append(turn)
        if tries.count(turn) == 1:
            raise OSError("once each turn")
        if turn < 3:
            outlast.continue_as_new(turn + 1)
        return await outlast.receive("never", int)

    async with app:
        handle = await loop.options(id="it").start()
        await status_is(handle, "suspended")
        assert tries == [0, 0, 1, 1, 2, 2, 3, 3]
        info = await handle.info()
        assert info.deadline_at is not None
        assert (info.deadline_at - info.created_at).total_seconds() == 3600


async def test_children_go_on_and_new_ones_have_names_of_their_own(app: App):
    @app.workflow
    async def child(turn: int) -> int:
        return turn * 10

    @app.workflow
    async def held() -> str:
        return await outlast.receive("go", str)

    @app.workflow
    async def loop(turn: int = 0) -> str:
        handle = await held.options(id="held").start()
        assert await child(turn) == turn * 10
        if turn < 2:
            outlast.continue_as_new(turn + 1)
        await handle.send("go", "on")
        return await handle.result()

    async with app:
        handle = await loop.options(id="it").start()
        assert await handle.result(timeout=20) == "on"
        names = sorted(info.id for info in await app.find())
        assert names == ["it", "it/child.1", "it/child.1@2", "it/child.1@3", "it/held"]


async def test_wrong_arguments_are_refused_at_the_call(app: App):
    @app.workflow
    async def loop(turn: int) -> str:
        try:
            outlast.continue_as_new("one")
        except InvalidArguments:
            return "refused"

    async with app:
        assert await loop(0) == "refused"


async def test_it_is_for_workflow_code_only(app: App):
    @app.step
    async def step() -> None:
        outlast.continue_as_new()

    @app.workflow
    async def loop() -> None:
        await step()

    with pytest.raises(WrongPlace, match="outside"):
        outlast.continue_as_new()
    async with app:
        with pytest.raises(WrongPlace, match="inside step"):
            await loop()


async def test_a_task_group_goes_on_as_new_as_a_whole(app: App):
    """From its body or from one of its tasks; what else runs in it is given up. An error in it is still an error."""

    @app.workflow
    async def loop(turn: int = 0) -> int:
        async def goes_on() -> None:
            await outlast.sleep("1ms")
            outlast.continue_as_new(turn + 1)

        async with asyncio.TaskGroup() as group:
            if turn < 2:
                group.create_task(outlast.sleep("1h"))
            if turn == 0:
                await goes_on()
            async with asyncio.TaskGroup() as inner:
                if turn == 1:
                    inner.create_task(goes_on())
        return turn

    @app.workflow
    async def fails() -> None:
        async def breaks() -> None:
            try:
                await outlast.sleep("1h")
            finally:
                raise ValueError("while it was given up")

        async with asyncio.TaskGroup() as group:
            group.create_task(breaks())
            await outlast.sleep("1ms")
            outlast.continue_as_new()

    async with app:
        assert await loop(0) == 2
        with pytest.raises(RuntimeError, match="BaseExceptionGroup"):
            await fails()


async def test_a_conflict_does_not_show_the_arguments_of_a_later_generation_as_those_of_the_start(app: App):
    @app.workflow
    async def loop(turn: int) -> int:
        if turn < 2:
            outlast.continue_as_new(turn + 1)
        return turn

    async with app:
        handle = await loop.options(id="it").start(0)
        assert await handle.result(timeout=20) == 2
        with pytest.raises(ExecutionConflict) as other:
            await loop.options(id="it").start(1)
        assert other.value.existing == "loop with other arguments, forgotten since it continued as new (succeeded)"
        with pytest.raises(ExecutionConflict) as same:
            await loop.options(id="it", if_exists="error").start(0)
        assert same.value.existing == 'loop {"turn":0} (succeeded)'
        await (await loop.options(id="it", if_exists="restart").start(5)).result(timeout=20)
        with pytest.raises(ExecutionConflict) as restarted:
            await loop.options(id="it").start(1)
        assert restarted.value.existing == 'loop {"turn":5} (succeeded)'
