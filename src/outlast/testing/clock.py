"""A clock that stands still until it is turned: months in milliseconds."""

from __future__ import annotations

from outlast.model.duration import Duration, to_ms


class ManualClock:
    """`store = SqliteStore(path, clock=clock)`, then `clock.advance("31s")`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, duration: Duration) -> int:
        self._now_ms += to_ms(duration)
        return self._now_ms

    def turn_back(self, duration: Duration) -> int:
        """What a bad clock does; a store must not follow it."""
        self._now_ms -= to_ms(duration)
        return self._now_ms
