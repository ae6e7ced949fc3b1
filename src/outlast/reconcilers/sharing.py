"""Who repairs which partition: by rendezvous hashing over live sessions. Advice only; correctness never depends on it.

A process takes what is another's when it is overdue: the owner may be slow, filtered, or only seem alive.
"""

from __future__ import annotations

from outlast.model.partition import rendezvous
from outlast.model.record import Key, settled
from outlast.model.session import Session
from outlast.store.port import Store

REFRESH_MS = 2_000
STEAL_AFTER_INTERVALS = 3
PAGE = 1_000


class Sharing:
    """`identity` is this process's worker name, the one that its sessions carry."""

    def __init__(self, store: Store, identity: str) -> None:
        self._store = store
        self._identity = identity
        self._live: list[str] = []
        self._seen_at = -REFRESH_MS

    async def owns(self, partition: int, now: int, overdue_ms: int, interval_ms: int) -> bool:
        if overdue_ms > STEAL_AFTER_INTERVALS * interval_ms:
            return True
        if now - self._seen_at >= REFRESH_MS:
            self._live, self._seen_at = await self._look(now), now
        owner = rendezvous(partition, self._live)
        return owner is None or owner == self._identity

    async def _look(self, now: int) -> list[str]:
        """Every live worker, in whatever partitions its sessions are: a worker may repair where it holds nothing."""
        live: set[str] = set()
        after: Key | None = None
        while page := await self._store.scan(Session.KIND, (), after=after, limit=PAGE):
            for session in page:
                if isinstance(session, Session) and (settled(session.expires_at) or 0) > now:
                    live.add(session.worker)
            if len(page) < PAGE:
                break
            after = page[-1].key
        return sorted(live)
