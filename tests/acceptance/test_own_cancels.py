"""A step whose code cancels the task that it runs in has failed; one whose loop ends has not."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

import outlast
from outlast import App, Retry
from tests.acceptance.conftest import Gate, Place, sessions_run_out


class SoldOut(Exception):
    pass


def cancel_myself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def awaits() -> None:
    cancel_myself()
    await asyncio.sleep(10)


async def returns() -> None:
    cancel_myself()


async def raises() -> None:
    cancel_myself()
    raise RuntimeError("by itself")


async def forgets() -> None:
    """As old libraries of timeouts do: caught, and not taken back. Then something else is cancelled."""
    cancel_myself()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(10)
    inner = asyncio.create_task(asyncio.sleep(10))
    inner.cancel()
    await inner


@pytest.mark.parametrize("timeout", [None, "20s"])
@pytest.mark.parametrize("body", [awaits, returns, raises, forgets])
async def test_a_step_that_cancels_itself_fails_and_is_tried_again(
    app: App, body: Callable[[], Awaitable[None]], timeout: str | None
):
    ran: list[int] = []

    @app.step(retry=Retry(max_attempts=3, initial="1ms"), timeout=timeout)
    async def work() -> None:
        ran.append(1)
        await body()

    @app.workflow
    async def works() -> None:
        await work()

    async with app:
        handle = await works.start()
        with pytest.raises(RuntimeError, match="by itself" if body is raises else "ended with CancelledError"):
            await handle.result("20s")
        [entry] = await handle.journal()
        assert entry.tries == 3
    assert len(ran) == 3


async def test_a_step_that_has_caught_its_own_cancel_may_succeed(app: App):
    @app.step
    async def work() -> str:
        cancel_myself()
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            return "done"
        return "not cancelled"

    @app.workflow
    async def works() -> str:
        return await work()

    async with app:
        assert await (await works.start()).result("20s") == "done"


@pytest.mark.parametrize("body", [awaits, returns, forgets])
async def test_an_undo_that_cancels_itself_fails_and_the_others_run(app: App, body: Callable[[], Awaitable[None]]):
    ran: list[str] = []

    @app.step
    async def first() -> None:
        ran.append("first")

    @app.step
    async def second() -> None:
        ran.append("second")
        await body()

    @app.workflow
    async def works() -> None:
        await outlast.compensate(first)
        await outlast.compensate(second)
        raise SoldOut

    async with app:
        handle = await works.start()
        with pytest.raises(SoldOut):
            await handle.result("20s")
    assert ran == ["second", "first"]


async def test_a_step_whose_loop_ends_has_not_failed(place: Place, gate: Gate, caplog: pytest.LogCaptureFixture):
    """A loop that ends cancels all its tasks at once: what was under way runs again elsewhere."""
    ran: list[str] = []

    def define(app: App) -> Any:
        @app.step
        async def work() -> str:
            ran.append("work")
            await gate()
            return "done"

        @app.workflow
        async def works() -> str:
            return await work()

        return works

    one, other = place.app(), place.app()
    works, elsewhere = define(one), define(other)
    async with one:
        await works.options(id="it").start()
        await gate.reached()
        assert one._opened is not None
        assert one._opened.worker is not None
        worker = one._opened.worker
        [attempt] = worker._attempts.values()
        for task in (*attempt.performing.live.values(), *worker._running.values()):
            task.cancel()
    await sessions_run_out(place.url)
    gate.open()
    async with other:
        assert await elsewhere.execution("it").result("30s") == "done"
    assert ran == ["work", "work"]
    gc.collect()
    assert "was destroyed but it is pending" not in caplog.text, "nothing of its code is left behind"
