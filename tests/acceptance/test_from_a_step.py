"""`fork(from_step=…)` and `retry(from_step=…)`: what is kept is as it was, and what goes runs again."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

import outlast
from outlast import App, ExecutionRefused, FlowFailed, InvalidInput, Status
from outlast.testing import harness
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


async def test_a_retry_from_a_step_before_a_child_runs_the_child_anew(app: App):
    price, shipped, bad = [1], list[int](), [True]

    @app.step
    async def quote() -> int:
        return price[0]

    @app.workflow
    async def ship(price: int) -> int:
        shipped.append(price)
        return price

    @app.step
    async def pay() -> None:
        if bad:
            raise ValueError("declined")

    @app.workflow
    async def order() -> int:
        given = await ship(await quote())
        await pay()
        return given

    async with app:
        handle = await order.options(id="order").start()
        for generation, (step, now) in enumerate((("quote", 1), ("ship", 1), ("quote", 2)), start=2):
            with pytest.raises(ValueError, match="declined"):
                await handle.result("20s")
            price[0] = now
            await handle.retry(from_step=step)
            with pytest.raises(ValueError, match="declined"):
                await handle.result("20s")
            assert len(shipped) == generation
        bad.clear()
        await handle.retry()
        assert await handle.result("20s") == 2
        assert shipped == [1, 1, 1, 2], "a plain retry finds the same child"
        assert {info.id for info in await app.find(workflow="ship")} == {
            "order/ship.1",
            "order/ship.1@2",
            "order/ship.1@3",
            "order/ship.1@4",
        }


async def test_a_child_that_failed_runs_again_from_its_own_step(app: App):
    bad = [True]

    @app.workflow
    async def ship() -> str:
        if bad:
            raise ValueError("no stamps")
        return "sent"

    @app.workflow
    async def order() -> str:
        return await ship()

    async with app:
        handle = await order.start()
        with pytest.raises(ValueError, match="no stamps"):
            await handle.result("20s")
        bad.clear()
        await handle.retry()
        with pytest.raises(ValueError, match="no stamps"):  # it stays failed
            await handle.result("20s")
        await handle.retry(from_step="ship")
        assert await handle.result("20s") == "sent"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_while_a_child_is_started_anew_leaves_one_child(when: Literal["before", "after"]):
    app, bad = App(), [True]

    @app.workflow
    async def ship() -> int:
        return 1

    @app.step
    async def pay() -> None:
        if bad:
            raise ValueError("declined")

    @app.workflow
    async def order() -> int:
        one = await ship()
        await pay()
        return one

    for nth in (1, 2, 3):
        async with harness(app) as h:
            bad[:] = [True]
            handle = await order.options(id="order").start()
            with pytest.raises(ValueError, match="declined"):
                await handle.result()
            bad.clear()
            h.crash_at(nth=nth, when=when)
            await handle.retry(from_step="ship")
            assert await handle.result() == 1
            assert h.crashes == 1
            assert {info.id for info in await app.find(workflow="ship")} == {"order/ship.1", "order/ship.1@2"}
