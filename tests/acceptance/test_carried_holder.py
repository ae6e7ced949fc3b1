"""Attempts over a holder port whose every call crosses a wire. The files marked `on_carried` run on it as well."""

from __future__ import annotations

import pytest

import outlast
from tests.acceptance.carried import CarriedHolder
from tests.acceptance.conftest import Place, status_is

pytestmark = pytest.mark.on_carried


@pytest.mark.parametrize("place", ["carried"], indirect=True)
async def test_what_an_attempt_asks_of_the_outside_crosses_the_port(place: Place):
    app = place.app(resident=0)

    @app.step
    async def shows() -> str:
        outlast.emit("half")
        return "shown"

    @app.workflow
    async def ships() -> int:
        return 7

    @app.workflow
    async def orders() -> tuple[str, str, bool, int]:
        shown = await shows()
        word = await outlast.receive("word", str)
        approval = outlast.deferred("approval", bool)
        return shown, word, await approval, await ships()

    async with app:
        assert app._opened is not None
        assert app._opened.parts is not None
        holder = app._opened.parts.holder
        assert isinstance(holder, CarriedHolder)
        handle = await orders.options(id="it").start()
        await status_is(handle, outlast.Status.SUSPENDED)
        await handle.send("word", "go")
        await handle.resolve("approval", True)
        assert await handle.result(timeout=20) == ("shown", "go", True, 7)
    assert holder.crossed >= {
        "claim",
        "submit",
        "append",
        "StepRecorded",
        "Suspend",
        "ReadDeferred",
        "Complete",
    }
