"""`show` of an execution with a family: what people know by name, and none of the engine's own bookkeeping."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

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
        "event to nobody  refused  there is no such execution",
    ):
        assert line in lines, told
    assert "outlast:" not in told
    assert "sealed" not in told
    names = {event["name"] for event in outlast.json("show", "order-1")["events"]}
    assert "outlast:child" not in names


async def with_an_id_that_was_taken() -> None:
    app = App("sqlite:///outlast.db")

    @app.workflow
    async def child() -> int:
        return 1

    @app.workflow
    async def parent() -> str:
        other = await child.options(id="taken", detached=True).start()
        with pytest.raises(ol.ExecutionConflict):
            await other.result()
        return "told"

    async with app:
        await (await child.options(id="taken").start()).result()
        assert await (await parent.options(id="order-1").start()).result() == "told"


def test_an_execution_that_was_there_already_is_shown_as_a_start_that_started_nothing(outlast: Outlast):
    asyncio.run(with_an_id_that_was_taken())
    told = outlast("show", "order-1").out
    assert re.search(r"start of taken +not started +it is not a child of 'order-1'", told), told
    assert "child taken ended" not in told
    [event] = outlast.json("show", "order-1")["events"]
    assert event["value"]["started"] is False
    assert event["value"]["cause"].startswith("is not a child of 'order-1'")


async def with_a_child_that_ended() -> None:
    app = App("sqlite:///outlast.db")

    @app.workflow
    async def child() -> list[int]:
        return [1, 2]

    @app.workflow
    async def parent() -> list[int]:
        return await (await child.options(id="one").start()).result()

    async with app:
        assert await (await parent.options(id="order-1").start()).result() == [1, 2]


def test_programs_read_how_a_child_ended(outlast: Outlast):
    asyncio.run(with_a_child_that_ended())
    [event] = outlast.json("show", "order-1")["events"]
    assert event["value"] == {"started": True, "status": "succeeded", "cause": None, "value": [1, 2]}
