"""What came for one execution from outside, as its holder asks for it: events in the order of their sending, resolved
deferreds, the ends of children and of flows. It only reads; what was received, the holder's next commit says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.errors import ExecutionNotFound
from outlast.machine.decide_member import MemberView
from outlast.machine.flow_parents import was_closed
from outlast.model.child import ChildEnd
from outlast.model.deferred import Deferred, deferred_key
from outlast.model.event import CANCEL, UPDATE, Event, answer_id, ended_name, event_key
from outlast.model.execution import Execution
from outlast.model.flow import whole_of
from outlast.model.outbox import delivery_key
from outlast.model.partition import partition_of
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.record import Key, settled
from outlast.model.status import Status
from outlast.runtime.flows.carrying import FAILURES_TOLD
from outlast.runtime.flows.composing import load_all
from outlast.runtime.holder import (
    PAGE,
    EndOfChild,
    EndOfFlow,
    FlowEnd,
    MemberEnd,
    Oldest,
    OldestEvent,
    ReadDeferred,
    ReadUpdates,
)

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine
    from outlast.store.port import Store


async def oldest_event(store: Store, e: Execution, asked: OldestEvent) -> Oldest:
    read_to = after = asked.after
    received: list[Key] = []
    while True:
        page = await store.scan(Event.KIND, (e.namespace, e.id, asked.name), after=after, limit=PAGE)
        for event in page:
            assert isinstance(event, Event)
            if not event.consumed and event.key not in asked.taken:
                late = asked.until is not None and (settled(event.sent_at) or 0) > asked.until
                return Oldest(None if late else event, read_to, tuple(received))
            if event.consumed and read_to == after:
                read_to = event.key
            if event.consumed and event.key in asked.taken:
                received.append(event.key)
            after = event.key
        if len(page) < PAGE:
            return Oldest(None, read_to, tuple(received))


async def updates(store: Store, e: Execution, asked: ReadUpdates) -> list[Event]:
    page = await store.scan(Event.KIND, (e.namespace, e.id, UPDATE), after=asked.after, limit=PAGE)
    return [event for event in page if isinstance(event, Event)]


async def deferred(store: Store, e: Execution, asked: ReadDeferred) -> Deferred | None:
    [found] = await store.load([deferred_key(e.namespace, e.id, e.journal_generation, asked.name)])
    if not isinstance(found, Deferred) or _is_late(found.resolved_at, asked.until):
        return None
    return found


async def child_end(engine: Engine, e: Execution, asked: EndOfChild) -> ChildEnd | None:
    """The child itself knows best: it may have been opened again. If it is purged, what it said when it ended stands.
    An answer to its start says that there is no such child."""
    store, own, child, start = engine.store, (e.namespace, e.id), asked.child, asked.start
    name = ended_name(child)
    while True:
        if start is not None:
            [answer] = await store.load([event_key(*own, name, answer_id(start))])
            if isinstance(answer, Event):
                return ChildEnd.decode(answer.value or b"")
        execution = await engine.look(e.namespace, child)
        if execution is None:
            break
        if start is not None and execution.parent != e.id:
            return None  # another's: the answer to the start will say so
        if not execution.status.terminal or _is_late(execution.finished_at, asked.until):
            return None
        role = Role.OUTPUT if execution.status is Status.SUCCEEDED else Role.FAILURE
        [payload] = await store.load([payload_key(e.namespace, child, execution.generation, role)])
        value = payload.value if isinstance(payload, Payload) else None
        cancelled = execution.status is Status.CANCELLED
        reason = await cancelled_because(store, e.namespace, child) if cancelled else ""
        if value is not None or await engine.look(e.namespace, child) == execution:
            return ChildEnd(status=execution.status, cause=execution.cause, value=value, reason=reason)
        # Purged or begun anew between the two looks: look again.
    told = await store.scan(Event.KIND, (*own, name))
    last = told[-1] if told else None
    unheard = last is None and start is not None and await _is_not_owed(store, e, start)
    if unheard and await engine.look(e.namespace, child) is None:
        raise ExecutionNotFound(e.namespace, child)
    if not isinstance(last, Event) or _is_late(last.sent_at, asked.until):
        return None
    return ChildEnd.decode(last.value or b"")


async def _is_not_owed(store: Store, e: Execution, start: str) -> bool:
    """Whether what this execution started has begun, though it was never heard of since. That is so if it ended, and
    was purged, before this execution was retried: what has ended itself hears of no ends."""
    if e.generation == e.journal_generation:
        return False  # not retried
    home = partition_of(e.namespace, e.id, store.partitions)
    [owed] = await store.load([delivery_key(home, start)])
    return owed is None


async def flow_end(engine: Engine, e: Execution, asked: EndOfFlow) -> FlowEnd | None:
    """The flow's records know best: it may have been opened again."""
    store, flow_id, start, own = engine.store, asked.flow, asked.start, (e.namespace, e.id)
    child = ended_name(whole_of(flow_id))
    while True:
        if start is not None:
            [answer] = await store.load([event_key(*own, child, answer_id(start))])
            if isinstance(answer, Event):
                return _refused(answer)
        flow, summary = await engine.flows.heads(e.namespace, flow_id)
        if flow is None or summary is None:
            told = [event for event in await store.scan(Event.KIND, (*own, child)) if isinstance(event, Event)]
            answers = [event for event in told if start is not None and event.dedup == answer_id(start)]
            if answers:
                return _refused(answers[0])  # since the look above
            if start is not None and not told and not await _is_not_owed(store, e, start):
                return None  # it has not begun
            flow, summary = await engine.flows.heads(e.namespace, flow_id)
            if flow is None or summary is None:
                return FlowEnd()  # it has ended, and was purged
        if flow.parent != e.id:
            return None if start is not None else FlowEnd(ours=False)
        if summary.outcome is None or _is_late(summary.finished_at, asked.until):
            return None
        if start is not None and was_closed(flow) and not await _is_not_owed(store, e, start):
            return None  # started once more, by a retry of this execution: that opens it again
        members = await _member_ends(engine, e, flow_id)
        if await engine.flows.heads(e.namespace, flow_id) == (flow, summary):
            return FlowEnd(status=summary.outcome, cause=flow.reason or "", members=members)
        # Retried or purged meanwhile: look again.


async def _member_ends(engine: Engine, e: Execution, flow_id: str) -> list[MemberEnd]:
    """In the order of the members. Of those that failed, only the first are told with their failure."""
    views: list[MemberView] = []
    partition = partition_of(e.namespace, flow_id, engine.store.partitions)
    async for page in engine.flows.roster(e.namespace, flow_id):
        views += await engine.flows.views(partition, e.namespace, page)
    views.sort(key=lambda view: view.member.position)
    members = [view.execution for view in views]
    succeeded = [one for one in members if one.status is Status.SUCCEEDED]
    failed = [one for one in members if one.status is Status.FAILED][:FAILURES_TOLD]
    keys = [payload_key(one.namespace, one.id, one.generation, Role.OUTPUT) for one in succeeded]
    keys += [payload_key(one.namespace, one.id, one.generation, Role.FAILURE) for one in failed]
    found = zip([*succeeded, *failed], await load_all(engine.store, keys), strict=True)
    values = {one.id: record.value for one, record in found if isinstance(record, Payload)}
    return [
        MemberEnd(name=v.member.name, id=x.id, status=x.status, cause=x.cause, value=values.get(x.id))
        for v, x in zip(views, members, strict=True)
    ]


async def cancelled_because(store: Store, namespace: str, execution_id: str) -> str:
    """The reason that was given with the cancel that ended it, the newest one."""
    asked = await store.scan(Event.KIND, (namespace, execution_id, CANCEL))
    return (asked[-1].value or b"").decode(errors="replace") if asked and isinstance(asked[-1], Event) else ""


def _is_late(time: object, until: int | None) -> bool:
    return until is not None and isinstance(time, int) and time > until


def _refused(answer: Event) -> FlowEnd:
    return FlowEnd(refused=True, cause=ChildEnd.decode(answer.value or b"").cause or "")
