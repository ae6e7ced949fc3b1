"""`make bench STORE=valkey`: Outlast beside Celery, Dramatiq, arq and taskiq, and the bars.

All of them on a server with an append-only file that is flushed every second; once more with one that is flushed
with every write, marked `always`. The peers have no steps and no durable waits, so they are compared by backlogs and
idle starts; FlowFabric, which has both, by the figures that it published (on 16 cores, printed as reference lines).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import cpu_count
from statistics import median

from benchmarks.backlogs import measure_backlog, observe_valkey
from benchmarks.latency import measure_latency
from benchmarks.postgres import of_bare
from benchmarks.report import Report, Scene
from benchmarks.round_trips import measure_round_trips
from benchmarks.settings import Settings
from benchmarks.stage import Stage, valkey_stage
from benchmarks.throughput import measure_all, measure_case

EXECUTIONS_PER_S = 4_000
OF_BEST_PEER = 2.0
IDLE_START_MS, WAKE_MS = 3.0, 4.0
FLUSHES = {"everysec": "", "always": "-always"}
"""How often the server's file is flushed, and how scenarios with it are marked."""
FLOWFABRIC_EXECUTIONS_PER_S, FLOWFABRIC_WAKE_MS = 3_036, 9.1


@contextmanager
def _stages(settings: Settings) -> Iterator[Iterator[tuple[Stage, str]]]:
    def each() -> Iterator[tuple[Stage, str]]:
        for appendfsync, note in FLUSHES.items():
            if note and settings.quick:
                continue
            with valkey_stage(settings, appendfsync=appendfsync) as stage:
                yield stage, note

    yield each()


def end_to_end(settings: Settings, report: Report) -> None:
    with _stages(settings) as stages:
        for stage, note in stages:
            cases = measure_all(settings, report, stage, note=note, steps_quick=(0, 10))
            jittered = measure_case(settings, report, stage, 10, 100, 1, verb="jittered", note=note)
            of_bare(report, jittered, 10, 100, f"jittered{note}", share_min=0.25)
            for (steps, concurrency, processes), turns in cases.items():
                if processes == 1:
                    of_bare(report, turns, steps, concurrency, f"end to end{note}", share_min=0.25)
            rate = median(turn["executions_per_s"] for turn in cases[0, 100, 1]["outlast"])
            if not note:
                report.bar(
                    f"{rate:,.0f} zero-step executions/s end to end in one process (at least {EXECUTIONS_PER_S:,})",
                    met=rate >= EXECUTIONS_PER_S,
                )
    _reference(report, settings, "end-to-end", 100, "executions_per_s", FLOWFABRIC_EXECUTIONS_PER_S, "1/s")


def backlog(settings: Settings, report: Report) -> None:
    with _stages(settings) as stages:
        for stage, note in stages:
            best: dict[str, float] = {}
            for workers in sorted({1, cpu_count() or 1}):
                turns = measure_backlog(settings, report, stage, observe_valkey, workers=workers, note=note)
                for name, rates in turns.items():
                    best[name] = max(best.get(name, 0.0), median(drained for _, drained in rates))
            ours = best.pop("outlast")
            best.pop("bare")
            if best and not note:
                peer = max(best, key=lambda name: best[name])
                ratio = ours / best[peer]
                report.bar(
                    f"drains {ratio:.2f}× as fast as {peer}, the best peer, each at its best number of workers "
                    f"(at least {OF_BEST_PEER:g}×)",
                    met=ratio >= OF_BEST_PEER,
                )


def latency(settings: Settings, report: Report) -> None:
    with _stages(settings) as stages:
        for stage, note in stages:
            starts = measure_latency(settings, report, stage, "starts", note=note)
            wakes = measure_latency(settings, report, stage, "wakes", note=note)
            for what, turns, bar in (("idle start", starts, IDLE_START_MS), ("send to resume", wakes, WAKE_MS)):
                p50_ms = median(turns["outlast"])
                if not note:
                    report.bar(f"{what} p50 {p50_ms:.1f} ms (at most {bar:g} ms)", met=p50_ms <= bar)
    _reference(report, settings, "event-wake", 1, "p50_ms", FLOWFABRIC_WAKE_MS, "ms")


def round_trips(settings: Settings, report: Report) -> None:
    with valkey_stage(settings, appendfsync="everysec") as stage:
        turns = measure_round_trips(settings, report, stage)
    trips = median(step for step, _ in turns["outlast"])
    report.bar(f"{trips:.2f} round trips per step of a lone execution (one)", met=trips < 1.05)


def _reference(
    report: Report, settings: Settings, scenario: str, concurrency: int, metric: str, value: float, unit: str
) -> None:
    """What FlowFabric says of itself, on a machine with 16 cores. Nobody measured it here."""
    scene = Scene(
        system="flowfabric, published",
        version="-",
        store=settings.store,
        scenario=scenario,
        concurrency=concurrency,
    )
    report.add(scene, metric, [value], unit)
