"""Virtual time: what waits for it waits until the harness moves the clock, which takes no time at all."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Container
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from outlast.errors import InvalidInput
from outlast.model.duration import Duration, to_ms

Mover = Callable[[int], Awaitable[None]]
"""Moves the world to a time in milliseconds, and runs all that falls due on the way."""


class VirtualClock:
    """The time of a harness: `await h.clock.advance("90d")` runs all that falls due meanwhile, in order."""

    def __init__(self, start_ms: int) -> None:
        self._now_ms = start_ms
        self._mover: Mover | None = None

    def now_ms(self) -> int:
        return self._now_ms

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self._now_ms / 1_000, UTC)

    async def advance(self, duration: Duration) -> datetime:
        """Let so much time pass."""
        return await self._move(self._now_ms + to_ms(duration))

    async def advance_to(self, moment: datetime) -> datetime:
        """Let time pass until then; a moment that is over is refused."""
        to = moment_ms("advance_to", moment)
        if to < self._now_ms:
            raise InvalidInput(f"{moment} is over: it is {self.now}, and time does not go back")
        return await self._move(to)

    async def _move(self, to_ms: int) -> datetime:
        assert self._mover is not None, "the harness is not open"
        await self._mover(to_ms)
        return self.now

    def moved_by(self, mover: Mover) -> None:
        self._mover = mover

    def set_ms(self, now_ms: int) -> None:
        """For the harness: only the hand of the clock, nothing is run."""
        assert now_ms >= self._now_ms, "time does not go back"
        self._now_ms = now_ms


def moment_ms(what: str, moment: object) -> int:
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise InvalidInput(f"{what} needs an aware datetime (with a time zone), not {moment!r}")
    return int(moment.timestamp() * 1_000)


class VirtualTimer:
    __slots__ = ("args", "callback", "cancelled", "due_ms")

    def __init__(self, due_ms: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.due_ms, self.callback, self.args = due_ms, callback, args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualTiming:
    """The timers and beats of everything in a harness. It only keeps them; the harness fires them."""

    def __init__(self, clock: VirtualClock, activity: asyncio.Event) -> None:
        self._clock = clock
        self._activity = activity
        self._timers: list[tuple[float, int, VirtualTimer]] = []
        self._numbers = itertools.count()
        self._beats: dict[asyncio.Event, tuple[bool, str]] = {}
        self.asleep: set[asyncio.Task[Any] | None] = set()
        """The tasks that wait for time and for nothing else."""

    # ---- what the engine asks for ---------------------------------------------------------------------------------

    def time_s(self) -> float:
        return self._clock.now_ms() / 1_000

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> VirtualTimer:
        timer = VirtualTimer(self._clock.now_ms() + max(0.0, delay_s) * 1_000, callback, args)
        heapq.heappush(self._timers, (timer.due_ms, next(self._numbers), timer))
        return timer

    def ask_later(self, delay_s: float, callback: Callable[..., object]) -> VirtualTimer:
        """Never: the harness knows the wake times, and has each process ask when it has moved the clock."""
        return VirtualTimer(0.0, callback, ())

    async def sleep(self, delay_s: float, /) -> None:
        woken = asyncio.Event()
        timer = self.call_later(delay_s, woken.set)
        task = asyncio.current_task()
        self.asleep.add(task)
        self._activity.set()  # what ran waits now
        try:
            await woken.wait()
        finally:
            self.asleep.discard(task)
            timer.cancel()

    def limit(self, delay_s: float | None) -> VirtualLimit:
        return VirtualLimit(self, delay_s)

    async def beat(self, delay_s: float, /, *, unless: asyncio.Event | None = None, of: str = "") -> None:
        if unless is not None and unless.is_set():
            return
        turn = asyncio.Event()
        self._beats[turn] = (unless is not None, of)
        heard = None if unless is None else asyncio.ensure_future(unless.wait())
        if heard is not None:
            heard.add_done_callback(lambda _: turn.set())
        try:
            await turn.wait()
        finally:
            del self._beats[turn]
            if heard is not None:
                heard.cancel()

    # ---- what the harness does ------------------------------------------------------------------------------------

    def next_ms(self) -> int | None:
        """When the next timer is due."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return -int(-self._timers[0][0] // 1) if self._timers else None

    def fire_timers(self) -> int:
        """Those that are due, in order."""
        fired = 0
        while (due_ms := self.next_ms()) is not None and due_ms <= self._clock.now_ms():
            timer = heapq.heappop(self._timers)[2]
            timer.callback(*timer.args)
            fired += 1
        return fired

    def fire_expectant(self) -> None:
        """Those that somebody could have ended sooner (`unless`), because somebody rang."""
        for turn, (expects, _) in list(self._beats.items()):
            if expects:
                turn.set()

    def fire_beats(self, of: Container[str] | None = None) -> None:
        """The others, because time has passed: those of some, or all."""
        for turn, (expects, whose) in list(self._beats.items()):
            if not expects and (of is None or whose in of):
                turn.set()


class VirtualLimit:
    """As `asyncio.timeout`, by the virtual clock."""

    def __init__(self, timing: VirtualTiming, delay_s: float | None) -> None:
        self._timing = timing
        self._delay_s = delay_s
        self._timeout = asyncio.timeout(None)
        self._timer: VirtualTimer | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        if self._delay_s is not None:
            self.restart(self._delay_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if self._timer is not None:
            self._timer.cancel()
        return await self._timeout.__aexit__(kind, error, traceback)

    def expired(self) -> bool:
        return self._timeout.expired()

    def restart(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timing.call_later(delay_s, self._over)

    def _over(self) -> None:
        with suppress(RuntimeError):  # its block has ended
            self._timeout.reschedule(asyncio.get_running_loop().time())
