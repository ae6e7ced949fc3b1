"""Processes that run and cancel one large flow.

`main` is called in processes of their own (`tests.forks`).
"""

from __future__ import annotations

import asyncio
import sys

from outlast import App, Status
from outlast.model.flow import FlowState
from tests.acceptance.conftest import until

WORK_S, AT_ONCE = 0.02, 5
"""Four workers take seconds for thousands of members, on the fastest machine: the cancel finds most of them waiting."""


def make_app(url: str) -> App:
    app = App(url, lease_ttl="5s")

    @app.step
    async def work() -> None:
        await asyncio.sleep(WORK_S)

    @app.workflow
    async def short(n: int) -> int:
        await work()
        return n

    return app


async def cancel(url: str, members: int) -> None:
    app = make_app(url)
    short = app.registry.newest("short")
    async with app.client():
        flow = app.flow("fleet", id="fleet")
        for n in range(members):
            flow.add(f"m{n}", short, n)
        fh = await flow.start()

        async def some_have_ended() -> bool:
            return await app.count(status=Status.SUCCEEDED) > 0

        await until(some_have_ended, "nobody runs it")
        cancelling = asyncio.create_task(fh.cancel(reason="enough"))

        async def is_stopped() -> bool:
            return (await app.opened().flows._heads("fleet"))[0].state is FlowState.STOPPED

        await until(is_stopped, "it is not stopped")
        sys.stdout.write(f"accepted {await app.opened()._engine.store.now()}\n")
        sys.stdout.flush()
        await cancelling
        await asyncio.Event().wait()


def main(what: str, url: str, *rest: str) -> None:
    """`worker`: until it is killed. `cancel MEMBERS`: starts it, lets it run a little, and cancels it."""
    if what == "worker":
        make_app(url).run_worker(concurrency=AT_ONCE)
    else:
        asyncio.run(cancel(url, int(rest[0])))
