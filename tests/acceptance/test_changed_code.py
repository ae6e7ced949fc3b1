"""A deploy that changes code under open executions: the worker says so when it starts."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from outlast import App
from outlast.authoring import changed
from tests.acceptance.conftest import Place, until


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
