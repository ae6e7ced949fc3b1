"""Thousands started in one call while nobody works, and then the time that one worker takes for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import uuid_utils

from benchmarks.bare import Bare
from benchmarks.checkout import checkout_app
from benchmarks.peers.driving import run
from benchmarks.report import Report, Scene, heading
from benchmarks.settings import Settings, workplace

COUNT, COUNT_QUICK = 5_000, 1_000
CONCURRENCY = 100
REPEATS_MAX, REPEATS_QUICK = 5, 2

Rates = tuple[float, float]
"""(enqueued, drained) per second."""


def measure(settings: Settings, report: Report) -> None:
    count = COUNT_QUICK if settings.quick else COUNT
    heading(f"backlog: {count:,} started in one call, then drained at concurrency {CONCURRENCY}")
    systems: dict[str, Callable[[Path, int], Rates]] = {"bare": _bare, "outlast": _outlast}
    turns: dict[str, list[Rates]] = {name: [] for name in systems}
    for _ in range(min(settings.repeats, REPEATS_QUICK if settings.quick else REPEATS_MAX)):
        for name, turn in systems.items():
            with workplace() as folder:
                turns[name].append(turn(folder, count))
    for name, rates in turns.items():
        scene = Scene(
            system=name,
            version=settings.version if name == "outlast" else "-",
            store=settings.store,
            scenario="backlog",
            concurrency=CONCURRENCY,
        )
        report.add(scene, "enqueue_per_s", [enqueued for enqueued, _ in rates], "1/s")
        report.add(scene, "drain_per_s", [drained for _, drained in rates], "1/s")


def _outlast(folder: Path, count: int) -> Rates:
    app, checkout = checkout_app(folder / "outlast.db")

    async def turn() -> Rates:
        async with app.client():
            began = time.perf_counter()
            started = await app.start_many(checkout.bind(0) for _ in range(count))
            enqueued_s = time.perf_counter() - began
        began = time.perf_counter()
        async with app:
            await asyncio.gather(*(checkout.execution(handle.id).result() for handle in started))
            return count / enqueued_s, count / (time.perf_counter() - began)

    return run(turn())


def _bare(folder: Path, count: int) -> Rates:
    async def turn() -> Rates:
        bare = Bare(folder / "bare.db")
        await bare.open()
        ids = [uuid_utils.uuid7().hex for _ in range(count)]
        began = time.perf_counter()
        await asyncio.gather(*(bare.start(execution_id) for execution_id in ids))
        enqueued_s = time.perf_counter() - began
        began = time.perf_counter()

        async def one_after_another() -> None:
            while ids:
                execution = await bare.claim(ids.pop())
                await execution.complete()

        await asyncio.gather(*(one_after_another() for _ in range(CONCURRENCY)))
        drained_s = time.perf_counter() - began
        await bare.close()
        return count / enqueued_s, count / drained_s

    return run(turn())
