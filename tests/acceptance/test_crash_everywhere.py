"""Every workflow, crashing at every point in turn, gives what the uncrashed one gives; no recorded step runs again."""

from pathlib import Path

import pytest

from outlast.testing import CrashPoints, ManualClock
from tests.acceptance.crashing import Outside, Process, exists, received, recorded, until_crash
from tests.acceptance.waiting_workflows import SCENARIOS
from tests.acceptance.workflows import WORKFLOWS

POINTS_MAX = 2_000


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["*:begin", "*:reply"])
@pytest.mark.parametrize("name", WORKFLOWS)
async def test_a_crash_at_any_await_changes_nothing(name: str, point: str, tmp_path: Path):
    """Before each of its commits, and after each: that a commit itself is all or nothing is conformance's to show."""
    build, args = WORKFLOWS[name]
    clock = ManualClock()
    expected = await Process(tmp_path / "uncrashed.db", build, clock).start_and_finish(args)
    crashes = 0
    for nth in range(1, POINTS_MAX):
        path = tmp_path / f"{nth}.db"
        clock, points = ManualClock(), CrashPoints()
        points.crash_at(point, nth=nth)
        first = Process(path, build, clock, points)
        came = await until_crash(first, args, points)
        if came is not None:
            assert came == expected
            break
        crashes += 1
        await finished_elsewhere(path, name, clock, expected, first.ledger)
    assert crashes >= 5, "fewer than a start, a claim, steps and an end need"


async def finished_elsewhere(path, name, clock, expected, before):
    build, _ = WORKFLOWS[name]
    if not await exists(path, clock):
        # The start itself was not accepted: the caller was told so, and nothing is left behind.
        assert before == []
        return
    # A workflow with a retry of its own runs its failed step again; in the others a failure is an outcome.
    kept = await recorded(path, clock, failures=name not in ("retried", "unwinding"))
    second = Process(path, build, clock)
    assert await second.take_over(clock) == expected
    ran_again = kept & second.performed()
    assert not ran_again, f"recorded before the crash, and run again: {ran_again}"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["*:begin", "*:reply"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_crash_at_any_await_of_what_waits_changes_nothing(name: str, point: str, tmp_path: Path):
    """Time passes and the world goes on meanwhile: no event is lost or received twice, no sleep is longer."""
    scenario = SCENARIOS[name]
    clock = ManualClock()
    path = tmp_path / "uncrashed.db"
    began_at = clock.now_ms()
    async with Outside(path, clock, scenario.script):
        expected = await Process(path, scenario.build, clock).start_and_finish(())
    took_ms = clock.now_ms() - began_at
    assert not isinstance(expected, tuple), expected
    crashes = 0
    for nth in range(1, POINTS_MAX):
        path = tmp_path / f"{nth}.db"
        clock, points = ManualClock(), CrashPoints()
        points.crash_at(point, nth=nth)
        first = Process(path, scenario.build, clock, points)
        async with Outside(path, clock, scenario.script):
            came = await until_crash(first, (), points)
            if came is not None:
                assert came == expected
                break
            crashes += 1
            if await exists(path, clock):
                assert await Process(path, scenario.build, clock).take_over(clock) == expected
                assert await received(path, clock) == (scenario.events, 0)
                assert clock.now_ms() - began_at <= took_ms + 60_000, "a restart made it wait longer"
    assert crashes >= 5, "fewer than a start, a claim, waits and an end need"
