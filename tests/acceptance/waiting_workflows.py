"""Workflows that wait, and what the world outside does meanwhile: sends, resolves, and lets time pass."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import outlast
from outlast.app import App
from outlast.machine import facts
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.runtime.engine import Engine

Script = Callable[["World", Execution], Awaitable[None]]


class World:
    """Somebody outside: tells the execution things, each once, however often it is asked to."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def send(self, name: str, value: bytes, key: str) -> None:
        await self.engine.tell("default", "it", facts.EventSent(change_id=key, name=name, value=value, dedup=key))

    async def resolve(self, name: str, value: bytes) -> None:
        await self.engine.tell("default", "it", facts.DeferredResolved(change_id=name, name=name, value=value))

    async def journal(self) -> list[JournalEntry]:
        entries = await self.engine.store.scan(JournalEntry.KIND, ("default", "it"))
        return [entry for entry in entries if isinstance(entry, JournalEntry)]


async def nothing(world: World, execution: Execution) -> None:
    pass


@dataclass(frozen=True)
class Scenario:
    build: Callable[[App, list[str]], Any]
    script: Script = nothing
    events: int = 0
    """So many are sent, and each is received once."""


# ---- sleeping -----------------------------------------------------------------------------------------------------


def two_sleeps(app: App, ledger: list[str]) -> Any:
    @app.step
    async def say(word: str) -> str:
        ledger.append(word)
        return word

    @app.workflow
    async def twice() -> list[str]:
        said = [await say("evening")]
        await outlast.sleep("1h")
        said.append(await say("midnight"))
        await outlast.sleep("1h")
        return [*said, await say("morning")]

    return twice


def two_sleeps_def(app: App, ledger: list[str]) -> Any:
    @app.step
    def say(word: str) -> str:
        ledger.append(word)
        return word

    @app.workflow
    def twice() -> list[str]:
        said = [say("evening")]
        outlast.sync.sleep("1h")
        said.append(say("midnight"))
        outlast.sync.sleep("1h")
        return [*said, say("morning")]

    return twice


def plain_asyncio(app: App, ledger: list[str]) -> Any:
    """`asyncio.sleep` and `asyncio.timeout` are durable in a workflow."""

    @app.workflow
    async def plain() -> list[Any]:
        said: list[Any] = []
        await asyncio.sleep(3_600)
        try:
            async with asyncio.timeout(3_600):
                await outlast.receive("never", int)
        except TimeoutError:
            said.append("no timeout of mine")
        done, pending = await asyncio.wait(
            [asyncio.ensure_future(outlast.receive("never", int)), asyncio.ensure_future(asyncio.sleep(60, "slept"))],
            return_when=asyncio.FIRST_COMPLETED,
        )
        said += [task.result() for task in done]
        for task in pending:
            task.cancel()
        return said

    return plain


def long_sleep(app: App, ledger: list[str]) -> Any:
    """Longer than others are kept."""

    @app.workflow
    async def sleeper() -> str:
        await outlast.sleep("40d")
        return "awake"

    return sleeper


async def others_come_and_go(world: World, execution: Execution) -> None:
    now = await world.engine.store.now()
    start = facts.Start(
        change_id=f"other {now}",
        namespace="default",
        id=f"other {now}",
        workflow="other",
        version="1",
        input=b"[]",
        input_digest="",
        lane="nobody",
        retention_ms=1_000,
    )
    await world.engine.begin(start)
    await world.engine.tell("default", start.id, facts.CancelRequested(change_id=f"end {now}"))
    await world.engine.store.purge()


# ---- receiving ----------------------------------------------------------------------------------------------------


def receive_after_sleep(app: App, ledger: list[str]) -> Any:
    @app.workflow
    async def late() -> int:
        await outlast.sleep("1h")
        return await outlast.receive("number", int)

    return late


async def send_one(world: World, execution: Execution) -> None:
    await world.send("number", b"7", "seven")


def timeout_then_event(app: App, ledger: list[str]) -> Any:
    @app.workflow
    async def impatient() -> list[Any]:
        said: list[Any] = []
        try:
            said.append(await outlast.receive("number", int, timeout="1h"))
        except TimeoutError:
            said.append("too late")
        return [*said, await outlast.receive("number", int, timeout="1d")]

    return impatient


async def send_after_the_timeout(world: World, execution: Execution) -> None:
    if any(entry.op == "receive" and entry.outcome == "failed" for entry in await world.journal()):
        await world.send("number", b"7", "seven")


def event_before_receive(app: App, ledger: list[str]) -> Any:
    @app.step
    async def work() -> str:
        ledger.append("work")
        return "worked"

    @app.workflow
    async def busy() -> list[Any]:
        done = await work()
        return [done, await outlast.receive("number", int), await work()]

    return busy


def two_receives(app: App, ledger: list[str]) -> Any:
    @app.workflow
    async def both() -> list[int]:
        first = await asyncio.gather(outlast.receive("number", int), outlast.receive("number", int))
        return [*first, await outlast.receive("number", int)]

    return both


async def send_three(world: World, execution: Execution) -> None:
    for n in range(3):
        await world.send("number", str(n).encode(), str(n))


# ---- racing and deferring -----------------------------------------------------------------------------------------


def races(app: App, ledger: list[str]) -> Any:
    """The first is won by time, the second by an event; the event of the loser stays for the next receive."""

    @app.workflow
    async def three_races() -> list[Any]:
        early = await outlast.race(outlast.receive("number", int), outlast.sleep("1h"))
        second = await outlast.race(outlast.receive("number", int), outlast.sleep("7d"))
        third = await outlast.race(outlast.receive("number", int), outlast.receive("other", int))
        left = [await outlast.receive("number", int), await outlast.receive("other", int)]
        return [early, second, third, *left]

    return three_races


async def send_to_the_races(world: World, execution: Execution) -> None:
    if any(entry.op == "sleep" and entry.outcome == "succeeded" for entry in await world.journal()):
        for n in range(3):
            await world.send("number", str(n).encode(), str(n))
        await world.send("other", b"9", "nine")


def approval(app: App, ledger: list[str]) -> Any:
    @app.workflow
    async def asks() -> list[Any]:
        answer = outlast.deferred("approval", bool, timeout="7d")
        said: list[Any] = []
        try:
            said.append(await outlast.deferred("other", int, timeout="1h"))
        except TimeoutError:
            said.append("no other")
        await outlast.race(outlast.interrupted(), outlast.sleep("1h", name="pause"))
        await outlast.sleep("1d", name="pause")
        return [*said, await answer, await answer]

    return asks


async def approve(world: World, execution: Execution) -> None:
    await world.resolve("approval", b"true")


SCENARIOS: dict[str, Scenario] = {
    "two sleeps": Scenario(two_sleeps),
    "two sleeps, def": Scenario(two_sleeps_def),
    "plain asyncio": Scenario(plain_asyncio),
    "a sleep longer than others' retention": Scenario(long_sleep, others_come_and_go),
    "receive after sleep": Scenario(receive_after_sleep, send_one, events=1),
    "timeout, then event": Scenario(timeout_then_event, send_after_the_timeout, events=1),
    "event before receive": Scenario(event_before_receive, send_one, events=1),
    "two receives of one name": Scenario(two_receives, send_three, events=3),
    "races": Scenario(races, send_to_the_races, events=4),
    "approval": Scenario(approval, approve),
}
