"""Absurd on PostgreSQL: see `driving`.

Its workers poll; its documentation lets one choose how often, and here they do so a hundred times a second instead of
four, so that its latency is that of its design. A worker claims as many as it may run at once.
"""

# pyright: basic, reportMissingImports=false
# absurd is installed in the environment that runs this file, not in the one that checks it.

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import absurdctl
import psycopg
from absurd_sdk import AsyncAbsurd

from benchmarks.peers.driving import VALUE, Execute, Load, drive, first, late, ready, run

POLL_S = 0.01
LANES = 4


def app_of(url: str) -> AsyncAbsurd:
    app = AsyncAbsurd(url, queue_name="default")

    @app.register_task(name="checkout")
    async def checkout(params: dict, ctx) -> int:
        async def charge() -> dict:
            return VALUE

        for _ in range(params["steps"]):
            await ctx.step("charge", charge)
        return params["steps"]

    @app.register_task(name="drained")
    async def drained(params: dict, ctx) -> int:
        first()
        return params["number"]

    @app.register_task(name="ping")
    async def ping(params: dict, ctx) -> None:
        late(params["sent"])

    @app.register_task(name="waits")
    async def waits(params: dict, ctx) -> None:
        late((await ctx.await_event(f"go:{params['number']}"))["sent"])

    return app


class Absurd(Load):
    async def prepare(self, url: str) -> None:
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        await connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
        await connection.close()
        app = app_of(url)
        await app.create_queue("default")
        await app.close()

    @asynccontextmanager
    async def embedded(self, url: str, concurrency: int) -> AsyncIterator[Execute]:
        worker, client = app_of(url), app_of(url)
        serving = asyncio.create_task(worker.start_worker(concurrency=concurrency, poll_interval=POLL_S))

        async def execute(steps: int) -> object:
            spawned = await client.spawn("checkout", {"steps": steps})
            return await client.await_task_result(spawned["task_id"])

        yield execute
        worker.stop_worker()
        await serving

    async def enqueue(self, url: str, count: int) -> float:
        clients = [app_of(url) for _ in range(LANES)]

        async def some(client: AsyncAbsurd, numbers: range) -> None:
            for number in numbers:
                await client.spawn("drained", {"number": number})

        began = time.perf_counter()
        await asyncio.gather(*(some(client, range(at, count, LANES)) for at, client in enumerate(clients)))
        return time.perf_counter() - began

    def work(self, url: str, concurrency: int, number: int, workers: int) -> None:
        async def serve() -> None:
            worker = app_of(url)
            ready()
            await worker.start_worker(concurrency=concurrency, poll_interval=POLL_S)

        run(serve())

    async def starts(self, url: str, count: int, gap_s: float) -> None:
        client = app_of(url)
        for _ in range(count):
            await asyncio.sleep(gap_s * random.uniform(0.5, 1.5))
            await client.spawn("ping", {"sent": time.time()})

    async def wakes(self, url: str, count: int, gap_s: float) -> None:
        client = app_of(url)
        spawned = [await client.spawn("waits", {"number": number}) for number in range(count)]
        for one in spawned:
            while (await client.fetch_task_result(one["task_id"])).state != "sleeping":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for number in range(count):
            await asyncio.sleep(gap_s * random.uniform(0.5, 1.5))
            await client.emit_event(f"go:{number}", {"sent": time.time()})


if __name__ == "__main__":
    drive(Absurd())
