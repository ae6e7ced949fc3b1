"""Linear flows of ten members: how many a second with a hundred in flight, and what a hop of one alone takes.

A hop is from the start of one member to the start of the next: an end, the answer of its edge with its output, a claim.
As reference: FlowFabric publishes 17.5 flows/s on Valkey, and 48 on PostgreSQL without dependency resolution, both on
16 cores.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median

from msgspec import structs

from benchmarks.report import Report, Scene, heading
from benchmarks.settings import Settings, workplace
from benchmarks.stage import postgres_stage, valkey_stage
from outlast import App, Flow
from outlast.runtime.fastest_loop import fastest_loop

MEMBERS = 10
IN_FLIGHT = 100
BAR_FLOWS, BAR_HOP_MS = 300.0, 5.0
REFERENCE = {"valkey": 17.5, "postgres": 48.0}


def measure(settings: Settings, report: Report) -> None:
    settings = structs.replace(settings, systems=frozenset())  # nobody else here has flows
    match settings.store:
        case "postgres":
            with postgres_stage(settings) as stage, stage.own() as url:
                _measure_at(settings, report, url)
        case "valkey":
            with valkey_stage(settings, appendfsync="always") as stage, stage.own() as url:
                _measure_at(settings, report, url)
        case _:
            with workplace() as folder:
                _measure_at(settings, report, f"sqlite:///{folder}/flows.db")


def _measure_at(settings: Settings, report: Report, url: str) -> None:
    flows, alone = (200, 20) if settings.quick else (500, 50)
    heading(f"linear flows of {MEMBERS} members, {IN_FLIGHT} in flight, then one at a time")
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        per_s, hop_ms = runner.run(_measure(url, flows, alone, settings.repeats))
    for metric, samples, unit in (("flows_per_s", per_s, "flows/s"), ("hop_p50_ms", hop_ms, "ms")):
        scene = Scene(
            system="outlast",
            version=settings.version,
            store=settings.store,
            scenario="flows",
            steps=MEMBERS,
            concurrency=IN_FLIGHT if metric == "flows_per_s" else 1,
        )
        report.add(scene, metric, samples, unit)
    for store, flows_per_s in REFERENCE.items():
        print(f"  flowfabric on {store}, 16 cores, published: {flows_per_s:g} flows/s")
    report.bar(f"{median(per_s):.0f} flows/s (at least {BAR_FLOWS:g})", met=median(per_s) >= BAR_FLOWS)
    report.bar(f"{median(hop_ms):.1f} ms per hop (at most {BAR_HOP_MS:g} ms)", met=median(hop_ms) <= BAR_HOP_MS)


async def _measure(url: str, flows: int, alone: int, repeats: int) -> tuple[list[float], list[float]]:
    app = App(url)

    @app.workflow
    async def hop(number: int) -> int:
        return number

    def linear() -> Flow:
        flow = app.flow("linear")
        last = flow.add("m0", hop, 0)
        for n in range(1, MEMBERS):
            last = flow.add(f"m{n}", hop, last.output)
        return flow

    async def run() -> float:
        began_s = time.perf_counter()
        await (await linear().start()).result()
        return time.perf_counter() - began_s

    async def limited(room: asyncio.Semaphore) -> None:
        async with room:
            await run()

    per_s: list[float] = []
    hop_ms: list[float] = []
    async with app:
        await run()
        for _ in range(repeats):
            room, began_s = asyncio.Semaphore(IN_FLIGHT), time.perf_counter()
            await asyncio.gather(*(limited(room) for _ in range(flows)))
            per_s.append(flows / (time.perf_counter() - began_s))
            hop_ms.append(median([await run() for _ in range(alone)]) * 1_000 / MEMBERS)
    return per_s, hop_ms
