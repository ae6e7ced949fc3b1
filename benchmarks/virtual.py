"""Ten years of a monthly subscription by the testing kit's virtual clock: nothing waits, so what counts is the work."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import outlast
from benchmarks.report import Report, Scene, heading
from benchmarks.settings import Settings
from outlast import App
from outlast.testing import harness

MONTHS = 120
BAR_S = 1.0


def measure(settings: Settings, report: Report) -> None:
    heading(f"the testing kit: a subscription of {MONTHS} months by the virtual clock")
    repeats = 3 if settings.quick else 5
    took_s = [asyncio.run(_once()) for _ in range(repeats)]
    scene = Scene(
        system="outlast",
        version=settings.version,
        store=settings.store,
        scenario="virtual",
        steps=MONTHS,
        concurrency=1,
    )
    median_s = report.add(scene, "seconds", took_s, "s")
    report.bar(f"{median_s:.2f} s for ten years (below {BAR_S:g} s)", met=median_s < BAR_S)


async def _once() -> float:
    app = App()

    @app.step
    async def bill(month: int) -> int:
        return month

    @app.workflow
    async def subscription(months: int) -> int:
        for month in range(months):
            await outlast.sleep("30d")
            await bill(month)
        return months

    async with harness(app) as h:
        start, began_s = h.clock.now, time.perf_counter()
        assert await (await subscription.start(MONTHS)).result() == MONTHS
        took_s = time.perf_counter() - began_s
        assert h.clock.now - start == timedelta(days=30 * MONTHS)
    return took_s
