"""`fork(from_step=…)` and `retry(from_step=…)`: what is kept is as it was, and what goes runs again."""

from __future__ import annotations

import asyncio

import pytest

import outlast
from outlast import App, ExecutionRefused, FlowFailed, InvalidInput, Status
from tests.acceptance.flow_workflows import member_is, workflows


async def test_what_has_no_input_yet_cannot_be_forked(app: App):
    kit = workflows(app)
    async with app:
        flow = app.flow("sums", id="sums")
        up, bad = flow.add("up", kit.waits), flow.add("bad", kit.fails)
        flow.add("down", kit.number, up.output)
        flow.add("skipped", kit.number, bad.output)
        fh = await flow.start()
        for name, status in (("down", "blocked"), ("skipped", "skipped")):
            await member_is(fh, name, Status(status))
            async with asyncio.timeout(20):
                with pytest.raises(ExecutionRefused, match=f"is {status} and has no input"):
                    await app.execution(f"sums/{name}").fork(from_step="anything")
        await app.execution("sums/up").send("go", 1)
        with pytest.raises(FlowFailed):
            await fh.result("20s")


async def test_nobody_goes_on_from_what_was_undone(app: App):
    booked, declined = list[str](), [True]

    @app.step
    async def book(what: str) -> str:
        booked.append(what)
        return what

    @app.step
    async def unbook(what: str) -> None:
        booked.remove(what)

    @app.step
    async def pay() -> str:
        if declined:
            raise ValueError("declined")
        return "paid"

    @app.workflow
    async def trip() -> str:
        await outlast.receive("go", int)
        room = await book("room")
        await outlast.compensate(unbook, room)
        return await pay()

    async with app:
        handle = await trip.options(id="trip", send={"go": 1}).start()
        with pytest.raises(ValueError, match="declined"):
            await handle.result("20s")
        assert booked == []
        declined.clear()
        for step in ("pay", "unbook"):  # behind the registration, and at it
            for again in (handle.retry(from_step=step), handle.fork(from_step=step)):
                with pytest.raises(ExecutionRefused, match="undos have run"):
                    await again
        for undo in ("unbook#2", "outlast:unwind"):
            with pytest.raises(InvalidInput, match="it has recorded go, book, unbook, pay"):
                await handle.fork(from_step=undo)
        assert await (await handle.fork(from_step="book")).result("20s") == "paid"
        await handle.retry(from_step="book")
        assert await handle.result("20s") == "paid"
        assert booked == ["room", "room"]
