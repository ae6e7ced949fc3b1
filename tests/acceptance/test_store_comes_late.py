"""A worker process that was started in the middle of its store's restart waits for it; a stop ends the waiting."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.testing.postgres_server import PostgresServer
from outlast.testing.valkey_server import ValkeyServer
from tests.acceptance.fleet import STEPS, make_app, spawn
from tests.forks import Forked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

AWAY_S = 5


@pytest.fixture(params=["postgres", "valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "postgres":
        with PostgresServer.launch() as server:
            server.stop()
            yield server
    else:
        with ValkeyServer() as server:
            server.kill()
            yield server


@pytest.fixture
def worker(server: Any, tmp_path: Path) -> Iterator[Forked]:
    process = spawn("worker", server.url, tmp_path / "ledger")
    yield process
    process.kill()
    process.wait()


async def test_a_worker_process_waits_for_its_store(server: Any, worker: Forked, tmp_path: Path):
    await asyncio.sleep(AWAY_S)
    assert worker.poll() is None, "it gave up"
    await asyncio.to_thread(server.start)
    app = make_app(server.url, str(tmp_path / "ledger"))
    async with app.client(), asyncio.timeout(30):
        assert await (await app.registry.newest("ten").start(1)).result() == sum(range(STEPS)) + 1


async def test_a_stop_ends_the_waiting(server: Any, worker: Forked):
    await asyncio.sleep(2)
    worker.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(worker.wait, 5) == 0
