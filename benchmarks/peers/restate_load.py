"""Restate: see `driving`. Its server is a process of its own with its own log; its URL here is `INGRESS,ADMIN`.

The service runs under Hypercorn, as its documentation shows it, and is called over HTTP by the process that it is in.
It is not given a backlog: what is sent to a service must be served at once.
"""

# pyright: basic, reportMissingImports=false
# restate is installed in the environment that runs this file, not in the one that checks it.

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import aiohttp
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from benchmarks.peers.driving import VALUE, Execute, Load, drive, for_ever, late, ready, run


async def charge() -> dict:
    return VALUE


def services(name: str) -> list:
    service, workflow = restate.Service(name), restate.Workflow(f"{name}Waits", inactivity_timeout=timedelta(seconds=1))

    @service.handler()
    async def checkout(ctx: restate.Context, steps: int) -> int:
        for _ in range(steps):
            await ctx.run_typed("charge", charge)
        return steps

    @service.handler()
    async def ping(ctx: restate.Context, sent: float) -> None:
        late(sent)

    @workflow.main()
    async def waits(ctx: restate.WorkflowContext) -> None:
        late(await ctx.promise("go", type_hint=float).value())

    @workflow.handler()
    async def go(ctx: restate.WorkflowSharedContext, sent: float) -> None:
        await ctx.promise("go", type_hint=float).resolve(sent)

    return [service, workflow]


@asynccontextmanager
async def served(url: str, name: str) -> AsyncIterator[str]:
    """The services are known to the server: the address of the ingress."""
    ingress, admin = url.split(",")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.accesslog = config.errorlog = None
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(restate.app(services(name)), config, shutdown_trigger=stop.wait))
    await asyncio.sleep(0.3)
    async with aiohttp.ClientSession() as session:
        answer = await session.post(f"{admin}/deployments", json={"uri": f"http://127.0.0.1:{port}"})
        assert answer.status in (200, 201), await answer.text()
    yield ingress
    stop.set()
    serving.cancel()


class Restate(Load):
    @asynccontextmanager
    async def embedded(self, url: str, concurrency: int) -> AsyncIterator[Execute]:
        # A name of its own: two deployments of one service would be an upgrade.
        name = f"Bench{os.getpid()}{uuid.uuid4().hex[:6]}"
        connector = aiohttp.TCPConnector(limit=concurrency)
        async with served(url, name) as ingress, aiohttp.ClientSession(connector=connector) as session:

            async def execute(steps: int) -> object:
                async with session.post(f"{ingress}/{name}/checkout", json=steps) as answer:
                    assert answer.status == 200, await answer.text()
                    return await answer.json()

            yield execute

    def work(self, url: str, concurrency: int, number: int, workers: int) -> None:
        async def serve_latency() -> None:
            async with served(url, "Latency"):
                ready()
                await for_ever()

        run(serve_latency())

    async def starts(self, url: str, count: int, gap_s: float) -> None:
        ingress = url.split(",")[0]
        async with aiohttp.ClientSession() as session:
            for _ in range(count):
                await asyncio.sleep(gap_s * random.uniform(0.5, 1.5))
                async with session.post(f"{ingress}/Latency/ping/send", json=time.time()) as answer:
                    assert answer.status in (200, 202), await answer.text()

    async def wakes(self, url: str, count: int, gap_s: float) -> None:
        ingress = url.split(",")[0]
        async with aiohttp.ClientSession() as session:
            ids = [uuid.uuid4().hex for _ in range(count)]
            for workflow in ids:
                target = f"{ingress}/LatencyWaits/{workflow}/waits/send"
                async with session.post(target, skip_auto_headers=("Content-Type",)) as answer:
                    assert answer.status in (200, 202), await answer.text()
            await asyncio.sleep(3)  # by then they are suspended: see the workflow's inactivity timeout
            for workflow in ids:
                await asyncio.sleep(gap_s * random.uniform(0.5, 1.5))
                async with session.post(f"{ingress}/LatencyWaits/{workflow}/go", json=time.time()) as answer:
                    assert answer.status == 200, await answer.text()


if __name__ == "__main__":
    drive(Restate())
