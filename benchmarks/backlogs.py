"""A backlog on a server: enqueued while nobody works, then drained by worker processes.

The drain lasts from the first claim, by the system's own record of it (where it keeps none: from the first code of a
user that runs), to the moment when an observer sees that nothing is left undone or unacknowledged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from benchmarks.fleet import Part, System, ask, in_turns, working
from benchmarks.peers.environment import PeerMissing
from benchmarks.report import Report, Scene, heading
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from outlast.store.valkey.connection import Address, Login, connect
from outlast.store.valkey.url import PARTITIONS

COUNT, COUNT_QUICK = 5_000, 500
CONCURRENCY = 100
REPEATS_MAX = 3
PATIENCE_S, LOOK_S, SAID_S = 300.0, 0.005, 5.0

Rates = tuple[float, float]
"""(enqueued, drained) per second."""

# Asked every few milliseconds while workers work: so each asks what an index of its system answers, where it has one.
POSTGRES_DONE = {
    "bare": "SELECT NOT EXISTS (SELECT FROM execution WHERE finished_at IS NULL)",
    "outlast": (
        "SELECT NOT EXISTS (SELECT FROM outlast.execution WHERE ready_at IS NOT NULL) "
        "AND NOT EXISTS (SELECT FROM outlast.execution WHERE worker IS NOT NULL)"
    ),
    "dbos": "SELECT NOT EXISTS (SELECT FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING'))",
    "absurd": "SELECT NOT EXISTS (SELECT FROM absurd.t_default WHERE state <> 'completed')",
    "procrastinate": "SELECT NOT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
    "pgqueuer": "SELECT NOT EXISTS (SELECT FROM pgqueuer)",
}
POSTGRES_FIRST = {
    "outlast": "SELECT min(started_at) / 1000.0 FROM outlast.attempt",
    "dbos": "SELECT min(started_at_epoch_ms) / 1000.0 FROM dbos.workflow_status",
    "absurd": "SELECT extract(epoch FROM min(started_at)) FROM absurd.r_default",
    "procrastinate": "SELECT extract(epoch FROM min(at)) FROM procrastinate_events WHERE type = 'started'",
    "pgqueuer": "SELECT extract(epoch FROM min(created)) FROM pgqueuer_log WHERE status = 'picked'",
}

OUTLAST_OPEN = [f"{{outlast:{n}}}:groups:{index}" for n in range(PARTITIONS) for index in ("ready", "held")]
"""Keys that exist only while something waits for a worker, or is held by one."""

Observe = Callable[[System, str], Coroutine[Any, Any, tuple[float, float | None]]]
"""The time when nothing was left, and when the first was claimed, if that is on record."""


async def observe_postgres(system: System, url: str) -> tuple[float, float | None]:
    connection: Any = await asyncpg.connect(url)
    try:
        await until_true(system, lambda: connection.fetchval(POSTGRES_DONE[system.name]))
        ended = time.time()
        query = POSTGRES_FIRST.get(system.name)
        began = await connection.fetchval(query) if query else None
        return ended, None if began is None else float(began)
    finally:
        await connection.close()


async def observe_valkey(system: System, url: str) -> tuple[float, float | None]:
    parts = urlsplit(url)
    connection = await connect(Address(host=parts.hostname or "", port=parts.port or 6379), Login())

    async def asked(*command: str | int) -> Any:
        [answer] = await connection.send([command])
        return answer

    async def nothing_left() -> bool:
        match system.name:
            case "bare":
                return await asked("LLEN", "begun") == await asked("LLEN", "completion")
            case "outlast":
                return not await asked("EXISTS", *OUTLAST_OPEN)
            case "celery":
                return not await asked("EXISTS", "celery", "unacked")
            case "dramatiq":
                return not await asked("EXISTS", "dramatiq:default", "dramatiq:default.msgs")
            case "arq":
                return not await asked("EXISTS", "arq:queue")
            case _:
                [group] = await asked("XINFO", "GROUPS", "taskiq")
                found = dict(zip(group[::2], group[1::2], strict=True))
                return found[b"pending"] == 0 and found[b"lag"] == 0

    try:
        await until_true(system, nothing_left)
        return time.time(), None
    finally:
        await connection.close()


async def until_true(system: System, look: Callable[[], Awaitable[Any]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await look():
        if time.monotonic() > deadline:
            raise PeerMissing(f"{system.name} had not drained its backlog after {PATIENCE_S:.0f} s")
        await asyncio.sleep(LOOK_S)


def first_of(parts: list[Part]) -> float:
    """When the first user code ran, in any of the workers: one that came too late has nothing to say."""
    deadline = time.monotonic() + SAID_S
    while not (found := [said for part in parts if (said := part.number("first")) is not None]):
        if time.monotonic() > deadline:
            raise PeerMissing("no worker said when it began")
        time.sleep(LOOK_S)
    return min(found)


def measure_backlog(
    settings: Settings, report: Report, stage: Stage, observe: Observe, *, workers: int, note: str = ""
) -> dict[str, list[Rates]]:
    count = COUNT_QUICK if settings.quick else COUNT
    heading(f"backlog{note}: {count:,} enqueued, then drained by {workers} worker process(es)")

    def turn(system: System) -> Rates:
        with stage.place(system) as url:
            enqueued_s = ask(system, "enqueue", url, count)["seconds"]
            with working(system, url, workers=workers, concurrency=CONCURRENCY) as parts:
                ended, began = asyncio.run(observe(system, url))
                if began is None:
                    began = first_of(parts)
            return count / enqueued_s, count / (ended - began)

    turns = in_turns(stage.systems, min(settings.repeats, REPEATS_MAX), turn, verb="enqueue")
    versions = {system.name: system.version for system in stage.systems}
    for name, rates in turns.items():
        scene = Scene(
            system=name,
            version=versions[name],
            store=settings.store,
            scenario=f"backlog{note}",
            concurrency=CONCURRENCY,
            workers=workers,
        )
        report.add(scene, "enqueue_per_s", [enqueued for enqueued, _ in rates], "1/s")
        report.add(scene, "drain_per_s", [drained for _, drained in rates], "1/s")
    return turns
