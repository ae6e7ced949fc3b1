"""Every workflow, crashing at every point in turn, gives what the uncrashed one gives; no recorded step runs again."""

from pathlib import Path

import pytest

from outlast.testing import ManualClock
from tests.acceptance.crashing import CrashHeard, Outside, Process, exists, fresh, received, recorded, until_crash
from tests.acceptance.waiting_workflows import SCENARIOS
from tests.acceptance.workflows import WORKFLOWS

POINTS_MAX = 2_000
ELSEWHERE = ("postgres", "valkey")
"""There a few stand for all: what a commit is, the conformance suite shows on every store."""
WHERE = [
    *(("sqlite", name, point) for name in WORKFLOWS for point in ("*:begin", "*:reply")),
    *((store, "retried", "*:reply") for store in ELSEWHERE),
    *((store, "sequence", "*:begin") for store in ELSEWHERE),
]
WHERE_WAITING = [
    *(("sqlite", name, point) for name in SCENARIOS for point in ("*:begin", "*:reply")),
    *((store, "timeout, then event", "*:reply") for store in ELSEWHERE),
    *((store, "two receives of one name", "*:begin") for store in ELSEWHERE),
]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store, name, point", WHERE)
async def test_a_crash_at_any_await_changes_nothing(store: str, name: str, point: str, tmp_path: Path):
    """Before each of its commits, and after each: that a commit itself is all or nothing is conformance's to show."""
    build, args = WORKFLOWS[name]
    clock = ManualClock()
    expected = await Process(await fresh(store, tmp_path, "uncrashed"), build, clock).start_and_finish(args)
    crashes = 0
    for nth in range(1, POINTS_MAX):
        url = await fresh(store, tmp_path, nth)
        clock, points = ManualClock(), CrashHeard()
        points.crash_at(point, nth=nth)
        first = Process(url, build, clock, points)
        came = await until_crash(first, args, points)
        if came is not None:
            assert came == expected
            break
        crashes += 1
        await finished_elsewhere(url, name, clock, expected, first.ledger)
    assert crashes >= 5, "fewer than a start, a claim, steps and an end need"


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


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store, name, point", WHERE_WAITING)
async def test_a_crash_at_any_await_of_what_waits_changes_nothing(store: str, name: str, point: str, tmp_path: Path):
    """Time passes and the world goes on meanwhile: no event is lost or received twice, no sleep is longer."""
    scenario = SCENARIOS[name]
    clock = ManualClock()
    url = await fresh(store, tmp_path, "uncrashed")
    began_at = clock.now_ms()
    async with Outside(url, clock, scenario.script):
        expected = await Process(url, scenario.build, clock).start_and_finish(())
    took_ms = clock.now_ms() - began_at
    assert not isinstance(expected, tuple), expected
    crashes = 0
    for nth in range(1, POINTS_MAX):
        url = await fresh(store, tmp_path, nth)
        clock, points = ManualClock(), CrashHeard()
        points.crash_at(point, nth=nth)
        first = Process(url, scenario.build, clock, points)
        async with Outside(url, clock, scenario.script):
            came = await until_crash(first, (), points)
        if came is not None:
            assert came == expected
            break
        crashes += 1
        if await exists(url, clock):
            async with Outside(url, clock, scenario.script):
                assert await Process(url, scenario.build, clock).take_over(clock) == expected
            assert await received(url, clock) == (scenario.events, 0)
            assert clock.now_ms() - began_at <= took_ms + 60_000, "a restart made it wait longer"
    assert crashes >= 5, "fewer than a start, a claim, waits and an end need"
