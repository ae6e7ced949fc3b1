"""A process of its own that runs a flow, until a SIGKILL at the n-th reply of its store to a commit.

`main` is called in a process of its own (`tests.forks`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from outlast import App
from outlast.app import store_for
from outlast.testing import CrashPoints

OUTPUTS = {"a": 1, "b": 2, "c": 3, "d": 6, "e": 7}
UPSTREAMS = {"a": 0, "b": 1, "c": 2, "d": 3, "e": 1}


def register(app: App) -> None:
    @app.workflow
    async def number(x: int) -> int:
        return x

    @app.workflow
    async def total(xs: list[int]) -> int:
        return sum(xs)


def build(app: App, *, again: bool = False) -> Any:
    if not again:
        register(app)
    number, total = app.registry.newest("number"), app.registry.newest("total")
    flow = app.flow("killed", id="killed")
    a = flow.add("a", number, 1)
    b = flow.add("b", total, [a.output, 1])
    c = flow.add("c", total, [a.output, b.output])
    d = flow.add("d", total, [a.output, b.output, c.output])
    flow.add("e", total, [d.output, 1])
    return flow


async def run(url: str, nth: int) -> None:
    points = CrashPoints()
    points.kill_at("commit:reply", nth=nth)
    app = App(url, store=lambda: store_for(url, points=points), lease_ttl="1s")
    flow = build(app)
    async with app:
        await (await flow.start()).result("30s")


def main(url: str, nth: str) -> None:
    asyncio.run(run(url, int(nth)))
