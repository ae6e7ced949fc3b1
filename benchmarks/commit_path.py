"""The commit path beside the yardstick, in turns: at least half of what the bare disk gives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.bare import Bare
from benchmarks.load import STEPS, Sample, System, carry
from benchmarks.profiling import profiled
from benchmarks.real import Real
from benchmarks.report import Report, Scene, heading
from benchmarks.settings import Settings, workplace

BAR = 0.5
UNITS = {
    "steps_per_s": "steps/s",
    "executions_per_s": "1/s",
    "p50_ms": "ms",
    "p99_ms": "ms",
    "cpu_us_per_step": "µs",
}
CASES = ((1, False), (100, False), (1, True), (100, True))
SYSTEMS: tuple[Callable[[Path], System], ...] = (Bare, Real)


def measure(settings: Settings, report: Report) -> None:
    for concurrency, jitter in CASES:
        scenario = "jittered" if jitter else "lockstep"
        heading(f"commit path, {scenario}, concurrency {concurrency}")
        samples = _in_turns(settings, concurrency=concurrency, jitter=jitter)
        for system, its_samples in samples.items():
            scene = Scene(
                system=system,
                version=settings.version if system == Real.name else "-",
                store=settings.store,
                scenario=scenario,
                steps=STEPS,
                concurrency=concurrency,
            )
            for metric, unit in UNITS.items():
                report.add(scene, metric, [getattr(sample, metric) for sample in its_samples], unit)
        # Of each turn, and then the median: a slow minute of the machine slows both.
        ratios = [
            real.steps_per_s / bare.steps_per_s
            for bare, real in zip(samples[Bare.name], samples[Real.name], strict=True)
        ]
        report.add(scene, "steps_of_bare", ratios, "ratio")
        # Steadier than the rate when others use the machine too.
        costs = [
            real.cpu_us_per_step / bare.cpu_us_per_step
            for bare, real in zip(samples[Bare.name], samples[Real.name], strict=True)
        ]
        report.add(scene, "cpu_of_bare", costs, "ratio")
        ratio = median(ratios)
        report.bar(f"{ratio:.0%} of bare, {scenario} at {concurrency} (at least {BAR:.0%})", met=ratio >= BAR)
    if settings.profile:
        profile(settings)


def profile(settings: Settings) -> None:
    for jitter in (False, True):
        heading(f"profile of the real path, {'jittered' if jitter else 'lockstep'}, concurrency 100")
        with workplace() as folder, profiled():
            asyncio.run(_once(Real(folder / "profiled.db"), 100, jitter, settings.seconds, 0))


def _in_turns(settings: Settings, *, concurrency: int, jitter: bool) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {}
    for repeat in range(settings.repeats):
        for make in SYSTEMS:
            with workplace() as folder:
                system = make(folder / "file.db")
                sample = asyncio.run(_once(system, concurrency, jitter, settings.seconds, repeat))
            samples.setdefault(system.name, []).append(sample)
    return samples


async def _once(system: System, concurrency: int, jitter: bool, seconds: float, seed: int) -> Sample:
    await system.open()
    try:
        return await carry(system, concurrency=concurrency, jitter=jitter, seconds=seconds, seed=seed)
    finally:
        await system.close()
