"""Flows that were cancelled because their parent ended: a retry of the parent opens them again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import outlast
from outlast import App, ExecutionCancelled, FlowCancelled, FlowHandle, Status
from outlast.runtime.flows import subflows
from tests.acceptance.conftest import Gate, Place, status_is, until
from tests.acceptance.flow_workflows import member_is, statuses
from tests.acceptance.test_flow_cancels import cycle, engine_of


class Hosts:
    """Workflows whose flow has a member that ends, and one that waits."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.ran = 0

        @app.workflow
        async def ends() -> int:
            self.ran += 1
            return 1

        @app.workflow
        async def waits() -> int:
            return await outlast.receive("go", int)

        async def started(flow_id: str | None) -> FlowHandle:
            flow = app.flow("pages", id=flow_id)
            flow.add("ends", ends)
            flow.add("waits", waits)
            return await flow.start()

        @app.workflow
        async def host(flow_id: str | None) -> int:
            return sum((await (await started(flow_id)).result()).values())

        @app.workflow
        async def does_not_wait() -> str:
            await started("pages")
            return await outlast.receive("stop", str)

        self.host, self.does_not_wait = host, does_not_wait

    async def flow(self) -> FlowHandle:
        """The flow, once one member has ended and the other waits."""

        async def begun() -> list[str]:
            return [info.id for info in await self.app.find(workflow="waits")]

        await until(begun, "the flow does not begin")
        [member] = await begun()
        fh = self.app.flow_handle(member.rpartition("/")[0])
        await member_is(fh, "ends", Status.SUCCEEDED)
        await member_is(fh, "waits", Status.SUSPENDED)
        return fh


async def cancelled(handle: Any) -> None:
    await handle.cancel(reason="oops")
    with pytest.raises(ExecutionCancelled):
        await handle.result(timeout=20)


@pytest.mark.parametrize("flow_id", [None, "pages"])
async def test_a_retry_opens_the_flow_again_that_was_cancelled_with_its_parent(app: App, flow_id: str | None):
    """However often, and it keeps what has succeeded."""
    hosts = Hosts(app)
    async with app:
        handle = await hosts.host.options(id="host").start(flow_id)
        fh = await hosts.flow()
        for _ in range(2):
            await cancelled(handle)
            with pytest.raises(FlowCancelled, match="its parent 'host' ended"):
                await fh.result("20s")
            await handle.retry()
            await member_is(fh, "waits", Status.SUSPENDED)
        await app.execution(f"{fh.id}/waits").send("go", 2)
        assert await handle.result(timeout=20) == 3
        assert hosts.ran == 1


async def test_a_retry_at_once_does_too(app: App, gate: Gate):
    """While the members of the flow are still about to be cancelled."""

    @app.step
    async def undo() -> None:
        await gate()

    @app.workflow
    async def undoes() -> int:
        await outlast.compensate(undo)
        return await outlast.receive("go", int)

    @app.workflow
    async def host() -> int:
        flow = app.flow("pages", id="pages")
        flow.add("undoes", undoes)
        return (await (await flow.start()).result())["undoes"]

    async with app:
        handle = await host.options(id="host").start()
        fh = app.flow_handle("pages")
        await until(lambda: engine_of(app).look("default", "pages/undoes"), "the flow does not begin")
        await member_is(fh, "undoes", Status.SUSPENDED)
        await cancelled(handle)
        await gate.reached()
        await handle.retry()
        await status_is(handle, Status.SUSPENDED)
        assert (await fh.status()).cancelling
        gate.open()
        await member_is(fh, "undoes", Status.SUSPENDED)
        await app.execution("pages/undoes").send("go", 2)
        assert await handle.result(timeout=20) == 2


async def test_a_flow_that_its_parent_does_not_wait_for_goes_on_too(app: App):
    hosts = Hosts(app)
    async with app:
        handle = await hosts.does_not_wait.options(id="host").start()
        fh = await hosts.flow()
        await cancelled(handle)
        with pytest.raises(FlowCancelled):
            await fh.result("20s")
        await handle.retry()
        await member_is(fh, "waits", Status.SUSPENDED)
        await handle.send("stop", "now")
        assert await handle.result(timeout=20) == "now"
        with pytest.raises(FlowCancelled):
            await fh.result("20s")


async def test_a_retry_of_a_flow_opens_those_of_its_members(app: App):
    hosts = Hosts(app)
    async with app:
        outer = app.flow("outer", id="outer")
        outer.add("host", hosts.host, None)
        top = await outer.start()
        fh = await hosts.flow()
        await member_is(top, "host", Status.SUSPENDED)
        await top.cancel(wait=True)
        with pytest.raises(FlowCancelled):
            await fh.result("20s")
        await top.retry()
        await member_is(fh, "waits", Status.SUSPENDED)
        await app.execution(f"{fh.id}/waits").send("go", 2)
        assert await top.result("20s") == {"host": 3}


async def test_a_flow_that_somebody_cancelled_stays_so_until_it_is_retried(app: App):
    hosts = Hosts(app)
    async with app:
        handle = await hosts.host.options(id="host").start("pages")
        fh = await hosts.flow()
        await fh.cancel(reason="by hand")
        for _ in range(2):
            with pytest.raises(FlowCancelled, match="by hand"):
                await handle.result(timeout=20)
            await handle.retry()
        with pytest.raises(FlowCancelled, match="by hand"):
            await handle.result(timeout=20)
        await fh.retry()
        await handle.retry()
        await member_is(fh, "waits", Status.SUSPENDED)
        await app.execution("pages/waits").send("go", 2)
        assert await handle.result(timeout=20) == 3


async def test_the_nets_alone_open_it_again(clocked: Place, monkeypatch: pytest.MonkeyPatch):
    app = clocked.app()
    hosts = Hosts(app)
    async with app:
        handle = await hosts.host.options(id="host").start("pages")
        fh = await hosts.flow()
        await cancelled(handle)
        with pytest.raises(FlowCancelled):
            await fh.result("20s")
        monkeypatch.setattr(engine_of(app).outbox, "post", lambda changes: None)
        await handle.retry()
        await status_is(handle, Status.SUSPENDED)
        assert (await fh.status()).status is Status.CANCELLED, "nobody carries its start, and its parent waits for it"

        async def goes_on() -> bool:
            await cycle(app, "outbox")
            return (await statuses(fh))["waits"] == "suspended"

        await until(goes_on, "nobody opens it")
        await app.execution("pages/waits").send("go", 2)

        async def ended() -> bool:
            await cycle(app, "outbox")
            return (await handle.info()).status is Status.SUCCEEDED

        await until(ended, "nobody carries its end")


async def test_a_parent_that_ends_anew_while_its_flow_is_opened_takes_it_along(
    app: App, monkeypatch: pytest.MonkeyPatch
):
    """Whoever carries the start finds the parent alive, and opens the flow when that has ended."""
    hosts = Hosts(app)
    async with app:
        handle = await hosts.host.options(id="host").start("pages")
        fh = await hosts.flow()
        await cancelled(handle)
        with pytest.raises(FlowCancelled):
            await fh.result("20s")
        is_over, looked, go_on = subflows.is_over, asyncio.Event(), asyncio.Event()

        async def seen_alive(*args: Any) -> bool:
            over = await is_over(*args)
            if not over and not looked.is_set():
                looked.set()
                await go_on.wait()
            return over

        monkeypatch.setattr(subflows, "is_over", seen_alive)
        await handle.retry()
        await asyncio.wait_for(looked.wait(), 20)
        await cancelled(handle)
        go_on.set()

        engine = engine_of(app)

        async def shut_once_more() -> bool:
            flow, summary = await engine.flows.heads("default", "pages")
            return bool(flow and summary and flow.revision > 2 and summary.outcome is Status.CANCELLED)

        await until(shut_once_more, "it goes on without its parent")
        assert (await statuses(fh))["waits"] == "cancelled"
