"""A store and the oracle side by side: every operation goes to both, and their answers must agree.

`compare` then holds their whole states against each other. What the port leaves open is compared as far as it says and
no further: ties in an order, opaque cursors, the numbers of sequenced records (only their order counts).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from outlast.machine.changes import Changes
from outlast.machine.invariants import check
from outlast.model.completion import Completion
from outlast.model.execution import Execution
from outlast.model.kinds import KINDS
from outlast.model.lease import Claimed, ClaimRequest, Held, Leases, Renewed
from outlast.model.record import Key, Record
from outlast.model.session import session_key
from outlast.store.port import EVERYTHING, OWED, Appended, Due, DueKind, Feed, Filter, Query, Store, Verdict
from outlast.testing.clock import ManualClock
from outlast.testing.oracle import Oracle

STATE_MAX = 10_000
FOREVER_MS = 2**62


class Disagreement(AssertionError):
    """The store did what the contract does not say."""


class Position(Struct, frozen=True):
    """How far a feed has been read: its cursor, and what that means to the oracle (a number per partition). It goes on
    with the filter that it was read with: a store may have passed by what that left out."""

    cursor: str | None = None
    covered: dict[int, int] = msgspec.field(default_factory=dict[int, int])
    filter: Filter | None = None


class Pair:
    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.oracle = Oracle(partitions=store.partitions, exact_order=store.capabilities.exact_order)
        self.time = 0
        """The newest time that the store was seen at: it never goes back, whatever the clock does."""
        self.written = 0
        """The newest time at which something was written: a new process must not be behind it."""
        self.asked = 0
        """The newest time at which something was to be written: a new process may know of it, if nothing came of it."""

    # ---- writes ---------------------------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Changes]) -> list[Verdict]:
        now = self._write_time()
        committed = await self.store.commit(batch)
        _same("the time of a commit", committed.now, now)
        for changes, found, allowed in zip(batch, committed.verdicts, self._expected(batch, now), strict=True):
            if (told := _bare_verdict(found)) not in allowed:
                _same(f"the verdict on {changes}", told, allowed[0])
        if any(verdict.applied and not verdict.again for verdict in committed.verdicts):
            self.written = now
        return committed.verdicts

    def _expected(self, batch: Sequence[Changes], now: int) -> list[list[Verdict]]:
        """By change: what may be said of it. A refusal shows the record as it is when it is explained, which may be
        after the rest of the batch."""
        allowed: list[list[Verdict]] = []
        for changes in batch:
            verdict = self.oracle.commit([changes], now)[0]
            for earlier, said in zip(batch, allowed, strict=False):
                said.append(_bare_verdict(self.oracle.looked_at(earlier, said[0])))
            allowed.append([_bare_verdict(verdict)])
        return allowed

    async def claim(self, request: ClaimRequest) -> Claimed:
        now = self._write_time()
        claimed = await self.store.claim(request)
        _same("the time of a claim", claimed.now, now)
        taken = [item.execution for item in claimed.executions]
        before = self.oracle.claimed_before(request)
        if before:
            _same("what the same claim took before", _by_key(taken), _by_key(before))
        else:
            self._adopt(request, taken, now)
        for item in claimed.executions:
            _same(f"the input of {item.execution.id}", item.input, self.oracle.input_of(item.execution))
        await self._renewed(request.worker, request.lease_ttl_ms, now, {self._home(e) for e in taken})
        return claimed

    def _adopt(self, request: ClaimRequest, taken: list[Execution], now: int) -> None:
        """One after the other: each must be allowed next, by what the claim has taken so far."""
        for number, found in enumerate(taken):
            allowed = {e.key for e in self.oracle.claimable(request, taken[:number])}
            if found.key not in allowed:
                raise Disagreement(f"{request} took {found}, but only these may come next: {sorted(allowed)}")
            _same(f"the claimed {found.key}", found, self.oracle.adopt(found, request, now))
            self.written = now
        if len(taken) > request.limit:
            raise Disagreement(f"{request} took {len(taken)}")
        left = [e.id for e in self.oracle.claimable(request, taken)]
        # Without a global order a claim may stop early, but not without any.
        stopped_early = len(taken) < request.limit if self.oracle.exact_order else not taken
        if left and stopped_early:
            raise Disagreement(f"{request} took only {[e.id for e in taken]} and left {left}")

    async def renew(self, worker: str, *, lease_ttl_ms: int) -> Renewed:
        now = self._write_time()
        renewed = await self.store.renew(worker, lease_ttl_ms=lease_ttl_ms)
        _same("the time of a renewal", renewed.now, now)
        self.written = now
        held = self.oracle.held(worker)
        wanted = [Held(e.namespace, e.id, e.epoch, e.inbox) for e in held]
        _same(f"what {worker} holds", sorted(renewed.held, key=repr), sorted(wanted, key=repr))
        await self._renewed(worker, lease_ttl_ms, now, {self._home(e) for e in held})
        return renewed

    async def held(self, worker: str, partitions: frozenset[int]) -> Leases:
        leases = await self.store.held(worker, partitions)
        held = [e for e in self.oracle.held(worker) if self._home(e) in partitions]
        wanted = [Held(e.namespace, e.id, e.epoch, e.inbox) for e in held]
        _same(f"what {worker} holds", sorted(leases.held, key=repr), sorted(wanted, key=repr))
        return leases

    async def _renewed(self, worker: str, lease_ttl_ms: int, now: int, needed: set[int]) -> None:
        """The sessions on which leases hang are renewed; a partitioned store may leave the others as they were."""
        partitions = range(self.store.partitions)
        if len(partitions) == 1:
            needed = {0}
        sessions = await self.store.load([session_key(partition, worker) for partition in partitions])
        for partition, session in zip(partitions, sessions, strict=True):
            if partition in needed or session != self.oracle.records.get(session_key(partition, worker)):
                self.oracle.renew(partition, worker, lease_ttl_ms, now)

    async def append(self, key: Key, *, epoch: int, change_id: str, frames: Sequence[bytes]) -> Appended:
        now = self._write_time()
        namespace, execution_id = str(key.values[0]), str(key.values[1])
        known = change_id in self.oracle.appends.get((namespace, execution_id), ())
        found = await self.store.append(namespace, execution_id, epoch=epoch, change_id=change_id, frames=frames)
        if found.applied and frames and not known:
            self.written = now
        _same(f"the append to {key}", found, self.oracle.append(key, epoch, change_id, frames, now))
        return found

    async def purge(self, *, finished_before: int | None, limit: int, filter: Filter) -> list[Key]:
        """The port promises no order: whatever is gone must have been purgeable, and nothing is left for nothing."""
        now = self._write_time()
        allowed = self.oracle.purgeable(finished_before, now, filter)
        count = await self.store.purge(finished_before=finished_before, limit=limit, filter=filter)
        _same("how many were purged", count, min(limit, len(allowed)))
        left = await self.store.load([e.key for e in allowed]) if allowed else []
        gone = [e for e, record in zip(allowed, left, strict=True) if record is None]
        _same("how many purged executions are gone", len(gone), count)
        for e in gone:
            self.oracle.purge(e)
            self.written = now
        return [e.key for e in gone]

    # ---- reads ----------------------------------------------------------------------------------------------------

    async def reopened(self, reopen: Callable[[Store], Awaitable[Store]]) -> None:
        """By a new process, for which reads of the old one have left no trace."""
        before, self.store = self.store, await reopen(self.store)
        if before is not self.store:
            clock = self.clock.now_ms()
            self.time = await self.store.now()
            if not max(self.written, clock) <= self.time <= max(self.asked, clock):
                raise Disagreement(f"a new process is at {self.time}: not between {self.written} and {self.asked}")
        await self.now()

    async def now(self) -> int:
        found = await self.store.now()
        _same("the store's time", found, self._now())
        return found

    async def due(self, kind: DueKind, *, limit: int, filter: Filter = EVERYTHING) -> Due:
        now = self._now()
        due = await self.store.due(kind, limit=limit, filter=filter)
        wanted = self.oracle.due(kind, now, filter)
        _same("the time of due", due.now, now)
        _same(f"how much is due ({kind})", due.depth, len(wanted))
        if kind in OWED:
            _same(f"how much is owed ({kind})", due.owed, len(self.oracle.due(kind, FOREVER_MS, filter)))
        _same(f"when it is due ({kind})", [i.due_at for i in due.items], [i.due_at for i in wanted[:limit]])
        expected = {(i.due_at, i.record.key): i.record for i in wanted}
        for item in due.items:
            _same(f"what is due ({kind})", item.record, expected.pop((item.due_at, item.record.key), None))
        return due

    async def find(self, query: Query) -> list[Execution]:
        """All pages of a query, one after the other."""
        wanted = self.oracle.find(query)
        found: list[Execution] = []
        page_query = query
        while True:
            page = await self.store.find(page_query)
            found += page.executions
            if page.cursor is None:
                break
            _same(f"the length of a page of {query}", len(page.executions), query.limit)
            page_query = msgspec.structs.replace(query, after=page.cursor)
        _same(f"the order of {query}", [e.created_at for e in found], [e.created_at for e in wanted])
        _same(f"the pages of {query}", _by_key(found), _by_key(wanted))
        _same(f"the count of {query}", await self.store.count(query), len(wanted))
        return found

    async def scan(self, kind: str, prefix: tuple[str | int, ...], *, limit: int) -> list[Record]:
        """All records under a prefix, page by page."""
        found: list[Record] = []
        after: Key | None = None
        while True:
            page = await self.store.scan(kind, prefix, after=after, limit=limit)
            found += page
            if len(page) < limit:
                break
            after = page[-1].key
        wanted = self.oracle.scan(kind, prefix)
        if KINDS[kind].SEQUENCED:
            found, wanted = self._in_order(found), self._in_order(wanted)
        _same(f"the scan of {kind} {prefix}", found, wanted)
        return found

    async def frames(self, key: Key, *, after: int, limit: int) -> None:
        namespace, execution_id = str(key.values[0]), str(key.values[1])
        found = await self.store.frames(namespace, execution_id, after=after, limit=limit)
        wanted = [frame for frame in self.oracle.streams.get((namespace, execution_id), []) if frame.seq > after]
        _same(f"the frames of {key}", found, wanted[:limit])

    async def completions(self, position: Position, *, limit: int, filter: Filter) -> tuple[Feed, Position]:
        """The next page behind a position, and where it ends. Nothing is skipped, nothing comes twice."""
        kept = position.filter or filter
        feed = await self.store.completions(after=position.cursor, limit=limit, filter=kept)
        ahead = [c for c in self._feed() if c.seq > position.covered.get(self._home_of(c), 0)]
        wanted = [c for c in ahead if self.oracle.passes(kept, c.namespace, c.execution)]
        _same("the length of a feed's page", len(feed.completions), min(limit, len(wanted)))
        full = len(feed.completions) == limit
        covered = dict(position.covered)
        for partition in range(self.store.partitions):
            found = [c for c in feed.completions if self._home_of(c) == partition]
            expected = [c for c in wanted if self._home_of(c) == partition]
            _same("the feed", [_bare(c) for c in found], [_bare(c) for c in expected[: len(found)]])
            passed = expected[: len(found)] if full else [c for c in ahead if self._home_of(c) == partition]
            covered[partition] = max([covered.get(partition, 0), *(c.seq for c in passed)])
        return feed, Position(feed.cursor, covered, kept)

    def _feed(self) -> list[Completion]:
        return [c for c in self.oracle.scan(Completion.KIND, ()) if isinstance(c, Completion)]

    # ---- the whole state ------------------------------------------------------------------------------------------

    async def compare(self) -> None:
        """Every record of every kind, and every stream."""
        kinds = list(KINDS)
        scans = await asyncio.gather(*(self.store.scan(kind, (), limit=STATE_MAX) for kind in kinds))
        for kind, found in zip(kinds, scans, strict=True):
            wanted = self.oracle.scan(kind, ())
            if KINDS[kind].SEQUENCED:
                found, wanted = self._in_order(found), self._in_order(wanted)
            if found != wanted:
                _same(f"all records of kind {kind}", _by_key(found), _by_key(wanted))
                _same(f"the order of kind {kind}", found, wanted)
            for record in found:
                if isinstance(record, Execution):
                    check(record)
        streams = {(e.namespace, e.id) for e in self.oracle.all(Execution)} | set(self.oracle.streams)
        frames = await asyncio.gather(*(self.store.frames(*stream) for stream in sorted(streams)))
        for stream, found in zip(sorted(streams), frames, strict=True):
            _same(f"the frames of {stream}", found, self.oracle.streams.get(stream, []))

    def _in_order(self, records: list[Record]) -> list[Record]:
        """Partition by partition as they came, without their numbers."""
        return [_bare(record) for record in sorted(records, key=self._home_of)]

    # ---- time and place -------------------------------------------------------------------------------------------

    def _now(self) -> int:
        self.time = max(self.time, self.clock.now_ms())
        return self.time

    def _write_time(self) -> int:
        self.asked = self._now()
        return self.asked

    def home(self, key: Key) -> int:
        """Where a record lives."""
        if KINDS[key.kind].KEY[0] == "partition":
            return int(key.values[0])
        return self.oracle.home(str(key.values[0]), str(key.values[1]))

    def _home(self, e: Execution) -> int:
        return self.oracle.home(e.namespace, e.id)

    def _home_of(self, record: Record) -> int:
        """Of a record that belongs to an execution."""
        return self.oracle.home(str(record.key.values[0]), str(record.key.values[1]))


def _same(what: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        raise Disagreement(f"{what}: {_difference(found, wanted)}")


def _difference(found: Any, wanted: Any) -> str:
    """Only what differs, if they are records or tables of records."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        a: dict[Any, Any] = found  # pyright: ignore[reportUnknownVariableType]
        b: dict[Any, Any] = wanted  # pyright: ignore[reportUnknownVariableType]
        keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
        return "; ".join(f"{key}: {_difference(a.get(key), b.get(key))}" for key in keys)
    if isinstance(found, Record) and isinstance(wanted, Record) and type(found) is type(wanted):
        fields = [f.name for f in msgspec.structs.fields(found)]
        return ", ".join(
            f"{name} is {getattr(found, name)!r}, should be {getattr(wanted, name)!r}"
            for name in fields
            if getattr(found, name) != getattr(wanted, name)
        )
    return f"the store says {found!r}, the contract {wanted!r}"


def _by_key(records: Sequence[Record]) -> dict[Key, Record]:
    found = {record.key: _bare(record) for record in records}
    if len(found) != len(records):
        raise Disagreement(f"a record came twice: {[str(record.key) for record in records]}")
    return found


def _bare(record: Record) -> Record:
    """Without its number, which is the store's to give."""
    return msgspec.structs.replace(record, seq=0) if record.SEQUENCED else record


def _bare_verdict(verdict: Verdict) -> Verdict:
    if verdict.current is None:
        return verdict
    return msgspec.structs.replace(verdict, current=_bare(verdict.current))
