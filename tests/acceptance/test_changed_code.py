"""A deploy that changes code under open executions: the worker says so when it starts."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, cast

import pytest

import outlast
from outlast import App
from outlast.app import store_for
from outlast.authoring import changed
from outlast.errors import StoreUnavailable
from outlast.model.status import Reason
from outlast.store.port import Page, Query, Store
from tests.acceptance.conftest import Place, status_is, until


def shop_on(app: App, *, version: str = "1", steps: int = 1) -> Any:
    @app.step
    async def charge() -> None: ...

    @app.step
    async def ship() -> None: ...

    async def one() -> None:
        await charge()

    async def two() -> None:
        await charge()
        await ship()

    return app.workflow(one if steps == 1 else two, name="checkout", version=version)


async def started(place: Place, **options: Any) -> None:
    """An open execution, by a process that is gone."""
    app = place.app()
    checkout = shop_on(app)
    async with app.client():
        await checkout.options(**{"id": "order-42", "delay": "1h", **options}).start()


async def warnings_of(app: App, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.WARNING, "outlast"):
        async with app:
            assert app._opened is not None
            comparing = app._opened._comparing
            assert comparing is not None
            await until(comparing.done, "the comparison does not end")
    slow = "outlast.runtime.watchdog"  # which tells of a machine that stalls
    return [one.getMessage() for one in caplog.records if one.name.startswith("outlast") and one.name != slow]


async def test_a_worker_warns_of_code_that_was_changed_without_a_new_version(
    place: Place, caplog: pytest.LogCaptureFixture
):
    await started(place)
    app = place.app()
    shop_on(app, steps=2)
    [warning] = await warnings_of(app, caplog)
    assert "'checkout'" in warning
    assert "1 open executions of version '1', such as 'order-42'" in warning


@pytest.mark.parametrize(
    "now", [{"steps": 1}, {"steps": 2, "version": "2"}], ids=["the same code", "changed code of a new version"]
)
async def test_what_fits_is_not_warned_of(place: Place, caplog: pytest.LogCaptureFixture, now: dict[str, Any]):
    await started(place)
    app = place.app()
    shop_on(app, **now)
    assert await warnings_of(app, caplog) == []


async def test_what_has_ended_is_not_warned_of(place: Place, caplog: pytest.LogCaptureFixture):
    await started(place)
    async with (gone := place.app()).client():
        await gone.execution("order-42").cancel()
    app = place.app()
    shop_on(app, steps=2)
    assert await warnings_of(app, caplog) == []


async def test_a_look_that_fails_is_said_and_stops_nothing(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(changed, "LOOKED_AT", 10**9)  # which no store takes
    app = place.app()
    shop_on(app)
    [warning] = await warnings_of(app, caplog)
    assert "could not be found out" in warning


async def test_a_worker_works_though_nobody_says_what_waits_for_its_code_and_asks_again(place: Place):
    """One server of many may be away: what lives on the others must not wait for it."""
    answer, troubles = asyncio.Event(), [StoreUnavailable("away")]

    class Late:
        def __init__(self) -> None:
            self._store = store_for(place.url)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def find(self, query: Query) -> Page:
            if query.reason == Reason.VERSION:
                await answer.wait()
                if troubles:
                    raise troubles.pop()
            return await self._store.find(query)

    def built(app: App, first: str) -> Any:
        @app.step
        async def say(word: str) -> str:
            return word

        @app.workflow
        async def code() -> str:
            word = await say.options(name=first)(first)
            return word + await outlast.receive("more", str)

        @app.workflow
        async def echo(text: str) -> str:
            return text

        return code, echo

    old, other = place.app(resident=0), place.app(resident=0)
    code, _ = built(old, "old")
    built(other, "other")
    async with old:
        await status_is(await code.options(id="it").start(), "suspended")
    async with other:
        await other.execution("it").send("more", " code")
        await until(partial(waits_for_code, other), "it fits")
    fixed = App(place.url, store=lambda: cast("Store", Late()), lease_ttl="2s")
    _, echo = built(fixed, "old")
    async with fixed:
        assert await (await echo.start("x")).result(timeout=20) == "x"
        assert await waits_for_code(fixed)
        answer.set()
        assert await fixed.execution("it").result(timeout=20) == "old code"
    assert not troubles


async def waits_for_code(app: App) -> bool:
    return (await app.execution("it").info()).reason == Reason.VERSION
