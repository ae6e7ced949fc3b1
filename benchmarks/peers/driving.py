"""How a system under load is driven: `python -m benchmarks.peers.NAME_load VERB URL …`, one process per part it plays.

A system is a `Load`; what it cannot do it leaves out, and is not asked for. The process says `ready`, waits for a line
on its standard input where others have to begin with it, and prints its figures as one line of JSON. Workers go on
until they are told to stop; code of theirs that is timed prints `late SECONDS` or `first TIME`.

Standard library only: the peers import this file in environments of their own, where Outlast is not installed. All
event loops are uvloop's, where the environment has it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

from benchmarks.closed_loop import carry

VALUE: dict[str, object] = {"payment": "p-184467", "state": "captured", "amount": 1250}
"""What every step of every system answers."""
WARM = 3
"""Executions before a count of round trips: connections are open by then, statements prepared."""

Execute = Callable[[int], Awaitable[object]]
"""One execution of so many steps, from its start to its result."""


class Load:
    """One system. Times are of the wall clock, which the processes of a machine share."""

    async def prepare(self, url: str) -> None:
        """Make the schema, once per database."""

    def embedded(self, url: str, concurrency: int) -> AbstractAsyncContextManager[Execute]:
        """All in this process, or as near to it as the system comes: what starts, what runs, what waits."""
        raise NotImplementedError

    def jittered(self, url: str, concurrency: int) -> AbstractAsyncContextManager[Execute]:
        """As `embedded`, with steps that take a random time."""
        raise NotImplementedError

    async def enqueue(self, url: str, count: int) -> float:
        """Start so many that nobody works on yet, in the system's best way: the seconds that it took."""
        raise NotImplementedError

    def work(self, url: str, concurrency: int, number: int, workers: int) -> None:
        """A worker process, until it is killed: this `number` of so many `workers`. It calls `ready` once it serves."""
        raise NotImplementedError

    async def starts(self, url: str, count: int, gap_s: float) -> None:
        """Start `count` of the code that calls `late`, one every `gap_s`, with the time when it was asked for."""
        raise NotImplementedError

    async def wakes(self, url: str, count: int, gap_s: float) -> None:
        """Start `count` that wait for an event, see them waiting, then send each its event with the time."""
        raise NotImplementedError


# ---- what the load's code says ------------------------------------------------------------------------------------


def say(word: str) -> None:
    # One write: lines of several processes share the pipe.
    os.write(1, f"{word}\n".encode())


def ready() -> None:
    say("ready")


def late(sent: float) -> None:
    """Called first thing by the code that was asked for at `sent`."""
    say(f"late {time.time() - sent:.6f}")


_begun = False


def first() -> None:
    """Called by code of a backlog: when the first of them began in this process."""
    global _begun
    if not _begun:
        _begun = True
        say(f"first {time.time():.6f}")


# ---- being driven -------------------------------------------------------------------------------------------------


def drive(load: Load) -> None:
    verb, url, *rest = sys.argv[1:]
    match verb:
        case "prepare":
            _finish(run(load.prepare(url)))
        case "carry" | "jittered":
            steps, concurrency, seconds = int(rest[0]), int(rest[1]), float(rest[2])
            opened = load.jittered if verb == "jittered" else load.embedded
            _finish(run(_carry(opened(url, concurrency), steps, concurrency, seconds)))
        case "count":
            _finish(run(_count(load, url, int(rest[0]), int(rest[1]))))
        case "enqueue":
            _finish({"seconds": run(load.enqueue(url, int(rest[0])))})
        case "work":
            # Workers begin together, when all have read their code.
            say("loaded")
            sys.stdin.readline()
            load.work(url, int(rest[0]), int(rest[1]), int(rest[2]))
        case "starts":
            _finish(run(load.starts(url, int(rest[0]), float(rest[1]))))
        case "wakes":
            _finish(run(load.wakes(url, int(rest[0]), float(rest[1]))))
        case _:
            raise SystemExit(f"no such verb: {verb}")


def run(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def _finish(figures: object) -> None:
    say(json.dumps(figures))
    os._exit(0)  # threads of some peers would take seconds to end


async def _carry(opened: AbstractAsyncContextManager[Execute], steps: int, concurrency: int, seconds: float) -> object:
    async with opened as execute:
        await execute(steps)
        await _told()
        return await carry(lambda: execute(steps), steps=steps, concurrency=concurrency, seconds=seconds)


async def _count(load: Load, url: str, steps: int, count: int) -> object:
    """Executions one after another; who counts round trips looks before and after."""
    async with load.embedded(url, 1) as execute:
        for _ in range(WARM):
            await execute(steps)
        await _told()
        for _ in range(count):
            await execute(steps)
        say("done")
        await asyncio.to_thread(sys.stdin.readline)
    return None


async def _told() -> None:
    ready()
    await asyncio.to_thread(sys.stdin.readline)


async def for_ever() -> None:
    """For workers: they are ended from outside."""
    await asyncio.Event().wait()
