"""`make bench STORE=postgres`: Outlast beside DBOS, Absurd, Procrastinate, PgQueuer and Restate, and the bars."""

from __future__ import annotations

from statistics import median

from benchmarks.backlogs import measure_backlog, observe_postgres
from benchmarks.latency import measure_latency
from benchmarks.report import Report
from benchmarks.round_trips import measure_round_trips
from benchmarks.settings import Settings
from benchmarks.stage import postgres_stage
from benchmarks.throughput import PROCESSES, Turns, measure_all, measure_case, times

OF_DBOS, OF_RESTATE = {1: 3.0, 100: 60.0}, {100: 6.0}
OF_BARE = {1: 0.5, 100: 0.25}
CPU_US_PER_STEP = 100.0
IDLE_START_MS, WAKE_MS = 4.0, 5.0
OF_PROCRASTINATE, OF_PGQUEUER = 10.0, 1.0


def end_to_end(settings: Settings, report: Report) -> None:
    with postgres_stage(settings) as stage:
        cases = measure_all(settings, report, stage)
        for concurrency in (100,) if settings.quick else (1, 100):
            turns = measure_case(settings, report, stage, 10, concurrency, 1, verb="jittered")
            of_bare(report, turns, 10, concurrency, "jittered")
    for (steps, concurrency, processes), turns in cases.items():
        if processes == 1:
            of_bare(report, turns, steps, concurrency, "end to end")
            _of_peers(report, turns, steps, concurrency)
    one, four = cases[10, 100, 1]["outlast"], cases[10, 100, PROCESSES]["outlast"]
    ratio = median(more["steps_per_s"] / less["steps_per_s"] for less, more in zip(one, four, strict=True))
    report.bar(f"{PROCESSES} processes do {ratio:.2f}× the steps/s of one (at least 1×)", met=ratio >= 1)
    cpu_us = median(turn["cpu_us_per_execution"] / 10 for turn in one)
    report.bar(
        f"{cpu_us:.0f} µs of Python per step at concurrency 100 (at most {CPU_US_PER_STEP:.0f} µs)",
        met=cpu_us <= CPU_US_PER_STEP,
    )


def of_bare(
    report: Report, turns: Turns, steps: int, concurrency: int, where: str, *, share_min: float | None = None
) -> None:
    share = times(turns, "bare")
    assert share is not None
    bar = OF_BARE[concurrency] if share_min is None else share_min
    report.bar(f"{share:.0%} of bare {where}, {steps} steps at {concurrency} (at least {bar:.0%})", met=share >= bar)


def _of_peers(report: Report, turns: Turns, steps: int, concurrency: int) -> None:
    metric, what = ("steps_per_s", "steps/s") if steps else ("executions_per_s", "executions/s")
    for peer, bars in (("dbos", OF_DBOS), ("restate", OF_RESTATE)):
        ratio = times(turns, peer, metric)
        # At concurrency 100 the bar is about steps; what an execution of none does is only reported.
        if ratio is not None and concurrency in bars and (steps or concurrency == 1):
            bar = bars[concurrency]
            report.bar(
                f"{ratio:.1f}× {peer} in {what}, {steps} steps at {concurrency} (at least {bar:g}×)", met=ratio >= bar
            )
    if steps == 10 and concurrency == 1 and "restate" in turns:
        ours, its = (median(turn["p50_ms"] for turn in turns[name]) for name in ("outlast", "restate"))
        report.bar(f"ten steps in {ours:.1f} ms, beside Restate's {its:.1f} ms (less)", met=ours < its)


def backlog(settings: Settings, report: Report) -> None:
    with postgres_stage(settings) as stage:
        by_workers = {
            workers: measure_backlog(settings, report, stage, observe_postgres, workers=workers)
            for workers in (1, PROCESSES)
        }
    for workers, turns in by_workers.items():
        for peer, bar in (("pgqueuer", OF_PGQUEUER), ("procrastinate", OF_PROCRASTINATE)):
            if peer in turns:
                pairs = zip(turns["outlast"], turns[peer], strict=True)
                ratio = median(ours[1] / its[1] for ours, its in pairs)
                report.bar(
                    f"drains {ratio:.2f}× as fast as {peer}, {workers} worker(s) (at least {bar:g}×)", met=ratio >= bar
                )
    pairs = zip(by_workers[1]["outlast"], by_workers[PROCESSES]["outlast"], strict=True)
    ratio = median(four[1] / one[1] for one, four in pairs)
    report.bar(f"{PROCESSES} workers drain {ratio:.2f}× as fast as one (at least 1×)", met=ratio >= 1)


def latency(settings: Settings, report: Report) -> None:
    with postgres_stage(settings) as stage:
        starts = measure_latency(settings, report, stage, "starts")
        wakes = measure_latency(settings, report, stage, "wakes")
    for what, turns, bar in (("idle start", starts, IDLE_START_MS), ("send to resume", wakes, WAKE_MS)):
        p50_ms = median(turns["outlast"])
        report.bar(f"{what} p50 {p50_ms:.1f} ms (at most {bar:g} ms)", met=p50_ms <= bar)


def round_trips(settings: Settings, report: Report) -> None:
    with postgres_stage(settings) as stage:
        turns = measure_round_trips(settings, report, stage)
    trips = median(step for step, _ in turns["outlast"])
    report.bar(f"{trips:.2f} round trips per step of a lone execution (one)", met=trips < 1.05)
