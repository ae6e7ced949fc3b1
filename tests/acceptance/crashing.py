"""Run a workflow, let its process die at the n-th crash point of the store, and finish it in another one.

A crash here is what a SIGKILL leaves: whatever was not committed is gone. The clock is turned past the lease instead
of waiting for it, once a server has done what the dead process had asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from outlast.app import App, store_for
from outlast.machine import facts
from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.model.status import Reason, Status
from outlast.runtime.engine import Engine
from outlast.testing import Crash, CrashPoints, ManualClock
from tests import postgres
from tests.acceptance.waiting_workflows import Script, World
from tests.conformance.valkey_harness import the_server

Build = Callable[[App, list[str]], Any]
"""Registers a workflow on an app, whose steps write to the ledger, and returns it."""


async def fresh(store: str, folder: Path, name: object) -> str:
    """The URL of an empty store of that kind. What an earlier one left is gone, or out of the way."""
    match store:
        case "postgres":
            return await postgres.empty()
        case "valkey":
            server = the_server("crashes")
            server.ask("FLUSHALL", "SYNC")
            return f"{server.url}?prefix={folder.name}-{name}"
        case _:
            return f"sqlite:///{folder}/{name}.db"


class Performed(logging.Handler):
    """Hears which operations attempts perform, from their own log."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.keys: set[str] = set()
        log = logging.getLogger("outlast.runtime.attempts.performing")
        log.setLevel(logging.DEBUG)
        for other in [handler for handler in log.handlers if isinstance(handler, Performed)]:
            log.removeHandler(other)
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("performing"):
            scope, name, occurrence = record.args[0]  # type: ignore[index,misc]
            self.keys.add(f"{scope}{name}#{occurrence}")


class Outside:
    """The world outside of the processes under test: it follows a script, and lets time pass when all sleep."""

    def __init__(self, url: str, clock: ManualClock, script: Script) -> None:
        self._url, self._clock, self._script = url, clock, script
        self._acts: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._acts = asyncio.create_task(self._act())

    async def __aexit__(self, *exc: object) -> None:
        assert self._acts is not None
        self._acts.cancel()
        with suppress(asyncio.CancelledError):
            await self._acts

    async def _act(self) -> None:
        store = store_for(self._url, clock=self._clock)
        await store.migrate()
        await store.open()
        engine = Engine(store)
        try:
            while True:
                execution = await engine.look("default", "it")
                if execution is not None and not execution.status.terminal:
                    await self._script(World(engine), execution)
                    # As it was before: if the script woke it, no time passes.
                    if await engine.look("default", "it") == execution:
                        await self._pass_time(engine, execution)
                await asyncio.sleep(0.003)
        finally:
            await engine.close()
            await store.close()

    async def _pass_time(self, engine: Engine, execution: Execution) -> None:
        if execution.status is Status.SUSPENDED and isinstance(execution.wake_at, int):
            self._clock.advance(max(0, execution.wake_at - self._clock.now_ms()) / 1_000)
            wake = facts.Wake(change_id=engine.entropy.new_id(), cause=Reason.TIMER)
            await engine.tell("default", "it", wake, seen=execution)


class Process:
    """An app on a store, in this process, that can die."""

    def __init__(self, url: str, build: Build, clock: ManualClock, points: CrashPoints | None = None) -> None:
        self.ledger: list[str] = []
        self._watch = Performed()
        self.store = store_for(url, clock=clock, points=points)
        self.app = App(store=lambda: self.store, resident=0)
        self.workflow = build(self.app, self.ledger)

    async def start_and_finish(self, args: tuple[Any, ...]) -> Any:
        async with self.app:
            handle = await self.workflow.options(id="it").start(*args)
            return await outcome(handle)

    async def take_over(self, clock: ManualClock) -> Any:
        """What another process does: the lease runs out, the work is found, and goes on."""
        async with self.app:
            handle = self.workflow.execution("it")
            clock.advance("11s")
            assert self.app._opened is not None
            assert self.app._opened.reconcilers is not None
            await self.app._opened.reconcilers.cycle("lease_expiry")
            assert self.app._opened.worker is not None
            self.app._opened.worker.kick()
            return await outcome(handle)

    def performed(self) -> set[str]:
        """The steps that this process performed."""
        return self._watch.keys

    async def die(self) -> None:
        opened, self.app._opened = self.app._opened, None
        if opened is not None:
            await opened.abandon()
        await self.store.close()


async def outcome(handle: Any) -> Any:
    """The result, or what was raised, in a form that can be compared."""
    try:
        return await handle.result(timeout=20)
    except Exception as error:
        return (type(error).__name__, str(error).partition("\n")[0])


async def recorded(url: str, clock: ManualClock, *, failures: bool) -> set[str]:
    """The steps in the journal, as the next process finds them; with those that failed, or without."""
    kept = {"succeeded", "failed"} if failures else {"succeeded"}
    store = store_for(url, clock=clock)
    await store.open()
    entries = await store.scan(JournalEntry.KIND, ("default", "it"))
    await store.close()
    return {
        f"{entry.scope}{entry.name}#{entry.occurrence}"
        for entry in entries
        if isinstance(entry, JournalEntry) and entry.op == "step" and entry.outcome in kept
    }


async def received(url: str, clock: ManualClock) -> tuple[int, int]:
    """How many events were received, and how many are left."""
    store = store_for(url, clock=clock)
    await store.open()
    events = await store.scan(Event.KIND, ("default", "it"))
    await store.close()
    consumed = [event.consumed for event in events if isinstance(event, Event)]
    return consumed.count(True), consumed.count(False)


async def exists(url: str, clock: ManualClock) -> bool:
    """Whether it began. What a dead process had asked for is done by then: a claim that a server comes to after the
    clock was turned holds for a lease from then on, and a clock that stands does not get there."""
    if url.startswith("postgresql:"):
        await postgres.alone(url)
    store = store_for(url, clock=clock)
    await store.migrate()
    await store.open()
    found = await store.scan("execution", ("default", "it"))
    await store.close()
    return bool(found)


class CrashHeard(CrashPoints):
    """Crash points of a loop's store: the loop hears of the crash, also if it is in a thread of the store."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def _do(self, name: str, what: str) -> None:
        try:
            super()._do(name, what)
        finally:
            self._loop.call_soon_threadsafe(self.heard.set)


async def until_crash(process: Process, args: tuple[Any, ...], points: CrashHeard) -> Any | None:
    """The outcome, if it came before the crash; None if the process died."""
    running = asyncio.create_task(process.start_and_finish(args))
    crashed = asyncio.create_task(points.heard.wait())
    await asyncio.wait((running, crashed), return_when=asyncio.FIRST_COMPLETED)
    crashed.cancel()
    if running.done() and not points.crashed:
        return running.result()
    await process.die()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return None


__all__ = [
    "Build",
    "Crash",
    "CrashHeard",
    "Outside",
    "Process",
    "exists",
    "fresh",
    "outcome",
    "received",
    "recorded",
    "until_crash",
]
