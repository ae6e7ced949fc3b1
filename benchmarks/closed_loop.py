"""Executions from start to result, so many at a time: the load that every system of the end-to-end scenario carries.

Standard library only: the peers import this file in environments of their own, where Outlast is not installed.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import TypedDict

WARM_UP_S = 0.1


class Figures(TypedDict):
    """One measurement of one system."""

    executions_per_s: float
    steps_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_execution: float


async def carry(
    execute: Callable[[], Awaitable[object]],
    *,
    steps: int,
    concurrency: int,
    seconds: float,
    warm_up_s: float = WARM_UP_S,
) -> Figures:
    """As many executions as begin within `seconds`, `concurrency` of them at a time; `execute` is one of them."""
    if warm_up_s:
        await _rounds(execute, concurrency, warm_up_s)
    gc.collect()
    began, began_cpu = time.perf_counter(), time.process_time()
    took_each_s = await _rounds(execute, concurrency, seconds)
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    took_each_s.sort()
    count = len(took_each_s)
    return Figures(
        executions_per_s=count / took_s,
        steps_per_s=count * steps / took_s,
        p50_ms=took_each_s[count // 2] * 1_000,
        p99_ms=took_each_s[min(count - 1, count * 99 // 100)] * 1_000,
        cpu_us_per_execution=cpu_s / count * 1_000_000,
    )


async def _rounds(execute: Callable[[], Awaitable[object]], concurrency: int, seconds: float) -> list[float]:
    took_each_s: list[float] = []
    until = time.perf_counter() + seconds

    async def one_after_another() -> None:
        while (asked := time.perf_counter()) < until:
            await execute()
            took_each_s.append(time.perf_counter() - asked)

    await asyncio.gather(*(one_after_another() for _ in range(concurrency)))
    return took_each_s
