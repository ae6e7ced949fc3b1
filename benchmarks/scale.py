"""Claim and due on a file with a long history beside one with hardly any: the same within a factor.

Both files are asked in turns. What a claim took is completed and replaced by as many new executions before the next
one, so both always hold the same number of ready executions, and every claim meets rows that it has not seen. Claims
are measured twice: as they are, and without waiting for the disk (`synchronous=NORMAL`), where a slower search has
nothing to hide behind.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from statistics import median

import uuid_utils

from benchmarks.history import DUE, built
from benchmarks.load import LANE, NAMESPACE, OUTPUT, VERSION, WORKER, WORKFLOW
from benchmarks.real import NOTHING, Real, start
from benchmarks.report import Report, Scene, heading
from benchmarks.settings import Settings, workplace
from outlast.machine import facts
from outlast.machine.changes import Changes, View
from outlast.machine.decide import decide
from outlast.model.lease import ClaimedExecution, ClaimRequest
from outlast.store.port import DueKind
from outlast.store.sqlite import SqliteStore

BAR = 1.5
CLAIM_LIMIT = 10
READY_FEW = 1_000
WARM_UP = 20
KINDS = (
    *(DueKind.LEASE, DueKind.TIMEOUT, DueKind.DEADLINE, DueKind.TIMER, DueKind.OUTBOX, DueKind.RETENTION),
    DueKind.SESSION,
)
"""Those of executions; the files have no flows."""


def measure(settings: Settings, report: Report) -> None:
    label = f"{settings.finished:,} finished and {settings.ready:,} ready executions"
    note = " (QUICK: a small one; the bar is meant for 1,000,000 and 100,000)" if settings.quick else ""
    heading(f"scale: {label} beside none and {READY_FEW:,}{note}")
    few, many = built(0, READY_FEW), built(settings.finished, settings.ready)
    with workplace() as folder:
        # Copies: the files in the cache stay as they were built.
        shutil.copy(few, folder / "few.db")
        shutil.copy(many, folder / "many.db")
        timings = asyncio.run(_in_turns(folder / "few.db", folder / "many.db", settings.rounds))
    for name, (few_ms, many_ms) in timings.items():
        for size, samples in (("few", few_ms), ("many", many_ms)):
            scene = Scene(
                system=Real.name,
                version=settings.version,
                store=settings.store,
                scenario=f"{name}-{size if size == 'few' else settings.finished}",
            )
            report.add(scene, "p50_ms", medians(samples, settings.repeats), "ms")
        ratio = median(many_ms) / median(few_ms)
        report.bar(f"{name}: {ratio:.2f}× of an empty file (at most {BAR}×)", met=ratio <= BAR)


def claim_request() -> ClaimRequest:
    return ClaimRequest(
        namespace=NAMESPACE,
        lanes=(LANE,),
        serves=frozenset({(WORKFLOW, VERSION)}),
        worker=WORKER,
        claim_id=new_id(),
        limit=CLAIM_LIMIT,
        lease_ttl_ms=60_000,
    )


def medians(samples: list[float], parts: int) -> list[float]:
    """The medians of consecutive parts of a run: their spread is the noise."""
    size = max(1, len(samples) // parts)
    return [median(samples[at : at + size]) for at in range(0, len(samples) - size + 1, size)]


async def _in_turns(few: Path, many: Path, rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    timings: dict[str, tuple[list[float], list[float]]] = {}
    for name, synchronous in (("claim", "FULL"), ("claim-unsynced", "NORMAL")):
        pair = [_Asked(path, synchronous) for path in (few, many)]
        timings[name] = ([], [])
        for asked in pair:
            await asked.open()
        for round_ in range(-WARM_UP, rounds):
            for asked, samples in zip(pair, timings[name], strict=True):
                took_ms = await asked.claim()
                if round_ >= 0:
                    samples.append(took_ms)
        if synchronous == "FULL":
            for kind in KINDS:
                timings[f"due-{kind}"] = ([], [])
                for round_ in range(-WARM_UP, rounds):
                    for asked, samples in zip(pair, timings[f"due-{kind}"], strict=True):
                        took_ms = await asked.due(kind)
                        if round_ >= 0:
                            samples.append(took_ms)
        for asked in pair:
            await asked.close()
    return timings


class _Asked:
    """One file, and the time of its answers."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self._store = SqliteStore(f"sqlite:///{path}?synchronous={synchronous}")

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def claim(self) -> float:
        request = claim_request()
        asked = time.perf_counter()
        claimed = await self._store.claim(request)
        took_ms = (time.perf_counter() - asked) * 1_000
        assert len(claimed.executions) == CLAIM_LIMIT
        await self._roll(claimed.executions, claimed.now)
        return took_ms

    async def _roll(self, claimed: list[ClaimedExecution], now: int) -> None:
        ends = [
            decide(View(0, each.execution), facts.Complete(change_id=new_id(), epoch=1, output=OUTPUT), now)
            for each in claimed
        ]
        starts = [decide(NOTHING, start(new_id(), new_id()), now) for _ in claimed]
        batch = [answer for answer in (*ends, *starts) if isinstance(answer, Changes)]
        committed = await self._store.commit(batch)
        assert sum(verdict.applied for verdict in committed.verdicts) == 2 * CLAIM_LIMIT

    async def due(self, kind: DueKind) -> float:
        asked = time.perf_counter()
        due = await self._store.due(kind, limit=2 * DUE)
        took_ms = (time.perf_counter() - asked) * 1_000
        assert len(due.items) == DUE, (kind, len(due.items))
        return took_ms


def new_id() -> str:
    return uuid_utils.uuid7().hex
