"""Runs the rows of the table, each in its own rhythm, until stopped.

One item's failure is counted, backs off, and never blocks the rest: items that back off do not take the places of
others in the batch. One that stands for many, none of which could be repaired, backs off too. A cycle that fails is
counted too, and leaves its gauges as they were. Sharing between processes saves work and guards nothing: two engines
doing the same repair is harmless, because every repair is guarded.
"""

from __future__ import annotations

import asyncio
import logging

from msgspec import Struct

from outlast import limits
from outlast.model.partition import home_of
from outlast.model.record import Key, Record
from outlast.observe.metrics import ReconcilerMetrics
from outlast.reconcilers.row import Row
from outlast.reconcilers.sharing import Sharing
from outlast.runtime.engine import Engine
from outlast.runtime.patience import Pause
from outlast.store.port import Due, DueItem

_log = logging.getLogger(__name__)

JITTER = 0.1
"""So much of an interval is random: processes that started together do not stay in step."""
PARALLEL = 100
"""So many items of a cycle at a time: they share commits."""
NEXT_MIN_MS = 1
"""Before the next item is due, at the earliest: so a cycle never follows another without a pause."""
BACKOFF_MAX_CYCLES = 64
BACKOFF_MAX_ITEMS = 500


class Report(Struct, frozen=True):
    """What one cycle did. `skipped` is left to another process, backs off, or was settled meanwhile."""

    processed: int = 0
    errors: int = 0
    skipped: int = 0
    full: bool = False
    """There may be more: look again at once, if anything was done."""
    next_ms: int | None = None
    """In so many milliseconds the next item will be due, if that is known."""


class _Backoff(Struct):
    failures: int
    until_cycle: int


class Reconcilers:
    """`reconcilers = Reconcilers(engine, rows_for(config)); reconcilers.start(); … await reconcilers.stop()`."""

    def __init__(
        self,
        engine: Engine,
        rows: tuple[Row, ...],
        *,
        sharing: Sharing | None = None,
        pause: Pause | None = None,
    ) -> None:
        self._engine = engine
        self._rows = {row.name: row for row in rows}
        self._sharing = sharing
        self._pause = pause
        self._backoffs: dict[str, dict[Key, _Backoff]] = {row.name: {} for row in rows}
        self._tasks: list[asyncio.Task[None]] = []
        self.metrics = {row.name: ReconcilerMetrics() for row in rows}

    # ---- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        assert not self._tasks, "started before"
        self._tasks = [
            asyncio.create_task(self._repeat(row), name=f"outlast reconciler {row.name}")
            for row in self._rows.values()
            if row.enabled
        ]

    async def stop(self) -> None:
        """Ends at once: what is under way is guarded, and the next process finishes it."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(self, row: Row) -> None:
        if row.unhurried:
            await self._beat(row)
        while True:
            report = await self.cycle(row.name)
            if not (report.full and report.processed):
                await self._beat(row, report.next_ms)

    async def _beat(self, row: Row, next_ms: int | None = None) -> None:
        jitter = JITTER * (2 * self._engine.entropy.random() - 1)
        pause_ms = row.interval_ms * (1 + jitter)
        if next_ms is not None:
            pause_ms = min(pause_ms, max(next_ms, NEXT_MIN_MS))
        if self._pause is None:
            await self._engine.timing.beat(pause_ms / 1_000, of=row.name)
        else:
            await self._pause(pause_ms / 1_000)

    # ---- one cycle ------------------------------------------------------------------------------------------------

    async def cycle(self, name: str) -> Report:
        """One look at what is due, and its repair. Never raises: what fails is counted."""
        row = self._rows[name]
        metrics = self.metrics[name]
        began_s = self._engine.timing.time_s()
        try:
            report = await self._cycle(row, metrics)
            if self._engine.outages.under_way:
                self._engine.outages.answered()
        except Exception as error:
            if not self._engine.outages.explain(error):
                _log.exception("reconciler %s: the cycle failed", name)
            report = Report(errors=1)
        metrics.cycles += 1
        metrics.duration_s = self._engine.timing.time_s() - began_s
        metrics.processed += report.processed
        metrics.errors += report.errors
        return report

    async def _cycle(self, row: Row, metrics: ReconcilerMetrics) -> Report:
        limit = min(row.batch + len(self._backoffs[row.name]), limits.DUE_MAX)
        due = await self._look(row, limit)
        if row.due is not None and len(due.items) < limit:
            self._forget(row, {item.record.key for item in due.items})
        metrics.due = due.depth
        metrics.depth = due.depth if due.owed is None else due.owed
        metrics.sampled = True
        metrics.lag_s = max((due.now - due.items[0].due_at) / 1_000, 0.0) if due.items else 0.0
        if row.sweep is not None:
            swept = await row.sweep(self._engine, row.batch, row.filter) if due.items else 0
            return Report(swept, full=swept == row.batch)
        chosen: list[Record] = []
        for item in due.items:
            if len(chosen) < row.batch and not self._backs_off(row, item) and await self._mine(row, item, due.now):
                chosen.append(item.record)
        settled = await self._repair_all(row, chosen)
        processed, errors = settled.count(True), settled.count(None)
        return Report(
            processed,
            errors,
            len(due.items) - processed - errors,
            full=len(due.items) == limit or row.eager,
            next_ms=None if due.next_at is None else due.next_at - due.now,
        )

    async def _look(self, row: Row, limit: int) -> Due:
        if row.look is not None:
            return await row.look(self._engine, limit, row.filter)
        assert row.due is not None
        return await self._engine.store.due(row.due, limit=limit, filter=row.filter)

    async def _repair_all(self, row: Row, records: list[Record]) -> list[bool | None]:
        """For each: done, not needed any more, or (None) failed."""
        settled: list[bool | None] = []
        if row.repair_together is not None and len(records) > 1:
            done = await row.repair_together(self._engine, records)
            settled = [True for one in done if one]
            records = [record for record, one in zip(records, done, strict=True) if not one]
        for start in range(0, len(records), PARALLEL):
            some = records[start : start + PARALLEL]
            settled += await asyncio.gather(*(self._repair(row, record) for record in some))
        return settled

    async def _repair(self, row: Row, record: Record) -> bool | None:
        backoffs = self._backoffs[row.name]
        try:
            done = await self._repaired(row, record)
        except Exception as error:
            failures = self._back_off(row, record, pause_cycles=2)
            if not self._engine.outages.explain(error):
                _log.exception("reconciler %s: %s failed (%d times)", row.name, record.key, failures)
            return None
        if not done and row.repair_within is not None:
            # What is left of it may not be this process's to repair, and keeps it due.
            self._back_off(row, record, pause_cycles=1)
        elif backoffs:
            backoffs.pop(record.key, None)
        return done

    def _back_off(self, row: Row, record: Record, *, pause_cycles: int) -> int:
        """So many cycles at first, and longer each time. How often it was in vain by now."""
        backoffs = self._backoffs[row.name]
        known = backoffs.get(record.key)
        failures = known.failures + 1 if known else 1
        pause_cycles = min(pause_cycles * 2 ** (failures - 1), BACKOFF_MAX_CYCLES)
        if known is not None or len(backoffs) < BACKOFF_MAX_ITEMS:
            backoffs[record.key] = _Backoff(failures, self.metrics[row.name].cycles + pause_cycles)
        return failures

    async def _repaired(self, row: Row, record: Record) -> bool:
        if row.repair_within is not None:
            return await row.repair_within(self._engine, record, row.filter)
        assert row.repair is not None
        return await row.repair(self._engine, record)

    def _forget(self, row: Row, due: set[Key]) -> None:
        """What is not due any more was repaired by somebody else: it must not fill the places of those that fail."""
        backoffs = self._backoffs[row.name]
        for key in backoffs.keys() - due:
            del backoffs[key]

    def _backs_off(self, row: Row, item: DueItem) -> bool:
        backoffs = self._backoffs[row.name]
        backoff = backoffs.get(item.record.key) if backoffs else None
        return backoff is not None and self.metrics[row.name].cycles < backoff.until_cycle

    async def _mine(self, row: Row, item: DueItem, now: int) -> bool:
        if self._sharing is None:
            return True
        overdue_ms = now - item.due_at
        steal_after_ms = row.steal_after * row.interval_ms
        home = home_of(item.record, self._engine.store.partitions)
        return await self._sharing.owns(home, now, overdue_ms, steal_after_ms)
