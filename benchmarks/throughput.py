"""Executions from start to result on a server: so many at a time, in one process and in four.

Each system is embedded: what starts, runs and waits is one process (Restate's server is another one, beside it). Bars
compare the systems of one turn and then take the median, because a slow minute of the machine slows them all.
"""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median

from benchmarks.closed_loop import Figures
from benchmarks.fleet import Part, System, in_turns
from benchmarks.report import Report, Scene, heading
from benchmarks.settings import Settings
from benchmarks.stage import Stage

STEPS = (0, 1, 10)
SECONDS_MAX, SECONDS_QUICK = 2.0, 0.3
REPEATS_MAX = 5
PROCESSES = 4

Turns = dict[str, list[Figures]]


def measure_all(
    settings: Settings, report: Report, stage: Stage, *, note: str = "", steps_quick: tuple[int, ...] = (10,)
) -> dict[tuple[int, int, int], Turns]:
    """Every case, by (steps, concurrency, processes)."""
    every = steps_quick if settings.quick else STEPS
    cases = [(steps, concurrency, 1) for concurrency in (1, 100) for steps in every]
    cases += [(steps, 100, PROCESSES) for steps in every]
    return {case: measure_case(settings, report, stage, *case, note=note) for case in cases}


def measure_case(
    settings: Settings,
    report: Report,
    stage: Stage,
    steps: int,
    concurrency: int,
    processes: int,
    *,
    verb: str = "carry",
    note: str = "",
) -> Turns:
    scenario = "jittered" if verb == "jittered" else "end-to-end"
    heading(f"{scenario}{note}, {steps} steps, concurrency {concurrency}, {processes} process(es)")
    seconds = min(settings.seconds, SECONDS_QUICK if settings.quick else SECONDS_MAX)

    def turn(system: System) -> Figures:
        with stage.place(system) as url, ExitStack() as stack:
            each = max(1, concurrency // processes)
            parts = [stack.enter_context(Part(system, verb, url, steps, each, seconds)) for _ in range(processes)]
            for part in parts:
                part.until("ready")
            for part in parts:
                part.tell()
            return together([part.figures() for part in parts])

    turns = in_turns(stage.systems, min(settings.repeats, REPEATS_MAX), turn, verb=verb)
    versions = {system.name: system.version for system in stage.systems}
    for name, its in turns.items():
        scene = Scene(
            system=name,
            version=versions[name],
            store=settings.store,
            scenario=f"{scenario}{note}",
            steps=steps,
            concurrency=concurrency,
            workers=processes,
        )
        add(report, scene, its)
    return turns


def together(figures: list[Figures]) -> Figures:
    """What several processes did at once: rates add up, times are those of the slowest."""
    return Figures(
        executions_per_s=sum(each["executions_per_s"] for each in figures),
        steps_per_s=sum(each["steps_per_s"] for each in figures),
        p50_ms=median(each["p50_ms"] for each in figures),
        p99_ms=max(each["p99_ms"] for each in figures),
        cpu_us_per_execution=median(each["cpu_us_per_execution"] for each in figures),
    )


def add(report: Report, scene: Scene, turns: list[Figures]) -> None:
    report.add(scene, "executions_per_s", [turn["executions_per_s"] for turn in turns], "1/s")
    if scene.steps:
        report.add(scene, "steps_per_s", [turn["steps_per_s"] for turn in turns], "steps/s")
    report.add(scene, "p50_ms", [turn["p50_ms"] for turn in turns], "ms")
    report.add(scene, "p99_ms", [turn["p99_ms"] for turn in turns], "ms")
    report.add(scene, "cpu_us_per_execution", [turn["cpu_us_per_execution"] for turn in turns], "µs")
    if scene.steps:
        report.add(scene, "cpu_us_per_step", [turn["cpu_us_per_execution"] / scene.steps for turn in turns], "µs")


def times(turns: Turns, other: str, metric: str = "executions_per_s") -> float | None:
    """How many times the other's figure ours is, turn by turn; None if the other was left out."""
    if other not in turns:
        return None
    pairs = zip(turns["outlast"], turns[other], strict=True)
    return median(ours[metric] / its[metric] for ours, its in pairs)
