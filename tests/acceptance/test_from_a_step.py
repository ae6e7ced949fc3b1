"""`fork(from_step=…)` and `retry(from_step=…)`: what is kept is as it was, and what goes runs again."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Literal

import pytest

import outlast
from outlast import App, ExecutionCancelled, ExecutionRefused, FlowFailed, Handle, InvalidInput, Status
from outlast.authoring.workflow import Workflow
from outlast.testing import harness
from tests.acceptance.conftest import Place, status_is
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


def drawing(app: App, performed: list[str]) -> Workflow[[], list[str]]:
    """Which steps it calls, and with what, is drawn: a replay that draws otherwise takes another way."""

    @app.step
    async def red(at: str) -> str:
        performed.append(at)
        return f"red {at}"

    @app.step
    async def blue(at: str) -> str:
        performed.append(at)
        return f"blue {at}"

    @app.step
    async def mark() -> str:
        return "mark"

    @app.workflow
    async def draws() -> list[str]:
        drawn: list[str] = []
        for _ in range(4):
            for _ in range(3):
                colour = red if outlast.random().random() < 0.5 else blue
                drawn.append(await colour(f"{outlast.now().timestamp()} {outlast.uuid4()}"))
            await mark()
        return drawn

    return draws


async def test_a_fork_draws_in_what_it_keeps_as_the_original_did_and_anew_behind_that(app: App):
    performed: list[str] = []
    draws = drawing(app, performed)
    async with app:
        original = await draws.options(id="original").start()
        of_original = await original.result("20s")
        fork = await original.fork(from_step="mark#2", id="fork")
        of_fork = await fork.result("20s")
        assert of_fork[:6] == of_original[:6]
        assert not set(of_fork[6:]) & set(of_original)
        later = await (await fork.fork(from_step="mark#3")).result("20s")
        assert later[:9] == of_fork[:9]
        assert not set(later[9:]) & {*of_fork, *of_original}
        earlier = await (await fork.fork(from_step="mark")).result("20s")
        assert earlier[:3] == of_original[:3]
        assert not set(earlier[3:]) & {*of_fork, *of_original}
        anew = await (await fork.fork(from_step=of_original[0].split()[0])).result("20s")
        assert not set(anew) & {*of_fork, *of_original}
    assert len(performed) == 12 + 6 + 3 + 9 + 12, "what is kept is not performed again"


async def test_a_fork_that_is_replayed_or_retried_draws_the_same():
    app, performed = App(), list[str]()
    draws = drawing(app, performed)
    async with harness(app) as h:
        original = await draws.options(id="original").start()
        of_original = await original.result()
        for nth in range(1, 9):
            h.crash_at(nth=nth, when="after")
            of_fork = await (await original.fork(from_step="mark#2", id=f"fork-{nth}")).result()
            assert of_fork[:6] == of_original[:6]
            assert len({*of_fork}) == 12
        assert h.crashes == 8
        assert not h.performed_again
        fork = await original.fork(from_step="mark#3", id="fork")
        await fork.cancel()
        with pytest.raises(ExecutionCancelled):
            await fork.result()
        await fork.retry(from_step="mark")
        assert (await fork.result())[:3] == of_original[:3]


async def test_the_time_at_which_a_fork_begins_is_the_same_when_it_is_replayed(clocked: Place):
    app, seen = clocked.app(), list[datetime]()

    @app.step
    async def look() -> None:
        await clocked.pass_time(app, "1m")

    @app.workflow
    async def asks() -> None:
        seen.append(outlast.now())
        await look()
        await outlast.receive("go", int)
        await outlast.receive("go", int)

    async def goes_on(handle: Handle[None]) -> set[datetime]:
        seen.clear()
        for _ in range(2):
            await status_is(handle, "suspended")
            await handle.send("go", 1)
        await handle.result("20s")
        return set(seen)

    async with app:
        original = await asks.start()
        [begun] = await goes_on(original)
        await clocked.pass_time(app, "1d")
        assert await goes_on(await original.fork(from_step="go")) == {begun}
        [anew] = await goes_on(await original.fork(from_step="look"))
        assert anew == begun + timedelta(days=1, minutes=1)
