"""Waiting: for time, for events, for values from outside. What waits is suspended, and goes on as if nothing were."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import outlast
from outlast import ExecutionRefused
from tests.acceptance.conftest import Place, until


async def suspended_on(handle: Any, reason: str) -> None:
    async def reached() -> bool:
        info = await handle.info()
        return (info.status, info.reason) == ("suspended", reason)

    await until(reached, f"{handle} is not suspended on {reason}")


# ---- sleep --------------------------------------------------------------------------------------------------------


async def test_a_sleep_suspends_until_its_wake_time(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def sleeper() -> str:
        await outlast.sleep("1h")
        return "awake"

    async with app.worker() as worker:
        handle = await sleeper.start()
        await suspended_on(handle, "timer")
        info = await handle.info()
        assert info.wake_at is not None
        assert info.wake_at - info.created_at == dt.timedelta(hours=1)
        await until(lambda: worker.busy == 0, "it holds the worker")
        await clocked.pass_time(app, "59m")
        assert (await handle.info()).status == "suspended"
        await clocked.pass_time(app, "1m")
        assert await handle.result(timeout=20) == "awake"


async def test_two_equal_sleeps_are_two_sleeps(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def twice() -> str:
        await outlast.sleep("1h")
        await outlast.sleep("1h")
        return "awake"

    async with app:
        handle = await twice.start()
        await suspended_on(handle, "timer")
        await clocked.pass_time(app, "1h")
        first = (await handle.info()).wake_at

        async def second_sleep() -> bool:
            info = await handle.info()
            return info.status == "suspended" and info.wake_at != first

        await until(second_sleep, "it does not sleep again")
        await clocked.pass_time(app, "1h")
        assert await handle.result(timeout=20) == "awake"


async def test_receive_takes_events_in_order(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def adder() -> list[int]:
        return [await outlast.receive("number", int) for _ in range(3)]

    async with app:
        handle = await adder.start()
        await suspended_on(handle, "event:number")
        for n in range(3):
            await handle.send("number", n)
        assert await handle.result(timeout=20) == [0, 1, 2]


async def test_a_deferred_is_resolved_from_outside(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def asks() -> bool:
        return await outlast.deferred("approval", bool)

    async with app:
        handle = await asks.start()
        await suspended_on(handle, "deferred:approval")
        await handle.resolve("approval", True)
        assert await handle.result(timeout=20) is True
        await handle.resolve("approval", True)
        with pytest.raises(ExecutionRefused, match="resolved before"):
            await handle.resolve("approval", False)
