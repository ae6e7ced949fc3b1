"""Whoever waits for a result also waits for a store that is away for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import outlast
from outlast import App, ExecutionCancelled
from outlast.client import waiters
from outlast.errors import StoreUnavailable
from tests.acceptance.conftest import Place


class Away:
    """A store whose reads fail for so many times."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        assert app._opened is not None
        store = app._opened.waiters._store
        self.left = 0
        for look in ("load", "scan", "frames", "completions"):
            monkeypatch.setattr(store, look, self._failing(getattr(store, look)))

    def _failing(self, look: Callable[..., Any]) -> Callable[..., Any]:
        async def fails(*args: Any, **kwargs: Any) -> Any:
            if self.left:
                self.left -= 1
                raise StoreUnavailable("away")
            return await look(*args, **kwargs)

        return fails


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


async def test_the_result_of_a_flow_is_waited_for_as_well(place: Place, monkeypatch: pytest.MonkeyPatch):
    app = place.app()

    @app.workflow
    async def echo(text: str) -> str:
        return text

    async with app:
        flow = app.flow("f", id="f")
        flow.add("it", echo, "x")
        await (await flow.start()).result("20s")
    async with app.client():  # nobody else looks
        away = Away(app, monkeypatch)
        away.left = 3
        assert await app.flow_handle("f").result("20s") == {"it": "x"}
        assert away.left == 0
        client = app.opened().flows
        really = client._members

        async def members(flow_id: str) -> Any:
            away.left = 0 if members_asked else 1
            members_asked.append(flow_id)
            return await really(flow_id)

        members_asked: list[str] = []
        monkeypatch.setattr(client, "_members", members)
        assert await app.flow_handle("f").result("20s") == {"it": "x"}
        assert members_asked == ["f", "f"]


async def test_why_it_was_cancelled_is_waited_for_as_well(place: Place, monkeypatch: pytest.MonkeyPatch):
    app = place.app()

    @app.workflow
    async def waits() -> None:
        await outlast.receive("never")

    async with app.client():
        handle = await waits.start()
        await handle.cancel("enough")
        client, asked = app.opened(), list[str]()
        really, away = client._cancelled_because, Away(app, monkeypatch)

        async def because(execution_id: str) -> str:
            away.left = 0 if asked else 1
            asked.append(execution_id)
            return await really(execution_id)

        monkeypatch.setattr(client, "_cancelled_because", because)
        with pytest.raises(ExecutionCancelled, match="enough"):
            await handle.result(timeout=20)
        assert len(asked) == 2


async def test_feeds_outlive_a_store_that_is_away_for_a_while(app: App, monkeypatch: pytest.MonkeyPatch):
    @app.workflow
    async def emits() -> None:
        for number in range(2):
            outlast.emit(number)

    async with app:
        handle = await emits.start()
        await handle.result(timeout=20)
    async with app.client():
        away, seen = Away(app, monkeypatch), list[Any]()
        async for frame in handle.frames():
            away.left = 2
            seen.append(frame.value)
        assert (seen, away.left) == ([0, 1], 0)
        away.left = 2
        async for completion in app.completions():
            assert completion.execution_id == handle.id
            break
        assert away.left == 0
