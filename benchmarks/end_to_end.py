"""From start to result: Outlast through its public surface, beside the yardstick and beside DBOS, in turns of one run.

Outlast is embedded (`async with app`), as DBOS is: one process that starts, runs and waits, under uvloop, all of them.
All write with `synchronous=FULL`; Outlast and the yardstick to a WAL file. DBOS is measured twice. `dbos` is DBOS as it
comes: it asks for no WAL file, so SQLite keeps a rollback journal; the bars are against this one. `dbos-wal` is given a
file that somebody made a WAL file by hand; it is two to three times as fast then, and its ratio is printed too, without
a bar. A turn gives each system a new file and the same seconds; bars compare the systems of one turn, and then take the
median, because a slow minute of the machine slows them all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

import apsw

from benchmarks.bare import Bare
from benchmarks.checkout import checkout_app, checkout_bare
from benchmarks.closed_loop import Figures, carry
from benchmarks.fleet import Part, System, peer
from benchmarks.peers.driving import run
from benchmarks.profiling import profiled
from benchmarks.report import Report, Scene, heading
from benchmarks.settings import Settings, workplace

STEPS = (0, 1, 10)
OF_DBOS = {1: 3.0, 100: 40.0}
"""How many times as many executions per second, by concurrency."""
OF_BARE = {1: 0.5, 100: 0.25}
REPEATS_MAX, REPEATS_QUICK = 5, 2
SECONDS_MAX, SECONDS_QUICK = 1.0, 0.25

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
    if not settings.wants("dbos"):
        print("  without DBOS: `make bench`, or --peers=dbos, compares with it")
        return {}
    dbos = peer("dbos", ("carry",))
    if dbos is None:
        return {}
    return {
        "dbos": (dbos.version, lambda *turn: _dbos(dbos, *turn, wal=False)),
        "dbos-wal": (dbos.version, lambda *turn: _dbos(dbos, *turn, wal=True)),
    }


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
        times = median(ours / its for ours, its in zip(rates["outlast"], rates["dbos-wal"], strict=True))
        print(f"          {times:.1f}× DBOS on a WAL file made by hand (no bar)", flush=True)


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

    return run(turn())


def _outlast(folder: Path, steps: int, concurrency: int, seconds: float) -> Figures:
    async def turn() -> Figures:
        app, checkout = checkout_app(folder / "outlast.db")
        async with app:
            return await carry(lambda: checkout(steps), steps=steps, concurrency=concurrency, seconds=seconds)

    return run(turn())


def _dbos(dbos: System, folder: Path, steps: int, concurrency: int, seconds: float, *, wal: bool) -> Figures:
    path = folder / "dbos.db"
    if wal:
        file = apsw.Connection(str(path))
        file.execute("PRAGMA journal_mode = WAL; CREATE TABLE made_by_hand (nothing); DROP TABLE made_by_hand")
        file.close()
    with Part(dbos, "carry", f"sqlite:///{path}", steps, concurrency, seconds) as part:
        part.until("ready")
        part.tell()
        figures: Figures = part.figures()
    file = apsw.Connection(str(path))
    [(mode,)] = file.execute("PRAGMA journal_mode")
    file.close()
    assert mode == ("wal" if wal else "delete"), f"DBOS left a file in mode {mode}"
    return figures
