"""Outlast's sleepers, as a process of its own: its arguments are a file, how many sleep, and how many are due in turn.

The store has a clock that this process turns, but for the lateness, which is by the store's own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import UTC, datetime, timedelta
from statistics import median

import apsw

import outlast
from benchmarks.holding import holding, percentile
from outlast import App
from outlast.app import store_for
from outlast.authoring.workflow import AsyncWorkflow
from outlast.runtime.fastest_loop import fastest_loop
from outlast.testing import ManualClock

BATCH = 1_000
HOUR_S = 3_600
WARM_UP = 10_000
"""So many fill some of what is bounded, whatever sleeps. What SQLite keeps in memory (at most 32 MiB of pages for each
connection) is part of `bytes_each`, and shown apart as `pages_bytes_each`."""
APART_S = 0.01
TURNS = 5
"""So many times a part of them is woken, and as many that were never asleep are drained: a slow minute slows both."""


def build(app: App) -> tuple[AsyncWorkflow[[float], float], AsyncWorkflow[[], int]]:
    @app.workflow
    async def sleeper(until_s: float) -> float:
        """How late its code went on, by the machine's clock: the code's own is that of the commit which woke it."""
        await outlast.sleep_until(datetime.fromtimestamp(until_s, UTC))
        return time.time() - until_s

    @app.workflow
    async def awake() -> int:
        return 1

    return sleeper, awake


async def main(file: str, count: int, spread: int) -> dict[str, float]:
    warm_up, part = min(WARM_UP, count // 5), count // TURNS
    clock, url = ManualClock(), f"sqlite:///{file}?synchronous=FULL"
    turned = App(url, store=lambda: store_for(url, clock=clock), lease_ttl="1d")
    sleeper, awake = build(turned)
    figures: dict[str, float] = {}
    async with turned:
        hour_s = clock.now_ms() / 1_000 + HOUR_S
        await asleep(turned, sleeper, hour_s, warm_up, part)
        before, pages_before = holding(), apsw.memory_used()
        await asleep(turned, sleeper, hour_s, count, part)
        after, pages_after = holding(), apsw.memory_used()
        figures |= {
            "bytes_each": max(0, after.resident_bytes - before.resident_bytes) / (count - warm_up),
            "pages_bytes_each": (pages_after - pages_before) / (count - warm_up),
            "threads": after.threads,
            "threads_more": after.threads - before.threads,
            "files_more": after.files - before.files,
        }
    clock.advance(timedelta(seconds=1))
    woken: list[float] = []
    drained: list[float] = []
    for turn in range(TURNS):
        clock.advance(timedelta(seconds=HOUR_S))
        woken.append(await worked_off(turned, 2 * turn * part, part))
        async with turned.client():
            for begin in range(0, part, BATCH):
                await turned.start_many(awake.bind() for _ in range(begin, min(begin + BATCH, part)))
        drained.append(await worked_off(turned, (2 * turn + 1) * part, part))
    figures |= {
        "wake_per_s": median(woken),
        "drain_per_s": median(drained),
        "wake_share": median(one / other for one, other in zip(woken, drained, strict=True)),
    }
    return figures | await lateness(f"{file}.late", spread)


async def worked_off(app: App, before: int, number: int) -> float:
    """How many per second, of those that a worker finds due or ready when it begins."""
    began_s = time.perf_counter()
    async with app:
        await until_count(app, "succeeded", before + number)
        return number / (time.perf_counter() - began_s)


async def asleep(app: App, sleeper: AsyncWorkflow[[float], float], first_s: float, count: int, part: int) -> None:
    """Until so many sleep in all: the first part of them until that hour, the next until the next one. So they wake in
    the order in which they fell asleep, as all of them would that sleep for an hour."""
    there = await app.count(workflow="sleeper")
    for begin in range(there, count, BATCH):
        numbers = range(begin, min(begin + BATCH, count))
        await app.start_many(sleeper.bind(first_s + min(number // part, TURNS - 1) * HOUR_S) for number in numbers)
    await until_count(app, "suspended", count)


async def until_count(app: App, status: str, count: int) -> None:
    while await app.count(status=status) < count:  # noqa: ASYNC110 (all of them at once is nobody's event)
        await asyncio.sleep(0.05)


async def lateness(file: str, spread: int) -> dict[str, float]:
    app = App(f"sqlite:///{file}?synchronous=FULL")
    sleeper, _ = build(app)
    async with app:
        first_s = time.time() + 3 + spread / 500
        handles = await app.start_many(sleeper.bind(first_s + n * APART_S) for n in range(spread))
        late_ms = [await handle.result() * 1_000 for handle in handles]
    return {"late_p50_ms": percentile(late_ms, 50), "late_p99_ms": percentile(late_ms, 99)}


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        print(json.dumps(runner.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))), flush=True)
