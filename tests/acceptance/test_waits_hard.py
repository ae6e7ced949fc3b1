"""Waiting, the hard way: processes killed at every point, and thousands of sends that race with receives."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from pathlib import Path

import pytest

import outlast
from outlast import Status
from tests.acceptance.conftest import Place
from tests.acceptance.crashing import Outside, Process, exists, fresh, received
from tests.acceptance.killed import SharedClock
from tests.acceptance.waiting_workflows import SCENARIOS
from tests.forks import called

KILLED = (
    "two sleeps",
    "receive after sleep",
    "timeout, then event",
    "event before receive",
    "two receives of one name",
    "a sleep longer than others' retention",
)
WHERE = [*(("sqlite", name) for name in KILLED), ("postgres", "receive after sleep"), ("valkey", "timeout, then event")]
"""Each on SQLite; elsewhere one stands for all."""


async def until_killed(url: str, clock: Path, scenario: str, nth: int) -> str | None:
    """What the process came to; None if it was killed."""
    returncode, said = await asyncio.to_thread(called, "tests.acceptance.killed", url, str(clock), scenario, str(nth))
    assert returncode in (0, -signal.SIGKILL)
    return said if returncode == 0 else None


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store, name", WHERE)
async def test_a_sigkill_at_any_point_of_what_waits_changes_nothing(store: str, name: str, tmp_path: Path):
    scenario = SCENARIOS[name]
    clock = SharedClock(tmp_path / "uncrashed.clock")
    url = await fresh(store, tmp_path, "uncrashed")
    async with Outside(url, clock, scenario.script):
        expected = await Process(url, scenario.build, clock).start_and_finish(())
    kills = 0
    for nth in range(1, 500):
        url, time = await fresh(store, tmp_path, nth), tmp_path / f"{nth}.clock"
        clock = SharedClock(time)
        async with Outside(url, clock, scenario.script):
            came = await until_killed(url, time, name, nth)
        if came is not None:
            assert came == repr(expected)
            break
        kills += 1
        if await exists(url, clock):
            async with Outside(url, clock, scenario.script):
                assert await Process(url, scenario.build, clock).take_over(clock) == expected
            assert await received(url, clock) == (scenario.events, 0)
    assert kills >= 5


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_ten_thousand_sends_race_with_receives(place: Place):
    """No wake-up is lost, nothing is received twice, and the order of each sender's events is kept."""
    executions, events = 100, 100
    app = place.app(resident=0)

    @app.workflow
    async def collects(count: int) -> list[int]:
        got: list[int] = []
        for _ in range(count):
            got.append(await outlast.receive("number", int))
        return got

    async def sends(handle: outlast.Handle[list[int]]) -> list[int]:
        chance = random.Random(handle.id)
        n = 0
        while n < events:
            if chance.random() < 0.2:  # on a slow machine it would be behind all the time
                async with asyncio.timeout(240):
                    while (await handle.info()).status is not Status.SUSPENDED:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
            burst = min(chance.choice((1, 1, 1, 2, 5)), events - n)
            for _ in range(burst):
                await handle.send("number", n)
                n += 1
            await asyncio.sleep(chance.random() * 0.6)  # now it is suspended again, now it is about to be
        return await handle.result(timeout=300)

    async with app:
        handles = await app.start_many(collects.options(id=f"c{n}").bind(events) for n in range(executions))
        results = await asyncio.gather(*(sends(handle) for handle in handles))
        assert results == [list(range(events))] * executions
        epochs = {entry.epoch for entry in await handles[0].journal()}
    assert len(epochs) > 5, "it was not suspended between the sends: there was no race"


BEFORE = """
from asyncio import as_completed, wait, create_task, run, FIRST_COMPLETED
from outlast import App

app = App("sqlite:///order.db")

@app.step
async def same(number: int) -> int:
    return number

async def branch(number: int) -> int:
    return await same(number)

@app.workflow
async def completed() -> list[int]:
    return [await one for one in as_completed([branch(n) for n in range(40)])]

@app.workflow
async def waited() -> list[int]:
    done, _ = await wait([create_task(branch(n)) for n in range(40)])
    return [task.result() for task in done]

async def main():
    async with app:
        handle = await completed.start()
        await handle.result()
        for entry in await handle.journal():
            assert entry.scope == f"{int(entry.value) + 1}.", entry
        assert await waited() == list(range(40))

run(main())
"""


async def test_who_imports_from_asyncio_before_outlast_has_the_same_order(tmp_path: Path):
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", BEFORE, cwd=tmp_path)
    assert await process.wait() == 0
