"""The driver of the reconcilers, on a store that only says what is due."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outlast.errors import StoreUnavailable
from outlast.model.record import Record
from outlast.model.session import Session
from outlast.observe.metrics import RECONCILER_DEPTH, RECONCILER_DUE, RECONCILER_LAG
from outlast.observe.telemetry import Telemetry
from outlast.reconcilers import Reconcilers, Row
from outlast.reconcilers import driver as module
from outlast.runtime.engine import Engine
from outlast.runtime.outages import Outages
from outlast.runtime.timing import LoopTiming
from outlast.store.port import Due, DueItem, DueKind


class Owing:
    """A store on which so many items are due, until somebody repairs them."""

    def __init__(self) -> None:
        self.due_now: list[Record] = []
        self.away = False

    def owe(self, first: int, count: int) -> None:
        numbers = range(first, first + count)
        self.due_now = [Session(partition=0, worker=f"w{n:04}", expires_at=0, started_at=0) for n in numbers]

    async def due(self, kind: DueKind, *, limit: int, filter: Any) -> Due:
        if self.away:
            raise StoreUnavailable("away")
        return Due(1_000, [DueItem(0, record) for record in self.due_now[:limit]], len(self.due_now))


def engine_on(store: Owing) -> Engine:
    outages = Outages(Telemetry())
    return cast("Engine", SimpleNamespace(store=store, outages=outages, timing=LoopTiming()))


async def test_no_figure_is_told_that_was_never_seen():
    store = Owing()
    row = Row(name="session_expiry", what="", due=DueKind.SESSION, interval_ms=1_000, batch=4, sweep=_sweeps)
    driver = Reconcilers(engine_on(store), (row,))
    store.away = True
    store.owe(0, 3)
    await driver.cycle("session_expiry")
    told = {name: value for name, _, value in driver.metrics["session_expiry"].samples("session_expiry")}
    assert told["outlast_reconciler_errors_total"] == 1
    assert not told.keys() & {RECONCILER_DEPTH, RECONCILER_DUE, RECONCILER_LAG}, "a zero would be a guess"
    store.away = False
    await driver.cycle("session_expiry")
    told = {name: value for name, _, value in driver.metrics["session_expiry"].samples("session_expiry")}
    assert (told[RECONCILER_DEPTH], told[RECONCILER_DUE], told[RECONCILER_LAG]) == (3, 3, 1.0)


async def test_one_that_nothing_waits_for_begins_with_a_pause():
    store, told = Owing(), list[str]()

    async def pause(seconds: float) -> None:
        told.append("pause")
        if len(told) > 2:
            await asyncio.Event().wait()

    async def sweeps(engine: Engine, limit: int, filter: Any) -> int:
        told.append("look")
        return 0

    store.owe(0, 1)
    engine = engine_on(store)
    engine.entropy = cast("Any", SimpleNamespace(random=lambda: 0.5))
    for unhurried, order in ((True, ["pause", "look", "pause"]), (False, ["look", "pause", "look"])):
        told.clear()
        row = Row(name="walk", what="", due=DueKind.SESSION, interval_ms=1, batch=4, sweep=sweeps, unhurried=unhurried)
        driver = Reconcilers(engine, (row,), pause=pause)
        driver.start()
        async with asyncio.timeout(5):
            while len(told) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await driver.stop()
        assert told[:3] == order


async def _sweeps(engine: Engine, limit: int, filter: Any) -> int:
    return 0


async def test_what_somebody_else_repaired_leaves_its_place_to_those_that_fail(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "BACKOFF_MAX_ITEMS", 4)
    store, tried = Owing(), list[str]()

    async def fails(engine: Engine, record: Record) -> bool:
        tried.append(str(record.key.values[1]))
        raise RuntimeError("poison")

    row = Row(name="session_expiry", what="", due=DueKind.SESSION, interval_ms=1_000, batch=4, repair=fails)
    driver = Reconcilers(engine_on(store), (row,))
    store.owe(0, 4)
    await driver.cycle("session_expiry")  # all fail, and then another process repairs them
    store.owe(4, 4)
    await driver.cycle("session_expiry")
    await driver.cycle("session_expiry")
    assert tried == [f"w{n:04}" for n in range(8)], "those that fail now do not back off"


async def test_what_stands_for_many_and_is_left_as_it_was_does_not_keep_others_waiting():
    """What is left of it may be another's: members outside of the filter."""
    store, tried = Owing(), list[str]()

    async def others(engine: Engine, record: Record, filter: Any) -> bool:
        tried.append(str(record.key.values[1]))
        return record.key.values[1] == "w0004"

    row = Row(name="cancel_backlog", what="", due=DueKind.CANCEL, interval_ms=1_000, batch=4, repair_within=others)
    driver = Reconcilers(engine_on(store), (row,))
    store.owe(0, 5)
    for _ in range(3):
        report = await driver.cycle("cancel_backlog")
        assert report.errors == 0
    assert "w0004" in tried
    assert tried.count("w0000") == 2, "it is tried again at once, and then less often"
