"""The store's time as a process knows it: the server's, or a test's clock; never back behind what was seen."""

from __future__ import annotations

from outlast.store.port import Clock


class StoreTime:
    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._newest = 0

    def values(self) -> dict[str, int | None]:
        """What every function that needs the time is given: a test's time, if any, and what it must not be behind."""
        return {"clock_ms": None if self._clock is None else self._clock.now_ms(), "floor_ms": self._newest}

    def saw(self, now: int) -> int:
        self._newest = max(self._newest, now)
        return self._newest
