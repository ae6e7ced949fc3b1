"""A journal without room: what cannot go on fails, what only ends goes on, and nothing is repeated for ever."""

from __future__ import annotations

import asyncio
import gc

import pytest

import outlast
from outlast import App, ExecutionCancelled, LimitExceeded, Retry, limits
from outlast.testing import harness
from tests.acceptance.conftest import Gate, status_is

ROOM = 3


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOURNAL_MAX_ENTRIES", ROOM)


class Kit:
    def __init__(self, app: App, gate: Gate) -> None:
        self.ran: list[str] = []

        @app.step
        async def work() -> None:
            self.ran.append("work")

        @app.step
        async def wait() -> None:
            await gate()

        @app.step
        async def take_back() -> None:
            self.ran.append("take back")

        @app.step(retry=Retry(max_attempts=3, initial="1h", max_delay="1h"))
        async def flaky() -> None:
            self.ran.append("flaky")
            raise ConnectionError("away")

        async def filled() -> None:
            for _ in range(ROOM):
                await work()

        @app.workflow
        async def sleeps() -> None:
            await filled()
            await outlast.sleep("1h")

        @app.workflow
        async def receives() -> None:
            await filled()
            await outlast.receive("never", timeout="1h")

        @app.workflow
        async def backs_off() -> None:
            await filled()
            await flaky()

        @app.workflow
        async def listens() -> str:
            await outlast.compensate(take_back)
            for _ in range(ROOM - 1):
                await work()
            return await outlast.receive("answer", str)

        @app.workflow
        async def runs() -> str:
            await filled()
            try:
                await wait()
            except asyncio.CancelledError:
                return "told"
            return "waited"

        @app.workflow
        async def naps() -> str:
            await filled()
            await asyncio.sleep(0.01)
            return "awake"

        @app.workflow
        async def undoes() -> None:
            await outlast.compensate(flaky)
            for _ in range(ROOM - 1):
                await work()
            raise KeyError("sold out")

        self.ends = {"sleeps": sleeps, "receives": receives, "backs_off": backs_off}
        self.listens, self.runs, self.naps, self.undoes = listens, runs, naps, undoes


@pytest.mark.parametrize("which", ["sleeps", "receives", "backs_off"])
async def test_what_must_write_down_how_long_it_waits_fails(app: App, gate: Gate, which: str):
    kit = Kit(app, gate)
    async with app:
        handle = await kit.ends[which].start()
        with pytest.raises(LimitExceeded, match="journal"):
            await handle.result("20s")
        assert len(await handle.journal()) == ROOM
    assert kit.ran == [*["work"] * ROOM, *(["flaky"] if which == "backs_off" else [])]


async def test_what_is_suspended_hears_a_cancel_and_undoes(app: App, gate: Gate):
    kit = Kit(app, gate)
    async with app:
        handle = await kit.listens.start()
        await status_is(handle, "suspended")
        await handle.cancel("enough")
        with pytest.raises(ExecutionCancelled, match="enough"):
            await handle.result("20s")
    assert kit.ran == [*["work"] * (ROOM - 1), "take back"]


async def test_what_runs_hears_a_cancel(app: App, gate: Gate):
    kit = Kit(app, gate)
    async with app:
        handle = await kit.runs.start()
        await gate.reached()
        await handle.cancel()
        assert await handle.result("20s") == "told"


async def test_a_timer_of_asyncio_fires_and_nobody_complains(app: App, gate: Gate, caplog: pytest.LogCaptureFixture):
    kit = Kit(app, gate)
    async with app:
        assert await (await kit.naps.start()).result("20s") == "awake"
        gc.collect()
    assert "never retrieved" not in caplog.text


async def test_an_undo_is_tried_as_often_as_it_may_be(gate: Gate):
    app = App()
    kit = Kit(app, gate)
    async with harness(app), asyncio.timeout(20):
        handle = await kit.undoes.start()
        with pytest.raises(KeyError, match="sold out"):
            await handle.result()
    assert kit.ran == [*["work"] * (ROOM - 1), *["flaky"] * 3]
