"""Whoever waits for a result also waits for a store that is away for a while."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from outlast import App
from outlast.app import store_for
from outlast.client import waiters
from outlast.errors import StoreUnavailable
from outlast.store.port import Store
from outlast.testing import CrashPoints
from tests.acceptance.conftest import Gate, Place, until


class Away:
    """A store whose reads fail for so many times."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        assert app._opened is not None
        store = app._opened.waiters._store
        self.left = 0
        self._load = store.load
        monkeypatch.setattr(store, "load", self.load)

    async def load(self, keys: Any) -> Any:
        if self.left:
            self.left -= 1
            raise StoreUnavailable("away")
        return await self._load(keys)


async def test_a_result_is_waited_for_though_the_store_is_away_at_first(app: App, monkeypatch: pytest.MonkeyPatch):
    @app.workflow
    async def echo(text: str) -> str:
        return text

    async with app:
        handle = await echo.options(id="it").start("x")
        await handle.result(timeout=20)
        away = Away(app, monkeypatch)
        away.left = 3
        assert await echo.execution("it").result(timeout=20) == "x"
        assert away.left == 0


async def test_the_end_of_a_flow_is_heard_of_though_the_store_was_away_meanwhile(
    app: App, place: Place, monkeypatch: pytest.MonkeyPatch
):
    """By another process: this one looks for it, and goes on looking."""
    gate = Gate()

    def with_one(app: App) -> Any:
        @app.step
        async def wait() -> int:
            await gate()
            return 1

        @app.workflow
        async def one() -> int:
            return await wait()

        return one

    worker = place.app()
    one, _ = with_one(app), with_one(worker)
    async with worker, app.client():
        flow = app.flow("f", id="f")
        flow.add("a", one)
        handle = await flow.start()
        result = asyncio.create_task(handle.result(timeout=30))
        await asyncio.sleep(0.1)
        away = Away(app, monkeypatch)
        away.left = 3
        await until(lambda: away.left == 0, "nobody looks")
        gate.open()
        assert await result == {"a": 1}


async def test_a_store_that_stays_away_is_not_waited_for_for_ever(app: App, monkeypatch: pytest.MonkeyPatch):
    @app.workflow
    async def echo(text: str) -> str:
        return text

    monkeypatch.setattr(waiters, "PATIENCE_S", 0.2)
    async with app:
        handle = await echo.options(id="it").start("x")
        await handle.result(timeout=20)
        away = Away(app, monkeypatch)
        away.left = 1_000
        with pytest.raises(StoreUnavailable, match="away"):
            await echo.execution("it").result(timeout=20)
        away.left = 0


async def test_an_app_opens_though_it_hears_late_that_its_schema_lasts(place: Place):
    points = CrashPoints()
    points.lose_reply("migrate")
    app = App(place.url, store=lambda: store_for(place.url, points=points))

    @app.workflow
    async def echo(text: str) -> str:
        return text

    async with app:
        assert await echo("x") == "x"
    assert points.passed.count("migrate:reply") == 2


async def test_an_app_does_not_wait_for_a_store_that_is_not_there(place: Place):
    class Gone:
        async def migrate(self) -> int:
            raise StoreUnavailable("nobody there")

    app = App(place.url, store=lambda: cast("Store", Gone()))
    with pytest.raises(StoreUnavailable, match="nobody there"):
        async with asyncio.timeout(20), app:
            pass
