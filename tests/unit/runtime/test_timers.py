"""Many alarms, one timer: what nobody waits for is not kept, and what somebody waits for fires in order."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from outlast.runtime.engine import Engine
from outlast.runtime.local_holder import LocalHolder
from outlast.runtime.timers import CANCELLED_MAX, Alarm, Timers
from outlast.store.sqlite import SqliteStore
from outlast.testing import ManualClock

MONTH_MS = 30 * 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def timers(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Timers]:
    store = SqliteStore(str(tmp_path / "outlast.db"), clock=clock)
    await store.migrate()
    await store.open()
    engine = Engine(store)
    timers = Timers(LocalHolder(engine), engine.timing)
    yield timers
    await timers.close()
    await engine.close()
    await store.close()


async def test_alarms_that_nobody_waits_for_are_not_kept_until_their_time(timers: Timers, clock: ManualClock):
    """Whoever sleeps for a month is written down and leaves: it holds nothing of this process."""
    now = clock.now_ms()
    for number in range(20 * CANCELLED_MAX):
        timers.at(now + MONTH_MS + number, list, now=now).cancel()
    gc.collect()
    assert sum(type(one) is Alarm for one in gc.get_objects()) <= CANCELLED_MAX + 1


async def test_what_is_waited_for_fires_in_order_however_many_were_cancelled(timers: Timers, clock: ManualClock):
    now, fired = clock.now_ms(), list[int]()
    alarms = [
        timers.at(now + number * 7_919 % 10_007, lambda number=number: fired.append(number), now=now)
        for number in range(10 * CANCELLED_MAX)
    ]
    kept = range(0, len(alarms), 10)
    for number, alarm in enumerate(alarms):
        if number not in kept:
            alarm.cancel()
            alarm.cancel()  # again: that is counted once
    clock.advance(timedelta(seconds=5))
    await timers.look()
    early = sorted((number for number in kept if number * 7_919 % 10_007 <= 5_000), key=lambda n: n * 7_919 % 10_007)
    assert fired == early
    assert timers.next_at == now + min(n * 7_919 % 10_007 for n in kept if n not in early)
    clock.advance(timedelta(seconds=6))
    await timers.look()
    assert fired == sorted(kept, key=lambda n: n * 7_919 % 10_007)
    assert timers.next_at is None
