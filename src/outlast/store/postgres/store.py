"""The store port on PostgreSQL: checks what it is given, hands it to a connection of the pool, awaits the answer.

Every operation is one call of one function on the server, or one statement, in a transaction of its own, so that a
step of a lone execution is one round trip. Durable as the server is: with its defaults (`fsync` and
`synchronous_commit` on), a commit that was answered survives a power cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlast import limits
from outlast.errors import IdHeld, StoreClosed
from outlast.machine.changes import Changes, channel_of, started_by
from outlast.model.frame import Frame
from outlast.model.lease import Claimed, ClaimRequest, Leases, Renewed
from outlast.model.record import Key, Record
from outlast.store.checks import check_batch, check_claim, check_frames, check_lease, check_limit
from outlast.store.port import (
    EVERYTHING,
    Appended,
    Body,
    Capabilities,
    Clock,
    Committed,
    Due,
    DueKind,
    Feed,
    Filter,
    Health,
    Joined,
    Page,
    Points,
    Query,
    Transacted,
    Verdict,
)
from outlast.store.postgres import claim, commit, health, joining, reading, transacting, writing
from outlast.store.postgres.connection import PLAIN, SETTINGS, UNHURRIED, Pool
from outlast.store.postgres.doorbell import Doorbell, Listener
from outlast.store.postgres.errors import KeyHeld
from outlast.store.postgres.migrate import SCHEMA, check_schema, is_current, migrate
from outlast.store.postgres.time import StoreTime
from outlast.store.postgres.url import PARTITIONS_DEFAULT, parse_url

PROMPT_MS = 10
"""So long a commit waits for a lock that is not to wait: as long as one of ours holds it, and hardly more."""


class PostgresStore:
    """`PostgresStore("postgresql://user@host:5432/database")`."""

    def __init__(self, url: str, *, clock: Clock | None = None, points: Points | None = None) -> None:
        self._address = parse_url(url)
        self._time = StoreTime(clock)
        self._points = points
        self._partitions = self._address.partitions or PARTITIONS_DEFAULT
        self._identity = ""
        self._parts: tuple[Pool, Doorbell] | None = None
        self._transactions: Pool | None = None

    @property
    def url(self) -> str:
        return self._address.shown

    @property
    def partitions(self) -> int:
        return self._partitions

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            native_doorbell=self._address.doorbell,
            exact_order=True,
            transactions="async def",
            joins=True,
            apart=True,
        )

    # ---- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._parts is not None:
            return
        pool, wanted = self._new_pool(), self._address.partitions
        try:
            meta = await pool.call("open", lambda session: check_schema(session, wanted), writes=False)
        except BaseException:
            pool.terminate()
            raise
        self._partitions, self._identity = meta.partitions, meta.identity
        if self._parts is None:
            self._parts = pool, Doorbell(self._address, pool)
        else:
            await pool.close()  # somebody else opened it meanwhile

    async def migrate(self) -> int:
        pool = self._new_pool(UNHURRIED)
        wanted = self._address.partitions
        try:
            if self._points is None and await pool.call("migrate", lambda s: is_current(s, wanted), writes=False):
                return SCHEMA
            return await pool.call("migrate", lambda session: migrate(session, wanted), transaction=True)
        finally:
            await pool.close()

    async def close(self) -> None:
        parts, self._parts = self._parts, None
        transactions, self._transactions = self._transactions, None
        if transactions is not None:
            await transactions.close()
        if parts is not None:
            pool, bell = parts
            await bell.close()
            await pool.close()

    def _new_pool(self, settings: Mapping[str, str] = SETTINGS, *, beside: Pool | None = None) -> Pool:
        return Pool(self._address, points=self._points, on_crash=self._crashed, settings=settings, beside=beside)

    def _crashed(self, crash: BaseException) -> None:
        """A test's crash point: from here on this store is a dead process."""
        parts, self._parts = self._parts, None
        transactions, self._transactions = self._transactions, None
        if transactions is not None:
            transactions.terminate()
        if parts is not None:
            pool, bell = parts
            bell.let_go()
            pool.terminate()

    def _opened(self) -> tuple[Pool, Doorbell]:
        if self._parts is None:
            raise StoreClosed(f"the store {self.url} is not open")
        return self._parts

    # ---- writes ---------------------------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Changes]) -> Committed:
        return await self._commit(batch)

    async def commit_promptly(self, batch: Sequence[Changes]) -> Committed:
        return await self._commit(batch, wait_ms=PROMPT_MS)

    async def _commit(self, batch: Sequence[Changes], *, wait_ms: int | None = None) -> Committed:
        check_batch(batch)
        pool, bell = self._opened()
        if not batch:
            return Committed(await self.now(), [])
        ring = bell.aboard(_channels(batch[0])) if len(batch) == 1 and wait_ms is None else None
        try:
            committed = await commit.commit(pool, self._time, self._partitions, batch, ring=ring, wait_ms=wait_ms)
        except KeyHeld as held:
            raise IdHeld([execution.id for changes in batch for execution in started_by(changes)]) from held
        bell.ring(_rings(batch, committed.verdicts), rung=ring is not None and ring.rung)
        return committed

    async def transact(self, check: Changes, body: Body, *, limit_ms: int) -> Transacted:
        check_batch([check])
        pool, bell = self._opened()
        if self._transactions is None:
            self._transactions = self._new_pool(PLAIN, beside=pool)
        own = self._transactions
        done = await transacting.transact(pool, own, self._time, self._partitions, check, body, limit_ms)
        if done.verdict is not None and done.verdict.applied:
            bell.ring(_rings([check], [done.verdict]))
        return done

    async def join(self, connection: Any, changes: Changes) -> Joined:
        check_batch([changes])
        return await joining.carried(joining.starting(self._identity, self._time, changes), connection)

    def join_blocking(self, connection: Any, changes: Changes) -> Joined:
        check_batch([changes])
        return joining.carried_blocking(joining.starting(self._identity, self._time, changes), connection)

    async def claim(self, request: ClaimRequest) -> Claimed:
        check_claim(request)
        return await claim.claim(self._opened()[0], self._time, self._partitions, request)

    async def renew(self, worker: str, *, lease_ttl_ms: int) -> Renewed:
        check_lease(worker, lease_ttl_ms)
        return await claim.renew(self._opened()[0], self._time, self._partitions, worker, lease_ttl_ms)

    async def append(
        self, namespace: str, execution_id: str, *, epoch: int, change_id: str, frames: Sequence[bytes]
    ) -> Appended:
        check_frames(frames)
        pool = self._opened()[0]
        return await writing.append(
            pool, self._time, self._partitions, namespace, execution_id, epoch, change_id, frames
        )

    async def purge(
        self, *, finished_before: int | None = None, limit: int = 1_000, filter: Filter = EVERYTHING
    ) -> int:
        check_limit("purge", limit, limits.PURGE_MAX)
        return await writing.purge(self._opened()[0], self._time, finished_before, limit, filter)

    # ---- reads ----------------------------------------------------------------------------------------------------

    async def now(self) -> int:
        return await self._opened()[0].call("now", lambda s: reading.now(s, self._time), writes=False)

    async def load(self, keys: Sequence[Key]) -> list[Record | None]:
        check_limit("load", max(1, len(keys)), limits.LOAD_MAX_KEYS)
        pool = self._opened()[0]
        return await pool.call("load", lambda s: reading.load(s, self._partitions, keys), writes=False)

    async def scan(
        self, kind: str, prefix: tuple[str | int, ...], *, after: Key | None = None, limit: int = 1_000
    ) -> list[Record]:
        check_limit("scan", limit, limits.SCAN_MAX_RECORDS)
        pool = self._opened()[0]
        return await pool.call(
            "scan", lambda s: reading.scan(s, self._partitions, kind, prefix, after, limit), writes=False
        )

    async def find(self, query: Query) -> Page:
        check_limit("find", query.limit, limits.FIND_MAX)
        return await self._opened()[0].call("find", lambda s: reading.find(s, query), writes=False)

    async def count(self, query: Query) -> int:
        return await self._opened()[0].call("count", lambda s: reading.count(s, query), writes=False)

    async def due(self, kind: DueKind, *, limit: int, filter: Filter = EVERYTHING) -> Due:
        check_limit("due", limit, limits.DUE_MAX)
        pool = self._opened()[0]
        return await pool.call("due", lambda s: reading.due(s, self._time, kind, limit, filter), writes=False)

    async def held(self, worker: str, partitions: frozenset[int]) -> Leases:
        pool = self._opened()[0]
        return Leases(held=await pool.call("held", lambda s: claim.held(s, worker, partitions), writes=False))

    async def frames(self, namespace: str, execution_id: str, *, after: int = 0, limit: int = 1_000) -> list[Frame]:
        check_limit("frames", limit, limits.SCAN_MAX_RECORDS)
        pool = self._opened()[0]
        return await pool.call(
            "frames",
            lambda s: reading.frames(s, self._partitions, namespace, execution_id, after, limit),
            writes=False,
        )

    async def completions(self, *, after: str | None = None, limit: int = 1_000, filter: Filter = EVERYTHING) -> Feed:
        check_limit("completions", limit, limits.SCAN_MAX_RECORDS)
        pool = self._opened()[0]
        return await pool.call("completions", lambda s: reading.completions(s, after, limit, filter), writes=False)

    async def health(self, *, deep: bool = False) -> Health:
        pool, bell = self._opened()
        partitions, heard = self._partitions, await bell.is_heard() if self._address.doorbell else None
        return await pool.call(
            "health", lambda s: health.health(s, partitions=partitions, heard=heard, deep=deep), writes=False
        )

    # ---- doorbell -------------------------------------------------------------------------------------------------

    def ring(self, channels: frozenset[str]) -> None:
        self._opened()[1].ring(channels)

    def listen(self) -> Listener:
        return self._opened()[1].listen()


def _rings(batch: Sequence[Changes], verdicts: Sequence[Verdict]) -> set[str]:
    """Whom to tell of what was written just now."""
    return {
        channel
        for changes, verdict in zip(batch, verdicts, strict=True)
        if changes.rings and verdict.applied and not verdict.again
        for channel in _channels(changes)
    }


def _channels(changes: Changes) -> list[str]:
    return [channel_of(ring, changes.partition) for ring in changes.rings]
