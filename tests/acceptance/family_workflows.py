"""Workflows with children, words to others and new generations, that must come through a crash at any point."""

from __future__ import annotations

import asyncio
from typing import Any

import outlast
from outlast.app import App


class Refused(Exception):
    pass


def _effect(app: App, ledger: list[str]) -> Any:
    @app.step
    async def effect(name: str) -> str:
        ledger.append(name)
        return name

    return effect


def called(app: App, ledger: list[str]) -> Any:
    """One after the other, with steps between them; one fails and is caught."""
    effect = _effect(app, ledger)

    @app.workflow
    async def ship(order: str) -> str:
        if order == "bad":
            raise Refused(await effect("refuse"))
        return await effect(f"ship {order}")

    @app.workflow
    async def checkout() -> list[str]:
        done = [await ship("a"), await effect("between")]
        try:
            await ship("bad")
        except Refused as error:
            done.append(f"caught {error}")
        return [*done, await ship("b")]

    return checkout


def gathered(app: App, ledger: list[str]) -> Any:
    effect = _effect(app, ledger)

    @app.workflow
    async def ship(number: int) -> int:
        await effect(f"ship {number}")
        return number * 10

    @app.workflow
    async def checkout() -> list[Any]:
        return await asyncio.gather(*(ship(number) for number in range(3)), effect("beside"))

    return checkout


def held(app: App, ledger: list[str]) -> Any:
    """Started and held, told things, awaited twice; another one is told by both."""
    effect = _effect(app, ledger)

    @app.workflow
    async def counter(wanted: int) -> int:
        return sum([await outlast.receive("n", int) for _ in range(wanted)])

    @app.workflow
    async def adds(number: int) -> str:
        await counter.execution("total").send("n", number)
        approved = await outlast.deferred("approval", bool)
        return await effect(f"added {number} {approved}")

    @app.workflow
    async def parent() -> list[Any]:
        total = await counter.options(id="total", detached=True, parent_close="cancel").start(4)
        children = [await adds.options(id=f"adds-{number}").start(number) for number in (1, 2)]
        await total.send("n", 10)
        for child in children:
            await child.resolve("approval", True)
        await counter.options(id="total", detached=True, send={"n": 100}).start(4)
        return [
            await children[0].result(),
            await children[0].result(),
            await children[1].result(),
            await total.result(),
        ]

    return parent


def loser(app: App, ledger: list[str]) -> Any:
    """The loser of a race is a child: it is cancelled. Another one is left behind, and closed at the end."""
    effect = _effect(app, ledger)

    @app.workflow
    async def never() -> None:
        await outlast.receive("never")

    @app.workflow
    async def quick() -> str:
        return await effect("quick")

    @app.workflow
    async def parent() -> Any:
        await never.options(id="left").start()
        return await outlast.race(never.options(id="loser")(), quick.options(id="winner")())

    return parent


def waited(app: App, ledger: list[str]) -> Any:
    """The parent returns before its child does, and waits; its other child is abandoned, and goes on."""
    effect = _effect(app, ledger)

    @app.workflow
    async def slow() -> str:
        await effect("one")
        return await effect("two")

    @app.workflow
    async def parent() -> str:
        await slow.options(id="slow", parent_close="wait").start()
        await slow.options(id="left", parent_close="abandon").start()
        return await effect("returned")

    return parent


def plain(app: App, ledger: list[str]) -> Any:
    """A def workflow with a def child and words to it."""

    @app.step
    def parse(line: str) -> int:
        ledger.append(line)
        return int(line)

    @app.workflow
    def child() -> int:
        return parse(outlast.sync.receive("line", str))

    @app.workflow
    def parent() -> list[int]:
        handle = child.options(id="child").sync.start()
        handle.send("line", "7")
        return [handle.result(), child.options(id="other", send={"line": "8"}).sync()]

    return parent


def loop(app: App, ledger: list[str]) -> Any:
    """Four generations, each with a step, a child, and an event that the one before it sent."""
    effect = _effect(app, ledger)

    @app.workflow
    async def double(number: int) -> int:
        return number * 2

    @app.workflow
    async def turn(total: int = 0, left: int = 4) -> int:
        me = app.execution("it")
        if left == 4:
            await me.send("n", 1)
        total += await double(await outlast.receive("n", int))
        await effect(f"turn {left}")
        if left == 1:
            return total
        await me.send("n", 10 ** (5 - left))
        return outlast.continue_as_new(total, left - 1)

    return turn


FAMILIES = {
    "called": called,
    "gathered": gathered,
    "held": held,
    "loser": loser,
    "waited": waited,
    "plain": plain,
    "loop": loop,
}
