"""Every workflow, crashing at every point in turn, gives what the uncrashed one gives; no recorded step runs again."""

import asyncio
from pathlib import Path

import pytest

from outlast.testing import CrashPoints, ManualClock
from tests.acceptance.conftest import STORES
from tests.acceptance.crashing import Process, exists, recorded, until_crash
from tests.acceptance.workflows import WORKFLOWS

POINTS_MAX = 2_000
EVERY = {"sqlite": 1}
"""A server takes its time to connect to: on the others every fifth point is tried, beginning with another one each."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["*:begin", "*:reply"])
@pytest.mark.parametrize("name", WORKFLOWS)
@pytest.mark.parametrize("store", STORES)
async def test_a_crash_at_any_await_changes_nothing(store: str, name: str, point: str, tmp_path: Path):
    """Before each of its commits, and after each: that a commit itself is all or nothing is conformance's to show."""
    build, args = WORKFLOWS[name]
    clock = ManualClock()
    expected = await Process(await empty(store, tmp_path / "uncrashed"), build, clock).start_and_finish(args)
    crashes = 0
    every = EVERY.get(store, 5)
    for nth in range(1 + (len(name) + len(point)) % every, POINTS_MAX, every):
        url = await empty(store, tmp_path / str(nth))
        clock, points = ManualClock(), CrashPoints()
        points.crash_at(point, nth=nth)
        first = Process(url, build, clock, points)
        came = await until_crash(first, args, points)
        if came is not None:
            assert came == expected
            break
        crashes += every
        await finished_elsewhere(url, name, clock, expected, first.ledger)
    assert crashes >= 5, "fewer than a start, a claim, steps and an end need"


async def empty(store: str, folder: Path) -> str:
    """The URL of a store with nothing in it."""
    await asyncio.to_thread(folder.mkdir)
    return await asyncio.to_thread(STORES[store], folder)


async def finished_elsewhere(url, name, clock, expected, before):
    build, _ = WORKFLOWS[name]
    if not await exists(url, clock):
        # The start itself was not accepted: the caller was told so, and nothing is left behind.
        assert before == []
        return
    # A workflow with a retry of its own runs its failed step again; in the others a failure is an outcome.
    kept = await recorded(url, clock, failures=name not in ("retried", "unwinding"))
    second = Process(url, build, clock)
    assert await second.take_over(clock) == expected
    ran_again = kept & second.performed()
    assert not ran_again, f"recorded before the crash, and run again: {ran_again}"
