"""Procrastinate on PostgreSQL: see `driving`. Without steps and results: backlog and idle starts are compared."""

# pyright: basic, reportMissingImports=false
# procrastinate is installed in the environment that runs this file, not in the one that checks it.

from __future__ import annotations

import asyncio
import random
import time

from procrastinate import App, PsycopgConnector

from benchmarks.peers.driving import Load, drive, first, late, ready, run

BATCH = 1_000


def app_of(url: str) -> App:
    app = App(connector=PsycopgConnector(conninfo=url))

    @app.task(name="drained")
    async def drained(number: int) -> int:
        first()
        return number

    @app.task(name="ping")
    async def ping(sent: float) -> None:
        late(sent)

    return app


class Procrastinate(Load):
    async def prepare(self, url: str) -> None:
        app = app_of(url)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def enqueue(self, url: str, count: int) -> float:
        app = app_of(url)
        async with app.open_async():
            began = time.perf_counter()
            for at in range(0, count, BATCH):
                rows = [{"number": number} for number in range(at, min(count, at + BATCH))]
                await app.tasks["drained"].batch_defer_async(*rows)
            return time.perf_counter() - began

    def work(self, url: str, concurrency: int, number: int, workers: int) -> None:
        async def serve() -> None:
            app = app_of(url)
            async with app.open_async():
                ready()
                await app.run_worker_async(concurrency=concurrency)

        run(serve())

    async def starts(self, url: str, count: int, gap_s: float) -> None:
        app = app_of(url)
        async with app.open_async():
            for _ in range(count):
                await asyncio.sleep(gap_s * random.uniform(0.5, 1.5))
                await app.tasks["ping"].defer_async(sent=time.time())


if __name__ == "__main__":
    drive(Procrastinate())
