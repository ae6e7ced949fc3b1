"""A server that is away for a while: the log says so once, and once that it is back, whatever the worker is doing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from outlast import App
from outlast.testing.postgres_server import PostgresServer
from outlast.testing.valkey_server import ValkeyServer
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

FAILED_CALLS = 20


class Server(Protocol):
    url: str

    def leave(self) -> None: ...

    def come_back(self) -> None: ...


class Postgres:
    def __init__(self, stack: ExitStack) -> None:
        self._server = stack.enter_context(PostgresServer.launch())
        # So that its calls fail soon, as they do in an outage of minutes.
        self.url = f"{self._server.url}&patience=1"

    def leave(self) -> None:
        self._server.stop("immediate")

    def come_back(self) -> None:
        self._server.start()


class Valkey:
    def __init__(self, stack: ExitStack) -> None:
        self._server = stack.enter_context(ValkeyServer())
        self.url = self._server.url

    def leave(self) -> None:
        self._server.kill()

    def come_back(self) -> None:
        self._server.start()


@pytest.fixture(params=[Postgres, Valkey], ids=["postgres", "valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with ExitStack() as stack:
        yield request.param(stack)


@pytest.mark.parametrize("busy", [0, 5])
async def test_an_outage_is_two_lines(
    server: Server, busy: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("outlast.runtime.outages.QUIET_S", 1.0)
    caplog.set_level(logging.INFO, logger="outlast")
    app = App(server.url)
    done: list[int] = []

    @app.step
    async def work(number: int) -> int:
        await asyncio.sleep(0.01)
        done.append(number)
        return number

    @app.workflow
    async def works() -> None:
        for number in range(100_000):
            await work(number)

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]

    def failed_calls() -> int:
        assert app._opened is not None
        assert app._opened.reconcilers is not None
        return sum(metrics.errors for metrics in app._opened.reconcilers.metrics.values())

    async with app.worker(drain="10ms"):
        handles = [await works.start() for _ in range(busy)]
        await until(lambda: len(done) >= busy * 3, "no step has run")
        caplog.clear()
        await asyncio.to_thread(server.leave)
        await until(lambda: failed_calls() >= FAILED_CALLS, "nobody notices", seconds=60)
        await asyncio.to_thread(server.come_back)
        await until(lambda: any("is back" in line for line in lines()), "nobody says that it is back", seconds=60)
        before = len(done)
        await until(lambda: not busy or len(done) > before + busy, "the work does not go on", seconds=60)
        said = lines()
        for handle in handles:
            await handle.cancel()
    away, *between, back = [line for line in said if not line.startswith("execution ")]
    assert away.startswith("the store is away, and is asked again until it answers: ")
    assert between == []
    assert back.startswith("the store is back, after ")
    assert len(said) <= 2 + busy, "and one for each execution whose lease ran out"


async def test_a_client_that_waits_says_the_same(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("outlast.runtime.outages.QUIET_S", 1.0)
    caplog.set_level(logging.INFO, logger="outlast")
    app = App(server.url)

    @app.workflow
    async def works() -> None: ...

    def said(words: str) -> bool:
        return any(words in record.getMessage() for record in caplog.records)

    async with app.client():
        waiting = asyncio.ensure_future((await works.start()).result())
        await asyncio.to_thread(server.leave)
        await until(lambda: said("is away"), "nobody notices", seconds=60)
        await asyncio.to_thread(server.come_back)
        await until(lambda: said("is back"), "nobody says that it is back", seconds=60)
        waiting.cancel()
    assert len([record for record in caplog.records if record.levelno >= logging.INFO]) == 2
