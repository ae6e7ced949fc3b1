"""PgQueuer on PostgreSQL: see `driving`. It has neither steps nor results: a backlog and idle starts are compared.

It takes and acknowledges in batches: here as large as the concurrency of the others, ten times its default.
"""

# pyright: basic, reportMissingImports=false
# pgqueuer is installed in the environment that runs this file, not in the one that checks it.

from __future__ import annotations

import asyncio
import random
import time

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from benchmarks.peers.driving import Load, drive, first, late, ready, run

BATCH = 1_000


class Queuer(Load):
    async def prepare(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def enqueue(self, url: str, count: int) -> float:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
        began = time.perf_counter()
        for at in range(0, count, BATCH):
            size = min(count, at + BATCH) - at
            payloads = [str(number).encode() for number in range(at, at + size)]
            await queries.enqueue(["drained"] * size, payloads, [0] * size)
        return time.perf_counter() - began

    def work(self, url: str, concurrency: int, number: int, workers: int) -> None:
        async def serve() -> None:
            pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

            @pgq.entrypoint("drained")
            async def drained(job) -> None:
                first()

            @pgq.entrypoint("ping")
            async def ping(job) -> None:
                late(float(job.payload))

            ready()
            await pgq.run(batch_size=concurrency)

        run(serve())

    async def starts(self, url: str, count: int, gap_s: float) -> None:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
        for _ in range(count):
            await asyncio.sleep(gap_s * random.uniform(0.5, 1.5))
            await queries.enqueue("ping", repr(time.time()).encode(), 0)


if __name__ == "__main__":
    drive(Queuer())
