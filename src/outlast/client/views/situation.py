"""What surrounds an execution and decides why it waits: sessions and offers of workers, its lane, its flow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from outlast import limits
from outlast.client.offers import Offers, offers_in
from outlast.errors import StoreUnavailable
from outlast.model.execution import Execution, execution_key
from outlast.model.flow import Flow, Member, decode_ids, flow_key, member_key
from outlast.model.journal import JournalEntry
from outlast.model.lane import Lane, lane_key
from outlast.model.partition import partition_of
from outlast.model.payload import Payload, Role, Standstill, payload_key
from outlast.model.record import settled
from outlast.model.session import Session
from outlast.model.status import Reason, Status
from outlast.runtime.retrying import was_undone
from outlast.store.port import Sharded, Store

T = TypeVar("T")


@dataclass(frozen=True)
class Upstreams:
    """The upstreams of a member: the status of each, and how many must succeed."""

    states: dict[str, Status]
    needed: int


@dataclass(frozen=True)
class Situation:
    """The store's time, the workers' sessions (worker → expires at) and offers, the lane and the flow of one execution;
    whether its undos have run, and where its code stands if nothing durable can make it go on."""

    now: int
    sessions: dict[str, int]
    lane_paused: bool = False
    offers: Offers = field(default_factory=lambda: Offers({}))
    flow: Flow | None = None
    upstreams: Upstreams | None = None
    undone: bool = False
    standstill: Standstill | None = None

    @property
    def alive(self) -> list[str]:
        return sorted(worker for worker, expires_at in self.sessions.items() if expires_at > self.now)


async def sessions_of(store: Store) -> dict[str, int]:
    """Every worker that the store knows, and until when it counts as alive. A store on several servers asks those that
    answer: a worker has a session in every partition that it reaches."""
    found: dict[str, int] = {}
    reads = [store.scan(Session.KIND, (partition,), limit=10_000) for partition in range(store.partitions)]
    if isinstance(store, Sharded):
        pages = await _answered(reads)
    else:
        pages = [await read for read in reads]
    for session in (record for page in pages for record in page):
        if isinstance(session, Session):
            found[session.worker] = max(found.get(session.worker, 0), settled(session.expires_at) or 0)
    return found


async def _answered(reads: Sequence[Awaitable[T]]) -> list[T]:
    """The answers of the reads that succeeded. Servers that are away raise only if none did."""
    told = await asyncio.gather(*reads, return_exceptions=True)
    for problem in told:
        if isinstance(problem, BaseException) and not isinstance(problem, StoreUnavailable):
            raise problem
    answers = [one for one in told if not isinstance(one, BaseException)]
    problems = [one for one in told if isinstance(one, BaseException)]
    if problems and not answers:
        raise problems[0]
    return answers


async def situation_of(store: Store, e: Execution) -> Situation:
    home = partition_of(e.namespace, e.id, store.partitions)
    [lane] = await store.load([lane_key(home, e.namespace, e.lane)])
    paused = isinstance(lane, Lane) and lane.paused
    try:
        offers = await offers_in(store)
    except StoreUnavailable:
        if not isinstance(store, Sharded):
            raise
        offers = Offers({})  # what the workers offer is on a server that is away
    return Situation(
        await store.now(),
        await sessions_of(store),
        paused,
        offers,
        *await _around_member(store, e),
        undone=e.status.terminal and await was_undone(store, e),
        standstill=await _standstill(store, e) if e.status is Status.ACTIVE else None,
    )


async def _standstill(store: Store, e: Execution) -> Standstill | None:
    """Where the code stands still; None if another lease or a later journal entry shows that it has gone on."""
    [told] = await store.load([payload_key(e.namespace, e.id, e.generation, Role.STANDSTILL)])
    stands = Standstill.decode(told.value) if isinstance(told, Payload) else None
    if stands is None or stands.epoch != e.epoch:
        return None
    after, entries = None, 0
    while page := await store.scan(JournalEntry.KIND, (e.namespace, e.id, e.journal_generation), after=after):
        after = page[-1].key
        entries = max([entries, *(one.position + 1 for one in page if isinstance(one, JournalEntry))])
    return stands if entries == stands.entries else None


async def _around_member(store: Store, e: Execution) -> tuple[Flow | None, Upstreams | None]:
    """The flow of a member, and the upstreams that it waits for."""
    if e.flow is None:
        return None, None
    flow, member = await store.load([flow_key(e.namespace, e.flow), member_key(e.namespace, e.id)])
    upstreams = None
    if isinstance(member, Member) and e.reason == Reason.DEPENDENCIES:
        upstreams = await _upstreams(store, member)
    return flow if isinstance(flow, Flow) else None, upstreams


async def _upstreams(store: Store, member: Member) -> Upstreams:
    ids = decode_ids(member.after)
    states: dict[str, Status] = {}
    for begin in range(0, len(ids), limits.LOAD_MAX_KEYS):
        some = [execution_key(member.namespace, one) for one in ids[begin : begin + limits.LOAD_MAX_KEYS]]
        states |= {e.id: e.status for e in await store.load(some) if isinstance(e, Execution)}
    return Upstreams(states, member.needed)
