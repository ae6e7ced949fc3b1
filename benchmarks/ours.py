"""Outlast as a system under load, by its public surface alone: what `driving` asks of every system."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import outlast
from benchmarks.load import JITTER_S, STEP
from benchmarks.peers.driving import VALUE, Execute, Load, drive, first, late, ready
from outlast import App
from outlast.authoring.workflow import AsyncWorkflow


class Shop:
    """The app of the load: its workflows are the same for every store."""

    def __init__(self, url: str) -> None:
        self.app = app = App(url)

        @app.step(name=STEP)
        async def charge(number: int) -> dict[str, object]:
            return VALUE

        @app.step
        async def charge_slowly(number: int) -> dict[str, object]:
            await asyncio.sleep(random.random() * JITTER_S)
            return VALUE

        @app.step
        async def arrived(sent: float) -> None:
            late(sent)

        @app.workflow(name="checkout")
        async def checkout(steps: int) -> int:
            for number in range(steps):
                await charge(number)
            return steps

        @app.workflow
        async def jittered(steps: int) -> int:
            for number in range(steps):
                await charge_slowly(number)
            return steps

        @app.workflow
        async def drained(number: int) -> int:
            first()
            return number

        @app.workflow
        async def ping(sent: float) -> None:
            late(sent)

        @app.workflow
        async def waits() -> None:
            await arrived(await outlast.receive("go", float))

        self.checkout: AsyncWorkflow[[int], int] = checkout
        self.jittered: AsyncWorkflow[[int], int] = jittered
        self.drained: AsyncWorkflow[[int], int] = drained
        self.ping: AsyncWorkflow[[float], None] = ping
        self.waits: AsyncWorkflow[[], None] = waits


class Ours(Load):
    async def prepare(self, url: str) -> None:
        async with Shop(url).app.client():
            pass

    @asynccontextmanager
    async def embedded(self, url: str, concurrency: int) -> AsyncIterator[Execute]:
        shop = Shop(url)
        async with shop.app:
            yield shop.checkout

    @asynccontextmanager
    async def jittered(self, url: str, concurrency: int) -> AsyncIterator[Execute]:
        shop = Shop(url)
        async with shop.app:
            yield shop.jittered

    async def enqueue(self, url: str, count: int) -> float:
        shop = Shop(url)
        async with shop.app.client():
            began = time.perf_counter()
            await shop.app.start_many(shop.drained.bind(number) for number in range(count))
            return time.perf_counter() - began

    def work(self, url: str, concurrency: int, number: int, workers: int) -> None:
        shop = Shop(url)
        ready()  # what it takes to open counts for nothing: the first claim is on record
        shop.app.run_worker(concurrency=concurrency)

    async def starts(self, url: str, count: int, gap_s: float) -> None:
        shop = Shop(url)
        async with shop.app.client():
            for _ in range(count):
                await asyncio.sleep(gap_s * random.uniform(0.5, 1.5))
                await shop.ping.start(time.time())

    async def wakes(self, url: str, count: int, gap_s: float) -> None:
        shop = Shop(url)
        async with shop.app.client():
            handles = [await shop.waits.start() for _ in range(count)]
            for handle in handles:
                while (await handle.info()).status != "suspended":  # noqa: ASYNC110 (seen from outside, as anybody would)
                    await asyncio.sleep(0.02)
            for handle in handles:
                await asyncio.sleep(gap_s * random.uniform(0.5, 1.5))
                await handle.send("go", time.time())


if __name__ == "__main__":
    App(sys.argv[2]).new_store()  # a store's code is read when it is first named: here, before anything is timed
    drive(Ours())
