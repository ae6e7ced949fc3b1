"""The wake times that attempts of this process wait for in memory: one timer of the event loop for all of them.

Time is the store's. The loop's own timer only says when to ask; what is due by the store's clock fires. A clock that a
test turns is noticed by `look`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

from outlast.errors import OutlastError
from outlast.runtime.timing import Timer, Timing

_log = logging.getLogger(__name__)

SLACK_S = 0.001
"""Asked at the very millisecond, the store may be one behind."""
AGAIN_S = 1.0
"""If the store does not answer."""
ASK_MAX_S = 3_600.0
CANCELLED_MAX = 100
"""So many alarms that nobody waits for are kept, or as many as the others are: whoever sleeps for months leaves one."""


class StoreClock(Protocol):
    @property
    def now(self) -> int:
        """The store's time as last heard."""
        ...

    async def time(self) -> int:
        """The store's time, asked now."""
        ...


class Alarm:
    """One wake time. `cancel()` it when nobody waits any more."""

    __slots__ = ("fire", "timers", "wake_at")

    def __init__(self, timers: Timers, wake_at: int, fire: Callable[[], object]) -> None:
        self.timers = timers
        self.wake_at = wake_at
        self.fire: Callable[[], object] | None = fire

    def cancel(self) -> None:
        if self.fire is not None:
            self.fire = None
            self.timers.cancelled()


class Timers:
    def __init__(self, clock: StoreClock, timing: Timing) -> None:
        self._clock = clock
        self._timing = timing
        self._loop = asyncio.get_running_loop()  # the real one: timers are also set from within workflow code
        self._heap: list[tuple[int, int, Alarm]] = []
        self._cancelled = 0
        """How many of the heap nobody waits for."""
        self._numbers = count()
        self._timer: Timer | None = None
        self._asks_at_s = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._closed = False

    def at(self, wake_at: int, fire: Callable[[], object], *, now: int) -> Alarm:
        """Call `fire` when the store's clock has reached `wake_at`; `now` is its time as last heard."""
        alarm = Alarm(self, wake_at, fire)
        heappush(self._heap, (wake_at, next(self._numbers), alarm))
        delay_s = max(0, wake_at - now) / 1_000
        # Compared by the loop's time: the timer that is set may have been set by a store's time long past.
        time_s = self._timing.time_s()
        if self._asking is None and (self._timer is None or time_s + delay_s < self._asks_at_s):
            self._arm_in(delay_s + SLACK_S if delay_s else 0.0)
        return alarm

    def cancelled(self) -> None:
        """One more of them: they are swept out together, when they are most of the heap."""
        self._cancelled += 1
        if self._cancelled > max(CANCELLED_MAX, len(self._heap) // 2):
            self._heap[:] = [entry for entry in self._heap if entry[2].fire is not None]
            heapify(self._heap)
            self._cancelled = 0

    def _arm(self, now: int) -> None:
        next_at = self.next_at
        if next_at is not None:
            self._arm_in(max(0, next_at - now) / 1_000 + SLACK_S)

    def _arm_in(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._closed:
            self._asks_at_s = self._timing.time_s() + min(delay_s, ASK_MAX_S)
            self._timer = self._timing.ask_later(min(delay_s, ASK_MAX_S), self._ask)

    def _ask(self) -> None:
        self._timer = None
        heard = self._clock.now
        if self._heap and self._heap[0][0] <= heard:  # due by the store's own word: it need not be asked
            self._fire(heard)
            if self._timer is None:
                self._arm(heard)
        elif self._asking is None and not self._closed:
            self._asking = self._loop.create_task(self._fire_due(), name="outlast timers")

    async def _fire_due(self) -> None:
        try:
            now = await self._clock.time()
        except OutlastError as error:
            _log.warning("the store's time could not be asked for, and is asked again: %s", error)
            self._asking = None
            self._arm_in(AGAIN_S)
            return
        self._asking = None
        self._fire(now)
        self._arm(now)

    @property
    def next_at(self) -> int | None:
        """The first wake time of all."""
        while self._heap and self._heap[0][2].fire is None:
            heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    async def look(self) -> None:
        """Ask now: the clock may have been turned."""
        self._fire(await self._clock.time())

    def _fire(self, now: int) -> None:
        while (next_at := self.next_at) is not None and next_at <= now:
            alarm = heappop(self._heap)[2]
            fire, alarm.fire = alarm.fire, None
            assert fire is not None  # `next_at` has dropped those that nobody waits for
            fire()

    async def close(self) -> None:
        self._closed = True
        self._heap.clear()
        self._cancelled = 0
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
