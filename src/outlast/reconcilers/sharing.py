"""Who repairs which partition: by rendezvous hashing over live sessions. Advice only; correctness never depends on it.

A process takes what is another's when it is overdue: the owner may be slow, filtered, or only seem alive.
"""

from __future__ import annotations

from outlast.model.partition import rendezvous
from outlast.model.record import settled
from outlast.model.session import Session
from outlast.store.port import Store

REFRESH_MS = 2_000
STEAL_AFTER_INTERVALS = 3


class Sharing:
    """`identity` is this process's worker name, the one that its sessions carry."""

    def __init__(self, store: Store, identity: str) -> None:
        self._store = store
        self._identity = identity
        self._owners: dict[int, str | None] = {}
        self._seen_at: dict[int, int] = {}

    async def owns(self, partition: int, now: int, overdue_ms: int, steal_after_ms: int) -> bool:
        if overdue_ms > steal_after_ms:
            return True
        if now - self._seen_at.get(partition, -REFRESH_MS) >= REFRESH_MS:
            self._owners[partition] = rendezvous(partition, await self._live(partition, now))
            self._seen_at[partition] = now
        owner = self._owners[partition]
        return owner is None or owner == self._identity

    async def _live(self, partition: int, now: int) -> list[str]:
        sessions = await self._store.scan(Session.KIND, (partition,))
        return [
            session.worker
            for session in sessions
            if isinstance(session, Session) and (settled(session.expires_at) or 0) > now
        ]
