"""From start to result: Outlast through its public surface, beside the yardstick and beside DBOS, in turns of one run.

Outlast is embedded (`async with app`), as DBOS is: one process that starts, runs and waits. All three write to a WAL
file with `synchronous=FULL`. A turn gives each system a new file and the same seconds; bars compare the systems of one
turn, and then take the median, because a slow minute of the machine slows them all.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.bare import Bare
from benchmarks.checkout import checkout_app, checkout_bare
from benchmarks.closed_loop import Figures, carry
from benchmarks.peers.environment import PeerMissing, python_for, version_of
from benchmarks.profiling import profiled
from benchmarks.report import Report, Scene, heading
from benchmarks.settings import Settings, workplace

ROOT = Path(__file__).resolve().parent.parent
STEPS = (0, 1, 10)
OF_DBOS = {1: 3.0, 100: 40.0}
"""How many times as many executions per second, by concurrency."""
OF_BARE = {1: 0.5, 100: 0.25}
REPEATS_MAX, REPEATS_QUICK = 5, 2
SECONDS_MAX, SECONDS_QUICK = 1.0, 0.25
DBOS_TIMEOUT_S = 120

Turn = Callable[[Path, int, int, float], Figures]
"""(folder, steps, concurrency, seconds)."""


def measure(settings: Settings, report: Report) -> None:
    heading("end to end: start to result, through the public surface")
    systems: dict[str, tuple[str, Turn]] = {
        "bare": ("-", _bare),
        "outlast": (settings.version, _outlast),
        **_peers(settings),
    }
    for concurrency in OF_BARE:
        for steps in STEPS:
            _case(settings, report, systems, steps=steps, concurrency=concurrency)
    if settings.profile:
        for steps in (0, 10):
            heading(f"profile of Outlast end to end, {steps} steps, concurrency 100")
            with workplace() as folder, profiled():
                _outlast(folder, steps, 100, settings.seconds)


def _peers(settings: Settings) -> dict[str, tuple[str, Turn]]:
    if settings.quick:
        print("  without DBOS (QUICK): `make bench` compares with it")
        return {}
    try:
        python = python_for("dbos")
        return {"dbos": (version_of("dbos"), lambda *turn: _dbos(python, *turn))}
    except PeerMissing as missing:
        print(f"  without DBOS: {missing}")
        return {}


def _case(
    settings: Settings, report: Report, systems: dict[str, tuple[str, Turn]], *, steps: int, concurrency: int
) -> None:
    heading(f"end to end, {steps} steps, concurrency {concurrency}")
    turns: dict[str, list[Figures]] = {name: [] for name in systems}
    repeats = min(settings.repeats, REPEATS_QUICK if settings.quick else REPEATS_MAX)
    seconds = min(settings.seconds, SECONDS_QUICK if settings.quick else SECONDS_MAX)
    for _ in range(repeats):
        for name, (_, turn) in systems.items():
            with workplace() as folder:
                turns[name].append(turn(folder, steps, concurrency, seconds))
    for name, (version, _) in systems.items():
        scene = Scene(
            system=name,
            version=version,
            store=settings.store,
            scenario="end-to-end",
            steps=steps,
            concurrency=concurrency,
        )
        _add(report, scene, turns[name])
    rates = {name: [figures["executions_per_s"] for figures in turns[name]] for name in turns}
    where = f"end to end, {steps} steps at {concurrency}"
    share = median(ours / its for ours, its in zip(rates["outlast"], rates["bare"], strict=True))
    bar = OF_BARE[concurrency]
    report.bar(f"{share:.0%} of bare {where} (at least {bar:.0%})", met=share >= bar)
    if "dbos" in rates:
        times = median(ours / its for ours, its in zip(rates["outlast"], rates["dbos"], strict=True))
        bar = OF_DBOS[concurrency]
        what = "executions/s and steps/s" if steps else "executions/s"
        report.bar(f"{times:.1f}× DBOS in {what} {where} (at least {bar:g}×)", met=times >= bar)


def _add(report: Report, scene: Scene, turns: list[Figures]) -> None:
    report.add(scene, "executions_per_s", [turn["executions_per_s"] for turn in turns], "1/s")
    if scene.steps:
        report.add(scene, "steps_per_s", [turn["steps_per_s"] for turn in turns], "steps/s")
    report.add(scene, "p50_ms", [turn["p50_ms"] for turn in turns], "ms")
    report.add(scene, "p99_ms", [turn["p99_ms"] for turn in turns], "ms")
    report.add(scene, "cpu_us_per_execution", [turn["cpu_us_per_execution"] for turn in turns], "µs")
    if scene.steps:
        report.add(scene, "cpu_us_per_step", [turn["cpu_us_per_execution"] / scene.steps for turn in turns], "µs")


def _bare(folder: Path, steps: int, concurrency: int, seconds: float) -> Figures:
    async def turn() -> Figures:
        bare = Bare(folder / "bare.db")
        await bare.open()
        try:
            return await carry(
                lambda: checkout_bare(bare, steps), steps=steps, concurrency=concurrency, seconds=seconds
            )
        finally:
            await bare.close()

    return asyncio.run(turn())


def _outlast(folder: Path, steps: int, concurrency: int, seconds: float) -> Figures:
    async def turn() -> Figures:
        app, checkout = checkout_app(folder / "outlast.db")
        async with app:
            return await carry(lambda: checkout(steps), steps=steps, concurrency=concurrency, seconds=seconds)

    return asyncio.run(turn())


def _dbos(python: Path, folder: Path, steps: int, concurrency: int, seconds: float) -> Figures:
    command = [str(python), "-m", "benchmarks.peers.dbos_load", str(folder / "dbos.db")]
    command += [str(steps), str(concurrency), str(seconds)]
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=DBOS_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise PeerMissing(f"dbos ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=Figures)
