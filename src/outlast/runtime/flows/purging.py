"""What is left of a flow goes: of a stage that nobody opened, and of one that has ended and is past its retention.

A flow goes as a whole, counted from its own end: members that ended long before it are needed as long as it is open,
and when it is retried. A part at a time: first its summary, so that nobody can open it again, and with the last part
its own record, which shuts until then what it shut before.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from outlast.machine import facts
from outlast.machine.changes import Guard
from outlast.machine.decide_flow import purged
from outlast.machine.decide_member import MemberView
from outlast.machine.upkeep import gone, purged_from_now
from outlast.model.event import Event
from outlast.model.flow import (
    EdgeAnswer,
    Flow,
    Summary,
    decode_ids,
    edge_key,
    flow_key,
    member_key,
    summary_key,
    whole_of,
)
from outlast.model.partition import partition_of
from outlast.model.payload import Role, payload_key
from outlast.model.record import Key, settled
from outlast.model.tag import tag_key

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine

PAGE = 100
FLOWS_PAGE = 500


async def purge_ended_flows(engine: Engine, namespace: str, *, finished_before: int) -> None:
    """Let the members go of all flows that ended before. One with members that still run, though it was cancelled, has
    not ended altogether."""
    after: Key | None = None
    while True:
        page = await engine.store.scan(Summary.KIND, (namespace,), after=after, limit=FLOWS_PAGE)
        ended = [
            flow_key(namespace, one.id)
            for one in page
            if isinstance(one, Summary) and one.outcome is not None and one.ended == one.members
            if (settled(one.finished_at) or 0) < finished_before
        ]
        for flow in await engine.store.load(ended) if ended else []:
            if isinstance(flow, Flow):
                await purge_flow(engine, flow)
        if len(page) < FLOWS_PAGE:
            return
        after = page[-1].key


async def purge_flow(engine: Engine, flow: Flow) -> bool:
    """True if all of it is gone, or will be with its members. Who is held up in it does nothing any more to a flow of
    the same id that was started since somebody else came to the end of it."""
    partition = partition_of(flow.namespace, flow.id, engine.store.partitions)
    gate = await _closed(engine, flow, partition)
    if gate is None:
        return False
    open_members = False
    async for page in engine.flows.roster(flow.namespace, flow.id):
        views = await engine.flows.views(partition, flow.namespace, page)
        if flow.staged_at is not None:
            await asyncio.gather(*(_unstage(engine, gate, view) for view in views))
        else:
            let_go = await asyncio.gather(*(_let_go(engine, gate, view) for view in views))
            open_members = open_members or not all(let_go)
        if not open_members:
            gone = [edge_key(flow.namespace, whole_of(flow.id), one) for one in page]
            await _delete(engine, gate, partition, gone)
    if open_members:
        return False  # what still runs was told to end: later
    owner = (flow.namespace, whole_of(flow.id))
    while edges := await engine.store.scan(EdgeAnswer.KIND, owner, limit=PAGE):
        if not await _delete(engine, gate, partition, [edge.key for edge in edges]):
            return False
    return await _delete(engine, gate, partition, [flow.key, summary_key(flow.namespace, flow.id)])


async def _closed(engine: Engine, flow: Flow, partition: int) -> Guard | None:
    """Nobody may open it now, or retry it; and if this process dies, somebody looks again. What holds from then on as
    long as nobody else purges it; None if it is not to be purged, or by somebody else."""
    [summary] = await engine.store.load([summary_key(flow.namespace, flow.id)])
    seen = summary if isinstance(summary, Summary) else None
    answer = purged(partition, flow, seen, engine.entropy.new_id())
    if answer is None:
        return None
    first, by_us = answer
    return by_us if (await engine.commit(first)).applied else None


async def _unstage(engine: Engine, gate: Guard, view: MemberView) -> None:
    """It was never there: nobody has run it, and all that it has was written with it."""
    e = view.execution
    events = await engine.store.scan(Event.KIND, (e.namespace, e.id))
    keys: list[Key] = [
        e.key,
        member_key(e.namespace, e.id),
        payload_key(e.namespace, e.id, 1, Role.INPUT),
        payload_key(e.namespace, e.id, 1, Role.TEMPLATE),
        *(tag_key(e.namespace, e.id, tag) for tag in e.tag_map),
        *(event.key for event in events),
        *(edge_key(e.namespace, upstream, e.id) for upstream in decode_ids(view.member.after)),
    ]
    await _delete(engine, gate, view.partition, keys)


async def _let_go(engine: Engine, gate: Guard, view: MemberView) -> bool:
    """Purged by its own retention, from now on; False if it must be ended first."""
    e = view.execution
    if not e.status.terminal:
        fact = facts.CancelRequested(change_id=engine.entropy.new_id(), reason="its flow is purged")
        await engine.tell(e.namespace, e.id, fact, seen=e, only_if=(gate,))
        return False
    await engine.commit(purged_from_now(view.partition, e, gate, engine.entropy.new_id()))
    return True


async def _delete(engine: Engine, gate: Guard, partition: int, keys: list[Key]) -> bool:
    """False if that is not ours to do any more."""
    for begin in range(0, len(keys), PAGE):
        some = keys[begin : begin + PAGE]
        verdict = await engine.commit(gone(partition, some[0], gate, some, engine.entropy.new_id()))
        if not verdict.applied:
            return False
    return True
