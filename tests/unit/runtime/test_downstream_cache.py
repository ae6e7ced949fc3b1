"""What is known ahead is bounded, and never relied upon."""

from __future__ import annotations

import asyncio

from outlast.errors import StoreUnavailable
from outlast.machine import facts
from outlast.machine.changes import started_by
from outlast.machine.decide_flow import NewFlow, NewMember, accepted
from outlast.model.execution import Execution
from outlast.runtime.flows import downstream_cache
from outlast.runtime.flows.downstream_cache import Behind, DownstreamCache, Known
from tests.unit.machine.build import ready


async def nothing(_: Execution) -> Behind | None:
    return None


async def test_it_is_told_once():
    known, member = DownstreamCache(nothing), ready()
    known.look(member)
    assert await known.take(member) == Known(None)
    assert await known.take(member) is None


async def test_the_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr(downstream_cache, "KNOWN_MAX", 2)
    known = DownstreamCache(nothing)
    members = [ready(id=f"m{n}") for n in range(3)]
    for member in members:
        known.look(member)
    assert [await known.take(member) for member in members] == [None, Known(None), Known(None)]


async def test_what_could_not_be_read_is_not_known():
    async def away(_: Execution) -> Behind | None:
        raise StoreUnavailable("away")

    known, member = DownstreamCache(away), ready()
    known.look(member)
    assert await known.take(member) is None


async def test_nothing_is_read_any_more_once_it_is_closed():
    async def for_ever(_: Execution) -> Behind | None:
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    known = DownstreamCache(for_ever)
    known.look(ready())
    await asyncio.sleep(0)
    known.close()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


def member(name: str, *upstreams: str, given: bytes) -> NewMember:
    ids = tuple(f"f/{one}" for one in upstreams)
    start = facts.Start(
        change_id="new",
        namespace="shop",
        id=f"f/{name}",
        workflow="w",
        version="1",
        input=given,
        input_digest="i",
        flow="f",
        after_dependencies=bool(ids),
    )
    return NewMember(start=start, name=name, upstreams=ids, needed=len(ids))


async def test_of_a_flow_that_does_not_end_here_nothing_large_is_kept():
    known, large = DownstreamCache(nothing), b"x" * (downstream_cache.BYTES_MAX + 1)
    known.remembers = True
    members = [member("a", given=large), member("b", "a", given=large), member("c", "b", given=b"1")]
    new = NewFlow(namespace="shop", id="f", name="nightly", change_id="new", members=3, digest="d")
    whole = accepted(0, new, members)
    known.remember(whole, 1)
    [first, second, third] = started_by(whole)
    course = known.course(first)
    assert course is not None
    assert [one.execution for one in course._given.values()] == ["f/c"]
    assert [course.knows(one.id) for one in (first, second, third)] == [False, True, True]
