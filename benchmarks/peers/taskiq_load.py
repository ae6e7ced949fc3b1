"""taskiq on Valkey: see `driving`. Without steps; a backlog and idle starts are compared.

By its stream broker, which its documentation recommends because it acknowledges what is done.
"""

# pyright: basic, reportMissingImports=false
# taskiq is installed in the environment that runs this file, not in the one that checks it.

from __future__ import annotations

import asyncio
import random
import time

from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from benchmarks.peers.driving import Load, drive, first, late, ready, run


class Tasks:
    def __init__(self, url: str) -> None:
        self.broker = RedisStreamBroker(url)

        @self.broker.task(task_name="drained")
        async def drained(number: int) -> int:
            first()
            return number

        @self.broker.task(task_name="ping")
        async def ping(sent: float) -> None:
            late(sent)

        self.drained, self.ping = drained, ping


class Taskiq(Load):
    async def prepare(self, url: str) -> None:
        broker = Tasks(url).broker
        broker.is_worker_process = True  # only a worker makes the group, which then sees all that comes
        await broker.startup()
        await broker.shutdown()

    async def enqueue(self, url: str, count: int) -> float:
        tasks = Tasks(url)
        await tasks.broker.startup()
        turns = asyncio.Semaphore(50)

        async def one(number: int) -> None:
            async with turns:
                await tasks.drained.kiq(number)

        began = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(count)))
        return time.perf_counter() - began

    def work(self, url: str, concurrency: int, number: int, workers: int) -> None:
        async def serve() -> None:
            tasks = Tasks(url)
            tasks.broker.is_worker_process = True
            ready()
            await run_receiver_task(tasks.broker, max_async_tasks=concurrency, run_startup=True)

        run(serve())

    async def starts(self, url: str, count: int, gap_s: float) -> None:
        tasks = Tasks(url)
        await tasks.broker.startup()
        for _ in range(count):
            await asyncio.sleep(gap_s * random.uniform(0.5, 1.5))
            await tasks.ping.kiq(time.time())


if __name__ == "__main__":
    drive(Taskiq())
