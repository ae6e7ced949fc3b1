"""Asking again while a store does not answer, up to a patience. For what may be asked again.

What the asking itself takes counts, too: a store has a patience of its own, and both together are not the product.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, TypeVar

from outlast.errors import StoreUnavailable

T = TypeVar("T")

TimeS: TypeAlias = Callable[[], float]
"""A clock that only measures (`Timing.time_s`); the machine's, for who has no `Timing`."""


class Pause(Protocol):
    """How to wait before a retry; `asyncio.sleep`, unless a simulation schedules."""

    async def __call__(self, delay_s: float, /) -> None: ...


async def patiently(
    ask: Callable[[], Awaitable[T]],
    *,
    patience_s: float,
    pause: Pause,
    time_s: TimeS = time.monotonic,
    first_s: float = 0.05,
    over: type[StoreUnavailable] = StoreUnavailable,
    unless: type[StoreUnavailable] | tuple[()] = (),
) -> T:
    """The answer, if there is one in time; else what was last said in its place. Pauses begin with `first_s`. Only
    `over` is waited for, and not `unless`."""
    waited_s, delay_s = 0.0, first_s
    while True:
        asked_at_s = time_s()
        try:
            return await ask()
        except unless:
            raise
        except over:
            waited_s += time_s() - asked_at_s
            if waited_s >= patience_s:
                raise
        await pause(delay_s)
        waited_s += delay_s
        delay_s = min(delay_s * 2, 1.0)
