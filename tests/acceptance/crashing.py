"""Run a workflow, let its process die at the n-th crash point of the store, and finish it in another one.

A crash here is what a SIGKILL leaves: whatever was not committed is gone. The clock is turned past the lease instead
of waiting for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outlast.app import App
from outlast.model.journal import JournalEntry
from outlast.store.sqlite import SqliteStore
from outlast.testing import Crash, CrashPoints, ManualClock

Build = Callable[[App, list[str]], Any]
"""Registers a workflow on an app, whose steps write to the ledger, and returns it."""


class Performed(logging.Handler):
    """Hears which operations attempts perform, from their own log."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.keys: set[str] = set()
        log = logging.getLogger("outlast.runtime.performing")
        log.setLevel(logging.DEBUG)
        for other in [handler for handler in log.handlers if isinstance(handler, Performed)]:
            log.removeHandler(other)
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("performing"):
            scope, name, occurrence = record.args[0]  # type: ignore[index,misc]
            self.keys.add(f"{scope}{name}#{occurrence}")


class Process:
    """An app on a file, in this process, that can die."""

    def __init__(self, path: Path, build: Build, clock: ManualClock, points: CrashPoints | None = None) -> None:
        self.ledger: list[str] = []
        self._watch = Performed()
        self.store = SqliteStore(str(path), clock=clock, points=points)
        self.app = App(store=lambda: self.store)
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


async def recorded(path: Path, clock: ManualClock, *, failures: bool) -> set[str]:
    """The steps in the journal, as the next process finds them; with those that failed, or without."""
    kept = {"succeeded", "failed"} if failures else {"succeeded"}
    store = SqliteStore(str(path), clock=clock)
    await store.open()
    entries = await store.scan(JournalEntry.KIND, ("default", "it"))
    await store.close()
    return {
        f"{entry.scope}{entry.name}#{entry.occurrence}"
        for entry in entries
        if isinstance(entry, JournalEntry) and entry.op == "step" and entry.outcome in kept
    }


async def exists(path: Path, clock: ManualClock) -> bool:
    store = SqliteStore(str(path), clock=clock)
    await store.migrate()
    await store.open()
    found = await store.scan("execution", ("default", "it"))
    await store.close()
    return bool(found)


async def until_crash(process: Process, args: tuple[Any, ...], points: CrashPoints) -> Any | None:
    """The outcome, if it came before the crash; None if the process died."""
    running = asyncio.create_task(process.start_and_finish(args))
    crashed = asyncio.create_task(_crashed(points))
    await asyncio.wait((running, crashed), return_when=asyncio.FIRST_COMPLETED)
    crashed.cancel()
    if running.done() and not points.crashed:
        return running.result()
    await process.die()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return None


async def _crashed(points: CrashPoints) -> None:
    while not points.crashed:  # noqa: ASYNC110 (set by the store's own thread)
        await asyncio.sleep(0.001)


__all__ = ["Build", "Crash", "Process", "exists", "outcome", "recorded", "until_crash"]
