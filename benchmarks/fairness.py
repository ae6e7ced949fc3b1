"""Four busy processes on one file: nobody starves, and no commit waits long."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

import uuid_utils

from benchmarks.load import STEP, STEPS
from benchmarks.real import Real
from benchmarks.report import Report, Scene, heading
from benchmarks.settings import Settings, workplace
from outlast.machine.changes import Changes, View
from outlast.machine.facts import AnyFact

PROCESSES = 4
CONCURRENCY = 25
SHARE_BAR = 0.5
WAIT_BAR_MS = 1_000


class Tally(NamedTuple):
    """What one process got done while all of them were at it."""

    changes: int
    longest_wait_ms: float


def measure(settings: Settings, report: Report) -> None:
    heading(f"fairness: {PROCESSES} processes on one file, {CONCURRENCY} executions at a time in each")
    shares: list[list[float]] = []
    longest: list[float] = []
    rates: list[float] = []
    seconds = settings.seconds * 4
    for _ in range(max(1, settings.repeats // 3)):
        with workplace() as folder:
            tallies = _compete(folder / "shared.db", seconds)
        total = sum(tally.changes for tally in tallies)
        shares.append(sorted(tally.changes / total * PROCESSES for tally in tallies))
        longest.append(max(tally.longest_wait_ms for tally in tallies))
        rates.append(total / seconds)
    scene = Scene(
        system=Real.name,
        version=settings.version,
        store=settings.store,
        scenario="fairness",
        steps=STEPS,
        concurrency=CONCURRENCY,
        workers=PROCESSES,
    )
    report.add(scene, "changes_per_s", rates, "1/s")
    smallest = report.add(scene, "smallest_share", [its[0] for its in shares], "of fair")
    report.add(scene, "largest_share", [its[-1] for its in shares], "of fair")
    report.add(scene, "longest_wait_ms", longest, "ms")
    worst_share, worst_wait = min(its[0] for its in shares), max(longest)
    report.bar(
        f"the smallest share is {smallest:.0%} of a fair one, at worst {worst_share:.0%} (at least {SHARE_BAR:.0%})",
        met=worst_share >= SHARE_BAR,
    )
    report.bar(
        f"the longest wait of any commit was {worst_wait:,.0f} ms (at most {WAIT_BAR_MS:,} ms)",
        met=worst_wait <= WAIT_BAR_MS,
    )


def _compete(path: Path, seconds: float) -> list[Tally]:
    asyncio.run(_create(path))
    spawn = multiprocessing.get_context("spawn")
    together = spawn.Barrier(PROCESSES)
    pipes = [spawn.Pipe(duplex=False) for _ in range(PROCESSES)]
    processes = [spawn.Process(target=_process, args=(path, seconds, together, answer)) for _, answer in pipes]
    for process in processes:
        process.start()
    for _, answer in pipes:
        answer.close()
    tallies = [Tally(*ask.recv()) for ask, _ in pipes]
    for process in processes:
        process.join()
    return tallies


async def _create(path: Path) -> None:
    real = Real(path)
    await real.open()
    await real.close()


def _process(path: Path, seconds: float, together: Barrier, answer: Connection) -> None:
    answer.send(asyncio.run(_busy(path, seconds, together)))


async def _busy(path: Path, seconds: float, together: Barrier) -> Tally:
    real = _Timed(path)
    await real.open()
    await asyncio.to_thread(together.wait)
    until = time.perf_counter() + seconds
    real.until = until

    async def lane() -> None:
        while time.perf_counter() < until:
            execution = await real.begin(uuid_utils.uuid7().hex)
            for occurrence in range(STEPS):
                await execution.step(STEP, occurrence)
            await execution.complete()

    await asyncio.gather(*(lane() for _ in range(CONCURRENCY)))
    await real.close()
    return Tally(real.changes, real.longest_wait_s * 1_000)


class _Timed(Real):
    """Counts what is committed before the time is up: afterwards the slower ones have the file to themselves."""

    until = 0.0
    changes = 0
    longest_wait_s = 0.0

    async def commit(self, view: View, fact: AnyFact) -> Changes:
        asked = time.perf_counter()
        answer = await super().commit(view, fact)
        answered = time.perf_counter()
        self.longest_wait_s = max(self.longest_wait_s, answered - asked)
        self.changes += answered < self.until
        return answer
