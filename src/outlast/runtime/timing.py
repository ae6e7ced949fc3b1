"""The one place where waiting for time comes from, so that a test or a simulation can give its own.

Two kinds of waiting are told apart. What must happen after a while (a backoff, a timeout, a nearby wake-up) is a
timer: virtual time goes to it. What only looks again from time to time (polling, reconcilers, renewals) is a beat:
virtual time never stops for it, and gives every beat a turn whenever it has moved.

Times of day are not from here: those are the store's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self


class Timer(Protocol):
    def cancel(self) -> None: ...


class Limit(Protocol):
    """`async with timing.limit(seconds) as limit:` raises `TimeoutError` past its time; without one, never."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None: ...

    def expired(self) -> bool: ...

    def restart(self, delay_s: float) -> None:
        """Count from now on."""
        ...


class Timing(Protocol):
    def time_s(self) -> float:
        """A clock that only measures: what lies between two of its times."""
        ...

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Timer: ...

    def ask_later(self, delay_s: float, callback: Callable[..., object]) -> Timer:
        """When to ask the store for its time, which alone decides: whoever moves virtual time asks by himself."""
        ...

    async def sleep(self, delay_s: float, /) -> None: ...

    def limit(self, delay_s: float | None) -> Limit: ...

    async def beat(self, delay_s: float, /, *, unless: asyncio.Event | None = None, of: str = "") -> None:
        """Until it is time to look again, or until the event is set. `of` says who looks."""
        ...


class LoopTiming:
    """The real one: the timers of the event loop in which it was made. Code of a workflow runs in another one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def time_s(self) -> float:
        return self._loop.time()

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Timer:
        return self._loop.call_later(delay_s, callback, *args)

    def ask_later(self, delay_s: float, callback: Callable[..., object]) -> Timer:
        return self._loop.call_later(delay_s, callback)

    async def sleep(self, delay_s: float, /) -> None:
        await asyncio.sleep(delay_s)

    def limit(self, delay_s: float | None) -> Limit:
        return _LoopLimit(delay_s)

    async def beat(self, delay_s: float, /, *, unless: asyncio.Event | None = None, of: str = "") -> None:
        if unless is None:
            await asyncio.sleep(delay_s)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(unless.wait(), delay_s)


class _LoopLimit:
    def __init__(self, delay_s: float | None) -> None:
        self._timeout = asyncio.timeout(delay_s)

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._timeout.__aexit__(kind, error, traceback)

    def expired(self) -> bool:
        return self._timeout.expired()

    def restart(self, delay_s: float) -> None:
        with suppress(RuntimeError):  # it is over
            self._timeout.reschedule(asyncio.get_running_loop().time() + delay_s)
