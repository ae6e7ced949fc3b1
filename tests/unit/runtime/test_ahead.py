"""What is known ahead is bounded, and never relied upon."""

from __future__ import annotations

import asyncio

from outlast.errors import StoreUnavailable
from outlast.model.execution import Execution
from outlast.runtime.flows import ahead
from outlast.runtime.flows.ahead import Ahead, Behind, Known
from tests.unit.machine.build import ready


async def nothing(_: Execution) -> Behind | None:
    return None


async def test_it_is_told_once():
    known, member = Ahead(nothing), ready()
    known.look(member)
    assert await known.take(member) == Known(None)
    assert await known.take(member) is None


async def test_the_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr(ahead, "KNOWN_MAX", 2)
    known = Ahead(nothing)
    members = [ready(id=f"m{n}") for n in range(3)]
    for member in members:
        known.look(member)
    assert [await known.take(member) for member in members] == [None, Known(None), Known(None)]


async def test_what_could_not_be_read_is_not_known():
    async def away(_: Execution) -> Behind | None:
        raise StoreUnavailable("away")

    known, member = Ahead(away), ready()
    known.look(member)
    assert await known.take(member) is None


async def test_nothing_is_read_any_more_once_it_is_closed():
    async def for_ever(_: Execution) -> Behind | None:
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    known = Ahead(for_ever)
    known.look(ready())
    await asyncio.sleep(0)
    known.close()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
