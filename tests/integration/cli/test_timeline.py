"""`show` of an execution with a family: what people know by name, and none of the engine's own bookkeeping."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import outlast as ol
from outlast import App
from outlast.model.event import UNDELIVERED, Event
from tests.acceptance.conftest import until

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Outlast


async def with_a_family() -> None:
    app = App("sqlite:///outlast.db")

    @app.workflow
    async def child(number: int) -> int:
        return number or await ol.receive("number", int)

    @app.workflow
    async def parent() -> None:
        ol.patched("p1")
        ol.update("rename")(lambda: None)
        waits = await child.options(id="waits").start(0)
        await (await child.options(id="quick").start(3)).result()
        flow = app.flow("nightly", id="n")
        flow.add("one", child, 1)
        await (await flow.start()).result()
        await ol.race(ol.interrupted(), waits.result())
        await app.execution("nobody").send("news", 1)
        await waits.result()

    async with app:
        handle = await parent.options(id="order-1").start()
        await handle.update("rename")
        await handle.interrupt()

        async def refused() -> bool:
            assert app._opened is not None
            return bool(await app._opened._store.scan(Event.KIND, ("default", "order-1", UNDELIVERED)))

        await until(refused, "the word is refused")


def test_the_timeline_of_a_family_has_no_internal_names(outlast: Outlast):
    asyncio.run(with_a_family())
    told = outlast("show", "order-1").out.partition("Timeline")[2]
    lines = [re.sub(r" {2,}", "  ", line.strip()).split("  ", 2)[-1] for line in told.splitlines()]
    for line in (
        "start child  succeeded  order-1/waits",
        "child order-1/quick ended",
        "child order-1/quick  succeeded  3",
        "flow n ended",
        'patches of its code  noted  ["p1"]',
        "update rename told to the code",
        "interrupt  succeeded",
        "word to nobody  refused  there is no such execution",
    ):
        assert line in lines, told
    assert "outlast:" not in told
    assert "sealed" not in told
    names = {event["name"] for event in outlast.json("show", "order-1")["events"]}
    assert "outlast:child" not in names
