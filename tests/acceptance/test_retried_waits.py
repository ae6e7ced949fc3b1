"""What still waits when an attempt fails waits anew when it is tried again. A crash is no failure: there it goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import outlast
from outlast import App, Retry
from outlast.authoring.workflow import AsyncWorkflow
from outlast.testing import harness
from tests.acceptance.conftest import Place, status_is

LATER = Retry(max_attempts=2, initial="1h", max_delay="1h", jitter=0)


class Shop:
    """A step that fails once, and what waits beside it."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.failed = False

        @app.step
        async def flaky() -> str:
            if not self.failed:
                self.failed = True
                raise ConnectionError("once")
            return "fine"

        self.flaky = flaky

    def workflow(self, retry: Retry | None, fn: Any) -> AsyncWorkflow[[], Any]:
        return self.app.workflow(retry=retry, name="order")(fn)

    async def late(self) -> str:
        await outlast.sleep("20s")
        return await self.flaky()

    # ---- the code -------------------------------------------------------------------------------------------------

    async def timeout(self) -> str:
        async with asyncio.timeout(60):
            said = await self.late()
            await outlast.sleep("30s")
            return said

    async def receive(self) -> str:
        async with asyncio.TaskGroup() as group:
            one, other = group.create_task(outlast.receive("word", str, timeout="30m")), group.create_task(self.late())
        return f"{other.result()} {one.result()}"

    async def gathered(self) -> str:
        """What is left behind, and not given up."""
        said, word = await asyncio.gather(self.late(), outlast.deferred("word", str, timeout="30m"))
        return f"{said} {word}"


async def says(app: App) -> None:
    order = app.execution("order")
    await order.send("word", "yes")
    await order.resolve("word", "yes")


CODE = {"timeout": "fine", "receive": "fine yes", "gathered": "fine yes"}


@pytest.mark.parametrize("code", CODE)
async def test_it_waits_anew_when_the_workflow_is_retried(code: str):
    app = App()
    shop = Shop(app)
    order = shop.workflow(LATER, getattr(shop, code))
    async with harness(app) as h:
        handle = await order.options(id="order").start()
        await h.clock.advance("1h1m")
        if code != "timeout":
            await says(app)
        assert await handle.result() == CODE[code]
        assert (await handle.info()).failures == 1


@pytest.mark.parametrize("from_step", [None, "flaky"])
@pytest.mark.parametrize("code", CODE)
async def test_it_waits_anew_when_it_is_retried_by_hand(code: str, from_step: str | None):
    app = App()
    shop = Shop(app)
    order = shop.workflow(None, getattr(shop, code))
    async with harness(app) as h:
        handle = await order.options(id="order").start()
        await h.clock.advance("1h")
        assert (await handle.info()).status == "failed"
        await handle.retry(from_step=from_step)
        await h.settle()
        if code != "timeout":
            await says(app)
        assert await handle.result() == CODE[code]


async def test_it_waits_anew_when_a_cancel_cut_it_short(clocked: Place):
    app = clocked.app()

    @app.workflow
    async def order() -> str:
        return await outlast.receive("word", str, timeout="30m")

    async with app:
        handle = await order.options(id="order").start()
        await status_is(handle, "suspended")
        await handle.cancel()
        await status_is(handle, "cancelled")
        await clocked.pass_time(app, "1h")
        await handle.retry()
        await status_is(handle, "suspended")
        await handle.send("word", "yes")
        assert await handle.result(timeout=20) == "yes"


async def test_it_waits_anew_on_every_store(clocked: Place):
    app = clocked.app()
    shop = Shop(app)
    order = shop.workflow(LATER, shop.receive)
    async with app:
        handle = await order.options(id="order").start()
        await status_is(handle, "suspended")
        await clocked.pass_time(app, "20s")
        await status_is(handle, "blocked")
        await clocked.pass_time(app, "1h")
        await status_is(handle, "suspended")
        await handle.send("word", "yes")
        assert await handle.result(timeout=20) == "fine yes"


async def test_a_named_timer_keeps_its_first_wake_time():
    app = App()
    shop = Shop(app)

    async def code() -> int:
        begun = await app.step(outlast_now, name="begun")()
        async with asyncio.TaskGroup() as group:
            group.create_task(outlast.sleep("2h", name="cooling-off"))
            group.create_task(shop.late())
        return int(outlast.now().timestamp()) - begun

    async def outlast_now() -> int:
        return int(h.clock.now.timestamp())

    order = shop.workflow(LATER, code)
    async with harness(app) as h:
        assert await order() == 2 * 3_600


@pytest.mark.parametrize("code", CODE)
async def test_after_a_crash_it_waits_as_long_as_before(code: str):
    app = App()
    shop = Shop(app)
    shop.failed = True
    order = shop.workflow(None, getattr(shop, code))
    async with harness(app) as h:
        handle = await order.options(id="order").start()
        await h.clock.advance("10s")
        await h.crash()
        await h.clock.advance("1h")
        await h.restart()
        with pytest.raises((TimeoutError, ExceptionGroup)):
            await handle.result()
