"""Dramatiq on Valkey: see `driving`. Without steps; a backlog and idle starts are compared.

A worker process has eight threads, its default. (Its command line starts such a process per core.)
"""

# pyright: basic, reportMissingImports=false
# dramatiq is installed in the environment that runs this file, not in the one that checks it.

from __future__ import annotations

import asyncio
import random
import threading
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.driving import Load, drive, first, late, ready


class Actors:
    def __init__(self, url: str) -> None:
        self.broker = RedisBroker(url=url)
        dramatiq.set_broker(self.broker)

        @dramatiq.actor(actor_name="drained")
        def drained(number: int) -> None:
            first()

        @dramatiq.actor(actor_name="ping")
        def ping(sent: float) -> None:
            late(sent)

        self.drained, self.ping = drained, ping


class Dramatiq(Load):
    async def enqueue(self, url: str, count: int) -> float:
        actors = Actors(url)
        began = time.perf_counter()
        for number in range(count):
            actors.drained.send(number)
        return time.perf_counter() - began

    def work(self, url: str, concurrency: int, number: int, workers: int) -> None:
        worker = dramatiq.Worker(Actors(url).broker)
        worker.start()
        ready()
        threading.Event().wait()

    async def starts(self, url: str, count: int, gap_s: float) -> None:
        actors = Actors(url)
        for _ in range(count):
            await asyncio.sleep(gap_s * random.uniform(0.5, 1.5))
            actors.ping.send(time.time())


if __name__ == "__main__":
    drive(Dramatiq())
