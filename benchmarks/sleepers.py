"""Tens of thousands asleep in one process: what each holds of it, how fast they wake together, how late one wakes.

Each system is a process of its own, which prints its figures. The sleepers are measured three times over: asleep for an
hour (memory, threads, open files); all due at one moment (the rate at which they wake and end, beside the rate at which
as many that do not sleep are drained); and due one after another, so that the worker is not busy (lateness).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from benchmarks.peers.environment import PeerMissing, python_for, version_of
from benchmarks.report import Report, Scene, heading
from benchmarks.settings import Settings, workplace

ROOT = Path(__file__).resolve().parent.parent
COUNT, COUNT_QUICK, COUNT_DBOS = 50_000, 300, 5_000
SPREAD, SPREAD_QUICK = 1_000, 20
BYTES_BAR = 1_024
TIMEOUT_S = 1_800
UNITS = {
    "bytes_each": "B",
    "pages_bytes_each": "B",
    "threads": "threads",
    "threads_more": "threads",
    "files_more": "files",
    "wake_per_s": "1/s",
    "drain_per_s": "1/s",
    "wake_share": "of the drain rate",
    "late_p50_ms": "ms",
    "late_p99_ms": "ms",
    "failed": "executions",
}

Figures = dict[str, float]


def measure(settings: Settings, report: Report) -> None:
    count, spread = (COUNT_QUICK, SPREAD_QUICK) if settings.quick else (COUNT, SPREAD)
    heading(f"sleepers: {count:,} asleep for an hour in one process, once each")
    with workplace() as folder:
        ours = _figures(sys.executable, "benchmarks.sleepers_load", folder / "outlast.db", count, spread)
    _add(report, settings, "outlast", settings.version, count, ours)
    each = ours["bytes_each"]
    report.bar(f"{each:,.0f} bytes of resident memory per sleeper (at most {BYTES_BAR:,})", met=each <= BYTES_BAR)
    held = (ours["threads_more"], ours["files_more"])
    report.bar(f"{held[0]:.0f} threads and {held[1]:.0f} open files more than before (none)", met=held == (0, 0))
    share = ours["wake_share"]
    report.bar(f"woken at {share:.0%} of the drain rate (at least 50%)", met=share >= 0.5)
    _beside(settings, report, spread)


def _beside(settings: Settings, report: Report, spread: int) -> None:
    if settings.quick:
        print("  without DBOS (QUICK)")
        return
    try:
        python = python_for("dbos")
        with workplace() as folder:
            its = _figures(str(python), "benchmarks.peers.dbos_sleepers", folder / "dbos.db", COUNT_DBOS, spread)
    except PeerMissing as missing:
        print(f"  without DBOS: {missing}")
        return
    _add(report, settings, "dbos", version_of("dbos"), COUNT_DBOS, its)


def _add(report: Report, settings: Settings, system: str, version: str, count: int, figures: Figures) -> None:
    scene = Scene(system=system, version=version, store=settings.store, scenario="sleepers", concurrency=count)
    for metric, unit in UNITS.items():
        if metric in figures:
            report.add(scene, metric, [figures[metric]], unit)


def _figures(python: str, module: str, file: Path, count: int, spread: int) -> Figures:
    return run_apart(python, module, str(file), str(count), str(spread))


def run_apart(python: str, module: str, *arguments: str) -> Figures:
    """The figures that a process of its own prints last."""
    ours = python == sys.executable
    environment = {key: value for key, value in os.environ.items() if ours or key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [python, "-m", module, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise PeerMissing(f"{module} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=Figures)
