"""From `send` in one process to the resumed code in another: of what stayed in memory, and of what was evicted.

The worker is a process of its own; the sender is this one. An execution records ten steps and waits. It is sent an
event when nothing else happens; its code reads the clock as soon as it has it, and gives that back. `resident` waits
with a timeout that is near, so it stays in memory; `evicted` waits for ever, so it is suspended, claimed and replayed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.peers.environment import PeerMissing, python_for, version_of
from benchmarks.report import Report, Scene, heading, percentile
from benchmarks.settings import Settings, workplace
from benchmarks.sleepers import ROOT, run_apart
from benchmarks.wakeups_worker import STEPS, build
from outlast import App
from outlast.client.handle import Handle

ROUNDS, ROUNDS_QUICK, ROUNDS_DBOS = 200, 5, 30
WARM_UP = 3
BAR_MS = 5.0
READY_S = 60.0
KINDS = {"resident": "50s", "evicted": None}


def measure(settings: Settings, report: Report) -> None:
    rounds = ROUNDS_QUICK if settings.quick else ROUNDS
    heading(f"wake-ups: send → resumed code in another process, a journal of {STEPS}, {rounds} of each in turns")
    with workplace() as folder:
        late_ms = asyncio.run(_sent(folder / "outlast.db", rounds))
    for kind, samples in late_ms.items():
        scene = _scene(settings, "outlast", settings.version, kind)
        report.add(scene, "p50_ms", _parts(samples, settings.repeats), "ms")
        report.add(scene, "p99_ms", [percentile(samples, 99)], "ms")
    p50_ms = median(late_ms["evicted"])
    report.bar(f"{p50_ms:.1f} ms from send to resumed code, evicted (at most {BAR_MS:g} ms)", met=p50_ms <= BAR_MS)
    _beside(settings, report)


def _beside(settings: Settings, report: Report) -> None:
    if settings.quick:
        print("  without DBOS (QUICK)")
        return
    try:
        python = python_for("dbos")
        with workplace() as folder:
            its = run_apart(str(python), "benchmarks.peers.dbos_wakeups", str(folder / "dbos.db"), str(ROUNDS_DBOS))
    except PeerMissing as missing:
        print(f"  without DBOS: {missing}")
        return
    scene = _scene(settings, "dbos", version_of("dbos"), "resident")
    for metric, value in its.items():
        report.add(scene, metric, [value], "ms")


def _scene(settings: Settings, system: str, version: str, kind: str) -> Scene:
    return Scene(system=system, version=version, store=settings.store, scenario=f"wake-up-{kind}", steps=STEPS)


def _parts(samples: list[float], parts: int) -> list[float]:
    """The medians of consecutive parts: their spread is the noise."""
    size = max(1, len(samples) // parts)
    return [median(samples[at : at + size]) for at in range(0, len(samples) - size + 1, size)]


async def _sent(file: Path, rounds: int) -> dict[str, list[float]]:
    app = App(f"sqlite:///{file}?synchronous=FULL")
    waits = build(app)
    late_ms: dict[str, list[float]] = {kind: [] for kind in KINDS}
    async with app.client():
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.wakeups_worker", str(file), cwd=ROOT
        )
        try:
            for turn in range(-WARM_UP, rounds):
                for kind, timeout in KINDS.items():
                    handle = await waits.start(timeout)
                    await _waiting(handle, evicted=timeout is None)
                    sent_ns = time.time_ns()
                    await handle.send("go")
                    resumed_ns = await handle.result(timeout=READY_S)
                    if turn >= 0:
                        late_ms[kind].append((resumed_ns - sent_ns) / 1_000_000)
        finally:
            worker.terminate()
            await worker.wait()
    return late_ms


async def _waiting(handle: Handle[int], *, evicted: bool) -> None:
    async with asyncio.timeout(READY_S):
        while not await _is_waiting(handle, evicted=evicted):  # noqa: ASYNC110 (nobody announces it)
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # idle


async def _is_waiting(handle: Handle[int], *, evicted: bool) -> bool:
    if evicted:
        return (await handle.info()).status == "suspended"
    return len(await handle.journal()) > STEPS  # how long it may wait is written down, too
