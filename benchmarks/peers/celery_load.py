"""Celery on Valkey: see `driving`. Without steps; a backlog and idle starts are compared.

A worker is `celery worker` with its default pool, a process per core. Tasks are acknowledged when they are done
(`acks_late`), as all others do here, and keep no result: nobody asks for it.
"""

# pyright: basic, reportMissingImports=false
# celery is installed in the environment that runs this file, not in the one that checks it.

from __future__ import annotations

import asyncio
import os
import random
import time

from celery import Celery
from celery.signals import worker_ready

from benchmarks.peers.driving import Load, drive, first, late, ready


def app_of(url: str) -> Celery:
    app = Celery("bench", broker=url)
    app.conf.update(task_acks_late=True, task_ignore_result=True, broker_connection_retry_on_startup=True)

    @app.task(name="drained")
    def drained(number: int) -> int:
        first()
        return number

    @app.task(name="ping")
    def ping(sent: float) -> None:
        late(sent)

    return app


class Celeried(Load):
    async def enqueue(self, url: str, count: int) -> float:
        app = app_of(url)
        with app.producer_pool.acquire(block=True) as producer:
            began = time.perf_counter()
            for number in range(count):
                app.tasks["drained"].apply_async((number,), producer=producer)
            return time.perf_counter() - began

    def work(self, url: str, concurrency: int, number: int, workers: int) -> None:
        app = app_of(url)
        worker_ready.connect(lambda **_: ready(), weak=False)
        options = ["--loglevel=ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        os.environ["C_FORCE_ROOT"] = "yes"
        app.worker_main(["worker", f"--hostname=bench{number}", *options])

    async def starts(self, url: str, count: int, gap_s: float) -> None:
        app = app_of(url)
        for _ in range(count):
            await asyncio.sleep(gap_s * random.uniform(0.5, 1.5))
            app.tasks["ping"].apply_async((time.time(),))


if __name__ == "__main__":
    drive(Celeried())
