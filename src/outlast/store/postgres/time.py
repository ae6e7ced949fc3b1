"""The store's time as a process knows it: the server's, or a test's clock; never back behind what was seen."""

from __future__ import annotations

from outlast.store.port import Clock


class StoreTime:
    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._newest = 0
        self._lives_until: dict[str, int] = {}

    def values(self) -> dict[str, int | None]:
        """What every function that needs the time is given: a test's time, if any, and what it must not be behind."""
        return {"clock_ms": None if self._clock is None else self._clock.now_ms(), "floor_ms": self._newest}

    def saw(self, now: int) -> int:
        self._newest = max(self._newest, now)
        return self._newest

    def renewed(self, worker: str, expires_at: int) -> None:
        """The worker's sessions were renewed from this process."""
        self._lives_until[worker] = expires_at

    def lives(self, worker: str, lease_ttl_ms: int) -> bool:
        """Whether its sessions have more than half of their time left, as far as this process knows."""
        clock_ms = 0 if self._clock is None else self._clock.now_ms()
        return self._lives_until.get(worker, 0) - max(self._newest, clock_ms) > lease_ttl_ms // 2
