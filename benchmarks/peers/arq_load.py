"""arq on Valkey: see `driving`. Without steps; a backlog and idle starts are compared.

It polls; its documentation lets one choose how often, and here it does so a hundred times a second instead of twice,
and works on as many at once as the others do.
"""

# pyright: basic, reportMissingImports=false
# arq is installed in the environment that runs this file, not in the one that checks it.

from __future__ import annotations

import asyncio
import random
import time

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from benchmarks.peers.driving import Load, drive, first, late, ready, run

POLL_S = 0.01


async def drained(ctx: dict, number: int) -> int:
    first()
    return number


async def ping(ctx: dict, sent: float) -> None:
    late(sent)


class Arq(Load):
    async def enqueue(self, url: str, count: int) -> float:
        pool = await create_pool(RedisSettings.from_dsn(url))
        turns = asyncio.Semaphore(50)

        async def one(number: int) -> None:
            async with turns:
                await pool.enqueue_job("drained", number)

        began = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(count)))
        return time.perf_counter() - began

    def work(self, url: str, concurrency: int, number: int, workers: int) -> None:
        async def serve() -> None:
            worker = Worker(
                [drained, ping],
                redis_settings=RedisSettings.from_dsn(url),
                max_jobs=concurrency,
                poll_delay=POLL_S,
                log_results=False,
            )
            ready()
            await worker.async_run()

        run(serve())

    async def starts(self, url: str, count: int, gap_s: float) -> None:
        pool = await create_pool(RedisSettings.from_dsn(url))
        for _ in range(count):
            await asyncio.sleep(gap_s * random.uniform(0.5, 1.5))
            await pool.enqueue_job("ping", time.time())


if __name__ == "__main__":
    drive(Arq())
