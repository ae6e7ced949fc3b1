"""Parents, children, words to others and new generations, with a crash at every point in turn: nothing is lost, nothing
is done twice, nobody is left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from outlast.app import store_for
from outlast.model.event import UNDELIVERED, Event
from outlast.model.execution import Execution
from outlast.store.port import DueKind
from outlast.testing import ManualClock
from tests.acceptance.crashing import CrashHeard, Process, exists, fresh, until_crash
from tests.acceptance.family_workflows import FAMILIES

POINTS_MAX = 2_000
WHERE = [
    *(("sqlite", name, point) for name in FAMILIES for point in ("*:begin", "*:reply")),
    # There one stands for all: what a commit is, the conformance suite shows on every store.
    ("postgres", "held", "*:reply"),
    ("valkey", "waited", "*:reply"),
]


class Family(Process):
    """As a process, but it ends only when everybody has."""

    async def start_and_finish(self, args: tuple[Any, ...]) -> Any:
        async with self.app:
            handle = await self.workflow.options(id="it").start(*args)
            came = await handle.result(timeout=20)
            await self._all_ended()
            return came

    async def take_over(self, clock: ManualClock) -> Any:
        async with self.app:
            clock.advance("11s")
            assert self.app._opened is not None
            assert self.app._opened.reconcilers is not None
            for name in ("lease_expiry", "outbox"):
                await self.app._opened.reconcilers.cycle(name)
            assert self.app._opened.worker is not None
            self.app._opened.worker.kick()
            came = await self.workflow.execution("it").result(timeout=20)
            await self._all_ended()
            return came

    async def _all_ended(self) -> None:
        async with asyncio.timeout(20):
            while True:
                infos = await self.app.find(limit=1_000)
                owed = await self.store.due(DueKind.OUTBOX, limit=10)
                if all(info.finished_at for info in infos) and not owed.items:
                    return
                await asyncio.sleep(0.002)


async def left_behind(url: str, clock: ManualClock) -> dict[str, str]:
    """Who there is and how it ended; nobody has an event that was not received, or a word that was refused."""
    store = store_for(url, clock=clock)
    await store.open()
    events = [event for event in await store.scan(Event.KIND, ("default",), limit=10_000) if isinstance(event, Event)]
    executions = await store.scan(Execution.KIND, ("default",), limit=1_000)
    await store.close()
    assert [event for event in events if not event.consumed and not event.name.startswith("outlast:")] == []
    assert [event.value for event in events if event.name == UNDELIVERED] == []
    return {e.id: f"{e.status} in {e.generation}" for e in executions if isinstance(e, Execution)}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store, name, point", WHERE)
async def test_a_crash_at_any_await_of_a_family_changes_nothing(store: str, name: str, point: str, tmp_path: Path):
    build = FAMILIES[name]
    clock, url = ManualClock(), await fresh(store, tmp_path, "uncrashed")
    expected = await Family(url, build, clock).start_and_finish(())
    family = await left_behind(url, clock)
    crashes = 0
    for nth in range(1, POINTS_MAX):
        url = await fresh(store, tmp_path, nth)
        clock, points = ManualClock(), CrashHeard()
        points.crash_at(point, nth=nth)
        came = await until_crash(Family(url, build, clock, points), (), points)
        if came is None:
            crashes += 1
            if not await exists(url, clock):
                continue
            came = await Family(url, build, clock).take_over(clock)
        assert came == expected, f"crashed at {nth}"
        assert await left_behind(url, clock) == family, f"crashed at {nth}"
        if not points.crashed:
            break
    assert crashes >= 10, "fewer than a start, claims, children and ends need"
