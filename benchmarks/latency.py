"""What an idle worker process needs to begin: from the call that starts, or sends, in another process, to user code.

Starts meet a worker that has nothing to do. Events meet executions that wait for them and are held by nobody (where the
system can let go of them); the time runs from the call of `send` to the first line of code behind the wait.
"""

from __future__ import annotations

from benchmarks.fleet import Part, System, in_turns, settle, working
from benchmarks.report import Report, Scene, heading, percentile
from benchmarks.settings import Settings
from benchmarks.stage import Stage

COUNT, COUNT_QUICK = 100, 10
GAP_S = 0.03
SETTLE_S = 1.5
REPEATS_MAX = 3
SCENARIOS = {"starts": "idle-start", "wakes": "event-wake"}
CONCURRENCY = 100


def measure_latency(
    settings: Settings, report: Report, stage: Stage, verb: str, *, note: str = ""
) -> dict[str, list[float]]:
    """The medians of each turn, in milliseconds, by system."""
    count = COUNT_QUICK if settings.quick else COUNT
    heading(f"{SCENARIOS[verb]}{note}: {count} one after another, sent by another process")

    def turn(system: System) -> list[float]:
        with stage.place(system) as url, working(system, url, workers=1, concurrency=CONCURRENCY) as [worker]:
            worker.until("ready")
            settle(SETTLE_S)
            with Part(system, verb, url, count, GAP_S) as sender:
                sender.figures()
            return [each * 1_000 for each in worker.numbers("late", count)]

    turns = in_turns(stage.systems, min(settings.repeats, REPEATS_MAX), turn, verb=verb)
    versions = {system.name: system.version for system in stage.systems}
    medians: dict[str, list[float]] = {}
    for name, its in turns.items():
        scene = Scene(system=name, version=versions[name], store=settings.store, scenario=f"{SCENARIOS[verb]}{note}")
        medians[name] = [percentile(took_ms, 50) for took_ms in its]
        report.add(scene, "p50_ms", medians[name], "ms")
        report.add(scene, "p99_ms", [percentile(took_ms, 99) for took_ms in its], "ms")
    return medians
