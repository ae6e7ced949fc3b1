"""Flows in the testing kit: their ends are awaited by virtual time, like those of executions."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import outlast
from outlast import App, FlowCancelled, any_of
from outlast.errors import StoreClosed, StoreUnavailable
from outlast.testing import Stuck, harness
from tests.acceptance.flow_workflows import statuses

app = App("sqlite:///of-the-user.db")


@app.workflow
async def sleeps(days: int) -> int:
    await outlast.sleep(timedelta(days=days))
    return days


@app.workflow
async def total(xs: list[int]) -> int:
    return sum(xs)


@app.workflow
async def listens() -> int:
    return await outlast.receive("go", int)


def two_sleepers() -> outlast.Flow:
    flow = app.flow("f", id="f")
    one, two = flow.add("one", sleeps, 3), flow.add("two", sleeps, 5)
    flow.add("total", total, [one.output, two.output])
    return flow


async def test_a_flow_is_awaited_and_takes_the_time_that_its_members_sleep():
    async with harness(app) as h:
        began = h.clock.now
        assert await (await two_sleepers().start()).result() == {"one": 3, "two": 5, "total": 8}
        assert h.clock.now - began == timedelta(days=5)


async def test_the_longest_way_is_whole_though_its_members_end_in_the_same_millisecond():
    async with harness(app):
        flow = app.flow("f", id="f")
        last = flow.add("last", total, [1])
        one = flow.add("one", sleeps, 0)
        two = flow.add("two", total, [one.output])
        last.after(one, two)
        fh = await flow.start()
        await fh.result()
        assert (await fh.status()).critical_path == ("one", "two", "last")


async def test_a_result_that_does_not_come_in_time_is_a_timeout_by_the_virtual_clock():
    async with harness(app) as h:
        began, fh = h.clock.now, await two_sleepers().start()
        with pytest.raises(TimeoutError, match="goes on"):
            await fh.result("4d")
        assert h.clock.now - began == timedelta(days=4)
        assert (await fh.result())["total"] == 8


async def test_a_flow_that_can_never_end_says_who_waits_for_what():
    async with harness(app):
        flow = app.flow("f", id="f")
        flow.add("below", total, [flow.add("listens", listens).output])
        fh = await flow.start()
        with pytest.raises(Stuck, match=r"f/listens is suspended \(event:go\)"):
            await fh.result()


@pytest.mark.parametrize("nth", range(1, 12))
async def test_a_crash_changes_nothing(nth: int):
    async with harness(app) as h:
        fh = await two_sleepers().start()
        h.crash_at("write", nth=nth)
        assert (await fh.result())["total"] == 8
        assert h.crashes == 1


@pytest.mark.parametrize("nth", range(1, 10))
async def test_siblings_are_cancelled_whenever_the_worker_dies(nth: int):
    async with harness(app) as h:
        flow = app.flow("f", id="f")
        fast, slow = flow.add("fast", sleeps, 0), flow.add("slow", listens)
        flow.add("first", total, [1]).after(fast, slow, join=any_of(), on_satisfied="cancel_remaining")
        h.crash_at("write", nth=nth)
        fh = await flow.start()
        assert await fh.result() == {"fast": 0, "first": 1}
        assert (await statuses(fh))["slow"] == "cancelled"


@pytest.mark.parametrize("nth", range(1, 14))
async def test_what_is_above_them_is_cancelled_whenever_the_worker_dies(nth: int):
    async with harness(app) as h:
        flow = app.flow("f", id="f")
        fast, top = flow.add("fast", sleeps, 0), flow.add("top", listens)
        middle = flow.add("middle", total, [top.output])
        low = flow.add("low", total, [middle.output])
        flow.add("first", total, [1]).after(fast, low, join=any_of(), on_satisfied="cancel_remaining")
        h.crash_at("write", nth=nth)
        fh = await flow.start()
        assert await fh.result() == {"fast": 0, "first": 1}
        ends = await statuses(fh)
        assert ends["low"] == ends["middle"] == ends["top"] == "cancelled"


async def test_a_cancelled_flow_ends_and_a_retried_one_goes_on():
    async with harness(app):
        fh = await two_sleepers().start()
        await fh.cancel(reason="enough", wait=True)
        with pytest.raises(FlowCancelled, match="enough"):
            await fh.result()
        await fh.retry()
        assert (await fh.result())["total"] == 8


async def test_a_look_that_failed_is_repeated(monkeypatch: pytest.MonkeyPatch):
    async with harness(app, auto_advance=False) as h:
        fh = await two_sleepers().start()
        waiting = asyncio.create_task(fh.result())
        await h.settle()
        client, failed = app.opened().flows, list[bool]()
        look = client._look

        async def fails_once(names: list[str]) -> None:
            if not failed:
                failed.append(True)
                raise StoreUnavailable("away for a moment")
            await look(names)

        monkeypatch.setattr(client, "_look", fails_once)
        await h.clock.advance("6d")
        assert failed
        assert (await asyncio.wait_for(waiting, 20))["total"] == 8


async def test_whoever_waits_when_the_app_is_closed_is_told():
    async with harness(app, auto_advance=False) as h:
        waiting = asyncio.create_task((await two_sleepers().start()).result())
        await h.settle()
    with pytest.raises(StoreClosed, match="closed"):
        await asyncio.wait_for(waiting, 20)
