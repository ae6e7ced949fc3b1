"""Whoever waits for a result also waits for a store that is away for a while."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import App
from outlast.client import waiters
from outlast.errors import StoreUnavailable


class Away:
    """A store whose reads fail for so many times."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        assert app._opened is not None
        store = app._opened.waiters._store
        self._load = store.load
        self.left = 0
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
