"""DBOS Transact on SQLite or PostgreSQL: see `driving`.

Runs in `.cache/peers/dbos`; imports nothing of Outlast. The load is Outlast's: an `async def` workflow that awaits
`async def` steps, called directly, so many at a time, as its documentation shows it. (Measured too, and no better:
`def` workflows in threads, and `start_workflow_async` with `get_result`, which polls.) A backlog goes through a queue
without limits, which DBOS polls once a second, as it comes; its client starts them from threads.

On SQLite the file is durable in the same sense as ours (`synchronous=FULL`, SQLite's default, which DBOS leaves alone).
"""

# pyright: basic, reportMissingImports=false
# dbos is installed in the environment that runs this file, not in the one that checks it.

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from dbos import DBOS, DBOSClient, DBOSConfig

from benchmarks.peers.driving import VALUE, Execute, Load, drive, first, for_ever, late, ready, run

LANE = "bench"
THREADS = 16


@DBOS.step()
async def charge(number: int) -> dict:
    return VALUE


@DBOS.workflow(name="checkout")
async def checkout(steps: int) -> int:
    for number in range(steps):
        await charge(number)
    return steps


@DBOS.workflow(name="drained")
async def drained(number: int) -> int:
    first()
    return number


@DBOS.workflow(name="ping")
async def ping(sent: float) -> None:
    late(sent)


@DBOS.workflow(name="waits")
async def waits() -> None:
    late(await DBOS.recv_async("go", timeout_seconds=600))


def launch(url: str) -> None:
    # An id of its own: else each would take what the others run for work of its own past to be recovered.
    config = DBOSConfig(name="bench", system_database_url=url, log_level="ERROR", executor_id=f"bench-{os.getpid()}")
    DBOS(config=config)
    DBOS.launch()


def client_of(url: str) -> DBOSClient:
    return DBOSClient(system_database_url=url, system_database_pool_size=THREADS, application_name="bench")


class Dbos(Load):
    async def prepare(self, url: str) -> None:
        launch(url)
        if url.startswith("postgresql"):
            await DBOS.register_queue_async(LANE)

    @asynccontextmanager
    async def embedded(self, url: str, concurrency: int) -> AsyncIterator[Execute]:
        launch(url)
        yield checkout

    async def enqueue(self, url: str, count: int) -> float:
        client = client_of(url)
        options = {"queue_name": LANE, "workflow_name": "drained"}
        with ThreadPoolExecutor(THREADS) as threads:
            began = time.perf_counter()
            list(threads.map(lambda number: client.enqueue(options, number), range(count)))
            return time.perf_counter() - began

    def work(self, url: str, concurrency: int, number: int, workers: int) -> None:
        async def serve() -> None:
            launch(url)
            ready()
            await for_ever()

        run(serve())

    async def starts(self, url: str, count: int, gap_s: float) -> None:
        client = client_of(url)
        for _ in range(count):
            await asyncio.sleep(gap_s * random.uniform(0.5, 1.5))
            await client.enqueue_async({"queue_name": LANE, "workflow_name": "ping"}, time.time())

    async def wakes(self, url: str, count: int, gap_s: float) -> None:
        client = client_of(url)
        options = {"queue_name": LANE, "workflow_name": "waits"}
        handles = [await client.enqueue_async(options) for _ in range(count)]
        for handle in handles:
            while (await handle.get_status()).status != "PENDING":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        for handle in handles:
            await asyncio.sleep(gap_s * random.uniform(0.5, 1.5))
            await client.send_async(handle.get_workflow_id(), time.time(), "go")


if __name__ == "__main__":
    drive(Dbos())
