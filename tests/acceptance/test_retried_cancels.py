"""A cancel is of one generation: what is retried or forked afterwards is not cancelled, and hears the next cancel."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import outlast
from outlast import App, ExecutionCancelled, FlowCancelled, Handle, Status
from outlast.errors import CorruptState
from outlast.machine import retry_cut
from outlast.testing import harness
from tests.acceptance.conftest import Gate, status_is


class Booking:
    """Something slow, and something that cleans up behind it: also if it is cancelled meanwhile."""

    def __init__(self, app: App, *, broken: bool) -> None:
        self.ran: list[str] = []
        self.gates = [Gate() for _ in range(3)]
        self.broken = broken

        @app.step
        async def look() -> None:
            self.ran.append("look")

        @app.step
        async def book() -> str:
            self.ran.append("book")
            await self.gates[self.ran.count("book") - 1]()
            return "booked"

        @app.step
        async def clean() -> None:
            self.ran.append("clean")
            if self.broken:
                raise ConnectionError("hotel away")

        @app.workflow
        async def booking() -> str:
            await look()
            try:
                return await book()
            finally:
                await clean()

        self.workflow = booking

    async def cancelled(self, handle: Handle[Any]) -> None:
        """From when it is asked for until it has ended."""
        await self.gates[0].reached()
        await handle.cancel()
        await status_is(handle, "failed" if self.broken else "cancelled")
        self.broken = False


async def test_what_failed_while_it_was_cancelled_is_retried_and_not_cancelled_again(app: App):
    kit = Booking(app, broken=True)
    async with app:
        handle = await kit.workflow.start()
        await kit.cancelled(handle)
        kit.gates[1].open()
        await handle.retry()
        assert await handle.result("20s") == "booked"
    assert kit.ran == ["look", "book", "clean", "book", "clean"]


async def test_what_was_retried_after_a_cancel_hears_the_next_one(app: App):
    kit = Booking(app, broken=True)
    async with app:
        handle = await kit.workflow.start()
        await kit.cancelled(handle)
        await handle.retry()
        await kit.gates[1].reached()
        await handle.cancel("for good")
        with pytest.raises(ExecutionCancelled, match="for good"):
            await handle.result("20s")


@pytest.mark.parametrize("broken", [True, False])
@pytest.mark.parametrize("step", ["book", "clean"])
async def test_what_goes_on_from_a_step_behind_a_cancel_is_not_cancelled(app: App, step: str, broken: bool):
    kit = Booking(app, broken=broken)
    async with app:
        handle = await kit.workflow.start()
        await kit.cancelled(handle)
        kit.gates[1].open()
        fork = await handle.fork(from_step=step)
        assert await fork.result("20s") == "booked"
        await handle.retry(from_step=step)
        await kit.gates[2].reached()
        await handle.cancel("for good")
        with pytest.raises(ExecutionCancelled, match="for good"):
            await handle.result("20s")
    assert kit.ran == ["look", "book", "clean", "book", "clean", "book", "clean"]


async def test_a_fork_from_behind_a_cancel_hears_the_next_one(app: App):
    kit = Booking(app, broken=False)
    async with app:
        handle = await kit.workflow.start()
        await kit.cancelled(handle)
        fork = await handle.fork(from_step="clean")
        await kit.gates[1].reached()
        await fork.cancel("for good")
        with pytest.raises(ExecutionCancelled, match="for good"):
            await fork.result("20s")


async def test_a_flow_retries_members_that_failed_while_they_were_cancelled(app: App):
    kit = Booking(app, broken=True)
    async with app:
        flow = app.flow("trip", id="trip")
        flow.add("room", kit.workflow)
        fh = await flow.start()
        await kit.gates[0].reached()
        await fh.cancel()
        with pytest.raises(FlowCancelled):
            await fh.result("20s")
        kit.broken = False
        kit.gates[1].open()
        await fh.retry()
        assert await fh.result("20s") == {"room": "booked"}


async def test_what_expired_before_it_had_unwound_is_retried_and_not_told_again():
    app, ran, gate = App(), list[str](), Gate()

    @app.step
    async def clean() -> None:
        ran.append("clean")
        await gate()

    @app.workflow(deadline="1h")
    async def booking() -> str:
        await outlast.compensate(clean)
        try:
            return await outlast.receive("answer", str)
        finally:
            await clean()

    async with harness(app, auto_advance=False) as h:
        handle = await booking.start()
        await h.clock.advance("2h")
        while (await handle.info()).status is not Status.EXPIRED:
            await h.crash()
            await h.clock.advance("5m")
            await h.restart()
            await asyncio.sleep(0.01)
        gate.open()
        await handle.retry()
        assert (await h.info(handle)).status is Status.SUSPENDED
        await handle.send("answer", "booked")
        assert await handle.result() == "booked"


async def test_a_cancel_that_was_left_in_the_journal_fails_what_it_unwinds(app: App, monkeypatch: pytest.MonkeyPatch):
    """An earlier release left it there, and unwound for ever."""
    kit = Booking(app, broken=False)
    async with app:
        handle = await kit.workflow.start()
        await kit.cancelled(handle)
        with monkeypatch.context() as patch:
            patch.setattr(retry_cut, "cut_short", lambda _: [])
            await handle.retry()
        with pytest.raises(CorruptState, match="a cancel that nobody asked for"):
            await handle.result("20s")
        kit.gates[1].open()
        await handle.retry()
        assert await handle.result("20s") == "booked"
