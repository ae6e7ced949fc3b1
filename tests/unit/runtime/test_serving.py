"""A worker process opens, works until a signal and closes; whatever ends it, nothing stays open behind it."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from outlast.app import App
from outlast.errors import StoreUnavailable
from outlast.runtime.collecting import FROZEN_BY_PYTHON
from outlast.runtime.serving import SIGNALS, serve_until_signal
from tests.waiting import until


class Process:
    """What is served: it opens when it is let, and tells what became of it."""

    def __init__(self) -> None:
        self.may_open = asyncio.Event()
        self.said: list[str] = []
        self.stubborn = False
        self.error: Exception | None = None

    async def open(self) -> None:
        self.said.append("opening")
        try:
            await self.may_open.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # what was half open is let go, which takes a while
            self.said.append("given up")
            if not self.stubborn:
                raise
        if self.error is not None:
            raise self.error
        self.said.append("open")

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.said.append("closed")

    def serve(self, *, collect_seldom: bool = True) -> asyncio.Task[None]:
        return asyncio.create_task(serve_until_signal(self.open(), self.close, collect_seldom=collect_seldom))

    async def until(self, word: str) -> None:
        await until(lambda: word in self.said, f"it has not said {word!r}")


@pytest.fixture
def process() -> Iterator[Process]:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield Process()
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("seldom", [True, False])
async def test_what_start_up_made_is_left_out_of_collections_unless_that_is_not_wanted(process: Process, seldom: bool):
    process.may_open.set()
    serving = process.serve(collect_seldom=seldom)
    await process.until("open")
    await until(lambda: (gc.get_freeze_count() > FROZEN_BY_PYTHON) == seldom, "the collector is not as asked")
    signal.raise_signal(signal.SIGTERM)
    await serving
    assert gc.get_freeze_count() <= FROZEN_BY_PYTHON


@pytest.mark.parametrize("number", SIGNALS)
async def test_a_signal_closes_what_is_open(process: Process, number: signal.Signals):
    process.may_open.set()
    serving = process.serve()
    await process.until("open")
    signal.raise_signal(number)
    await serving
    assert process.said == ["opening", "open", "closed"]


async def test_a_signal_ends_an_opening(process: Process):
    serving = process.serve()
    await process.until("opening")
    signal.raise_signal(signal.SIGTERM)
    await serving
    assert process.said == ["opening", "given up"]


async def test_what_opens_though_it_was_given_up_is_closed(process: Process):
    process.stubborn = True
    serving = process.serve()
    await process.until("opening")
    signal.raise_signal(signal.SIGTERM)
    await serving
    assert process.said == ["opening", "given up", "open", "closed"]


async def test_what_opening_raises_is_raised(process: Process):
    process.error = StoreUnavailable("nobody is there")
    process.may_open.set()
    with pytest.raises(StoreUnavailable, match="nobody is there"):
        await process.serve()
    assert process.said == ["opening"]


@pytest.mark.parametrize("word, said", [("opening", ["opening", "given up"]), ("open", ["opening", "open", "closed"])])
async def test_a_caller_who_cancels_it_finds_nothing_open(process: Process, word: str, said: list[str]):
    if word == "open":
        process.may_open.set()
    serving = process.serve()
    await process.until(word)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert process.said == said


class Exited(Exception):
    pass


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(status: int) -> None:
        raise Exited(status)

    monkeypatch.setattr("os._exit", leave)


@pytest.mark.usefixtures("exits")
@pytest.mark.parametrize("hangs", ["open", "close"])
async def test_a_second_signal_ends_it_at_once(hangs: str):
    over = asyncio.Event()

    async def opening() -> None:
        while hangs == "open" and not over.is_set():
            with suppress(asyncio.CancelledError):  # a thread that waits for another's lock does not hear it
                await over.wait()

    async def close() -> None:
        await over.wait()

    serving = asyncio.create_task(serve_until_signal(opening(), close))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    signal.raise_signal(signal.SIGTERM)
    await asyncio.sleep(0.01)
    assert not serving.done()
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Exited):
        await serving
    over.set()
    for number in SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)


async def test_who_waits_for_a_store_says_so_before_it_gives_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("outlast.app.SILENT_S", 0.05)
    serving = asyncio.create_task(App("postgresql://postgres@127.0.0.1:1/x").serve())
    await until(lambda: "waiting for postgresql://postgres@127.0.0.1:1/x" in caplog.text, "it is silent")
    assert not serving.done()
    signal.raise_signal(signal.SIGTERM)
    await serving
