"""The load that both systems carry: executions of one start, one claim, ten steps and one completion."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from typing import Protocol

import uuid_utils
from msgspec import Struct

from benchmarks.report import percentile

NAMESPACE = "default"
WORKFLOW = "checkout"
VERSION = "1"
LANE = "default"
WORKER = "worker-018f4c1e"
INPUT = b'{"order":42,"items":["tea","cup"],"note":"as ordered"}'
DIGEST = "d41d8cd98f00b204"
VALUE = b'{"payment":"p-184467","state":"captured","amount":1250}'
OUTPUT = b'{"receipt":"r-90071"}'
STEP = "charge"
STEPS = 10
JITTER_S = 0.004


class Execution(Protocol):
    async def step(self, name: str, occurrence: int) -> None: ...

    async def complete(self) -> None: ...


class System(Protocol):
    @property
    def name(self) -> str: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def begin(self, execution_id: str) -> Execution:
        """Start an execution and take it."""
        ...


class Sample(Struct, frozen=True, kw_only=True):
    """One measurement of one system."""

    steps_per_s: float
    executions_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_step: float


async def carry(system: System, *, concurrency: int, jitter: bool, seconds: float, seed: int) -> Sample:
    """As many executions as fit into `seconds`, `concurrency` of them at a time."""
    waits_s: list[float] = []
    finished = 0

    async def lane(number: int, until: float) -> None:
        nonlocal finished
        chance = random.Random(seed * 1_000 + number)
        while time.perf_counter() < until:
            execution = await system.begin(uuid_utils.uuid7().hex)
            for occurrence in range(STEPS):
                if jitter:
                    await asyncio.sleep(chance.random() * JITTER_S)
                asked = time.perf_counter()
                await execution.step(STEP, occurrence)
                waits_s.append(time.perf_counter() - asked)
            await execution.complete()
            finished += 1

    gc.collect()
    began, began_cpu = time.perf_counter(), time.process_time()
    until = began + seconds
    await asyncio.gather(*(lane(number, until) for number in range(concurrency)))
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    return Sample(
        steps_per_s=len(waits_s) / took_s,
        executions_per_s=finished / took_s,
        p50_ms=percentile(waits_s, 50) * 1_000,
        p99_ms=percentile(waits_s, 99) * 1_000,
        cpu_us_per_step=cpu_s / len(waits_s) * 1_000_000,
    )
