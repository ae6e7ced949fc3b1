"""Why is it waiting? In plain words, with what to do about it. No execution is stuck without an answer here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from outlast import limits
from outlast.cli.words import duration, moment, plural, relative
from outlast.client.offers import Offers, offers_in
from outlast.errors import StoreUnavailable
from outlast.model.event import UPDATE
from outlast.model.execution import Execution, execution_key, parse_route
from outlast.model.flow import CancelPolicy, Flow, FlowState, Member, decode_ids, flow_key, member_key
from outlast.model.journal import JournalEntry
from outlast.model.lane import Lane, lane_key
from outlast.model.names import INTERRUPT
from outlast.model.partition import partition_of
from outlast.model.payload import Payload, Role, Standstill, payload_key
from outlast.model.record import settled
from outlast.model.session import Session
from outlast.model.status import TIMED_REASONS, Reason, Status
from outlast.runtime.retrying import was_undone
from outlast.store.port import Sharded, Store

T = TypeVar("T")

OVERDUE_MS = 5_000
"""A wake-up so late means that nobody looks."""
NAMED_MAX = 5
"""So many upstreams are named."""

CAUSES = {
    "failed": "its last attempt failed",
    "attempt_timeout": "its last attempt ran longer than its timeout",
    "lease_lost": "its last worker died or lost its lease",
    "crashes": "its worker died too often while running it, without any progress in between",
    "crashes_in_life": "its worker died too often while running it, counted over its whole life",
    "deadline": "its deadline passed",
    "cancelled": "it was cancelled",
    "codec": "the app's codec could not read or write a value (the worker's log says which)",
}


@dataclass(frozen=True)
class Upstreams:
    """What a member waits for: how each of them is, and how many must succeed."""

    states: dict[str, Status]
    needed: int


@dataclass(frozen=True)
class Situation:
    """What is around it: the store's time, the workers' sessions (worker → expires at), its lane, its flow. And
    whether what it did was undone, and where its code stands if nothing durable can make it go on."""

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
    """Every worker that the store knows, and until when it counts as alive. Of a store on several servers, as those
    that answer know: a worker has a session in every partition that it reaches."""
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
    """Of an earlier lease, or with more in its journal since then, it has gone on."""
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
    """The flow that it is of, and what it waits for there."""
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


def why(e: Execution, s: Situation) -> str:
    """One or two sentences about what it does, waits for, or came to."""
    match e.status:
        case Status.READY:
            text = _ready(e, s)
        case Status.ACTIVE:
            text = _active(e, s)
        case Status.BLOCKED | Status.SUSPENDED:
            text = _waiting(e, s)
        case _:
            return _ended(e, s)
    text += _shut(e, s)
    if e.expires_for is not None:
        text += f" It undoes what it did, because {CAUSES.get(e.expires_for, e.expires_for)}, and expires then."
    if e.deadline_at is not None:
        at = settled(e.deadline_at) or 0
        text += f" It must end by {moment(at, now=s.now)} ({relative(at, now=s.now)})."
    return text


def _ready(e: Execution, s: Situation) -> str:
    since = f"Ready for {duration(max(0, s.now - (settled(e.ready_at) or s.now)))}"
    if _shut(e, s):
        return f"{since}, but it is not claimed."
    if s.lane_paused:
        return f"{since}, but lane {e.lane} is paused: nothing in it is claimed until it is resumed."
    wanted = _wanted(e)
    missing = s.offers.reason(e)
    if missing == Reason.VERSION:
        return f"{since}, but no live worker has version {e.version} of {e.workflow}: {_offered(e, s)}. Start {wanted}."
    if missing is not None:
        return (
            f"{since}, but no live worker that has {e.workflow} offers {missing.partition(':')[2]!r}. Start {wanted}."
        )
    if not s.alive:
        return f"{since}, but no worker that serves it is alive. Start one: {wanted}."
    if unserved := s.offers.unserved(e):
        return f"{since}, but no live worker serves {unserved}. Start one: {wanted}."
    return (
        f"{since}: waits for a worker with room. {plural(len(s.alive), 'worker')} {_are(s.alive)} alive; "
        f"if this lasts, none of them serves it: {wanted}."
    )


def _shut(e: Execution, s: Situation) -> str:
    """Why its flow lets nobody claim it, and what to do; nothing if the claim would not ask, or finds it open."""
    if s.flow is None or e.cancel_requested or e.status is Status.ACTIVE:
        return ""
    match s.flow.state:
        case FlowState.OPEN:
            return ""
        case FlowState.STOPPED if s.flow.policy is CancelPolicy.FLOW_ONLY:
            return (
                f" Its flow was cancelled ({s.flow.policy}), which left it as it is: it does not go on until "
                f"`outlast flows retry {s.flow.id}`."
            )
        case FlowState.STOPPED:
            return f" Its flow was cancelled ({s.flow.policy}): the workers cancel it."
        case FlowState.STAGING:
            return " Its flow is still being started."
        case FlowState.REOPENING:
            return " Its flow is being retried: it goes on when all of its members are open again."


def _wanted(e: Execution) -> str:
    """What a worker must be to take it."""
    requires = sorted(parse_route(e.route).requires)
    options = "" if e.namespace == "default" else f" --namespace {e.namespace}"
    options += "" if e.lane == "default" else f" --lanes {e.lane}"
    options += f" --capabilities {','.join(requires)}" if requires else ""
    return f"`outlast worker MODULE:APP{options}`, with workflow {e.workflow} version {e.version}"


def _offered(e: Execution, s: Situation) -> str:
    offered = s.offers.of_workflow(e)
    if not offered:
        return f"{plural(len(s.alive), 'worker')} {_are(s.alive)} alive, none with any version of it"
    return "offered are " + ", ".join(f"version {version} (by {', '.join(who)})" for version, who in offered.items())


def _are(many: list[str]) -> str:
    return "is" if len(many) == 1 else "are"


def _active(e: Execution, s: Situation) -> str:
    since = settled(e.claimed_at) or s.now
    expires_at = s.sessions.get(e.worker or "")
    if expires_at is None or expires_at <= s.now:
        gone = "" if expires_at is None else f" {relative(expires_at, now=s.now)}"
        taker = "another takes it over within seconds" if s.alive else "no other is alive to take it over: start one"
        text = f"Held by {e.worker}, whose session lapsed{gone}; {taker}."
    else:
        text = f"Running on {e.worker} for {duration(max(0, s.now - since))}, attempt {e.attempt}."
    if s.standstill is not None:
        text += (
            f" Its code awaits something that no durable operation can end, at {', '.join(s.standstill.lines)}: only a "
            "cancel or a time limit ends that."
        )
    if e.attempt_deadline_at is not None:
        text += f" This attempt times out {relative(settled(e.attempt_deadline_at) or 0, now=s.now)}."
    if e.cancel_requested:
        text += " Its cancel is requested: the code is told at its next await or step."
    if e.held:
        text += " It is to be held: it stops when it next waits."
    return text


def _waiting(e: Execution, s: Situation) -> str:
    reason = e.reason or "an unknown reason"
    wake_at = settled(e.wake_at)
    due = "" if wake_at is None else f"{moment(wake_at, now=s.now)} ({relative(wake_at, now=s.now)})"
    kind, _, name = reason.partition(":")
    alone = bool(e.awaits) or kind in TIMED_REASONS  # else the time may be that of something beside it
    until = f" until {due}" if due and alone else ""
    match kind:
        case Reason.OPERATOR:
            text = f"Held by an operator until `outlast release {e.id}`."
        case Reason.DELAY:
            text = f"Delayed{until}, as its start asked for."
        case Reason.RETRY:
            cause = CAUSES.get(e.cause or "", "a step failed")
            cause = "a step failed" if e.status is Status.SUSPENDED else cause
            text = f"Waits{until} before it is tried again: {cause}."
        case Reason.TIMER:
            text = f"Sleeps{until}."
        case Reason.DEPENDENCIES:
            text = _depends(e, s)
        case Reason.VERSION:
            text = (
                f"The code of {e.workflow} version {e.version} no longer does what its journal recorded, or no longer "
                "takes its arguments. Deploy code that does (the worker's log says which, with the line), or register "
                "the change as a new version."
            )
        case "event" if name == UPDATE:
            text = f"Waits for an update{until}: `outlast update {e.id} NAME VALUE`."
        case "event":
            text = f"Waits for event {name!r}{until}."
        case "deferred" if name == INTERRUPT:
            text = f"Waits to be interrupted{until}."
        case "deferred":
            text = f"Waits for deferred {name!r} to be resolved{until}."
        case "child" if name.endswith("/"):
            text = f"Waits for its flow {name[:-1]!r} to end{until}: `outlast flows show {name[:-1]}`."
        case "child":
            text = f"Waits for its child {name!r} to end{until}: `outlast show {name}`."
        case "quota" | "budget":
            text = f"Waits for {kind} {name!r}{until}."
        case "capability":
            text = f"Waits for a worker that offers {name!r}: `outlast worker MODULE:APP --capabilities {name}`."
        case _:
            text = f"Waits for {reason}{until}."
    if due and not alone and e.status is Status.SUSPENDED and not e.held:
        text += f" A sleep or a timeout of its code is due at {due}."
    if e.held and kind != Reason.OPERATOR:
        text += f" It is also held: `outlast release {e.id}`."
    if wake_at is not None and wake_at < s.now - OVERDUE_MS and not e.held:
        text += " That is overdue: no worker with reconcilers is alive." if not s.alive else " That is overdue."
    return text


def _depends(e: Execution, s: Situation) -> str:
    """On whom, those first that have not ended."""
    if s.upstreams is None:
        return "Waits for the executions that it depends on."
    states = sorted(s.upstreams.states.items(), key=lambda one: one[1].terminal)
    named = [f"{upstream} ({status})" for upstream, status in states[:NAMED_MAX]]
    named += [f"{len(states) - NAMED_MAX:,} more"] if len(states) > NAMED_MAX else []
    needed = f", of which {s.upstreams.needed:,} must succeed" if s.upstreams.needed < len(states) else ""
    return f"Waits for what it depends on: {', '.join(named)}{needed}. `outlast flows show {e.flow}` draws them all."


def _ended(e: Execution, s: Situation) -> str:
    at = settled(e.finished_at) or s.now
    cause = CAUSES.get(e.cause or "", e.cause or "")
    because = f": {cause}" if cause and e.status not in (Status.SUCCEEDED, Status.CANCELLED) else ""
    took = duration(max(0, at - (settled(e.created_at) or at)))
    text = f"{e.status.capitalize()} {relative(at, now=s.now)}, {took} after its start{because}."
    if s.undone and e.flow is None:
        return f"{text} Its undos have run: to begin anew, start it with `--id {e.id} --if-exists restart`."
    if e.status in (Status.FAILED, Status.EXPIRED):
        again = f"retry {e.id}" if e.flow is None else f"flows retry {e.flow}"
        text += f" To try again without repeating what was recorded: `outlast {again}`."
    return text
