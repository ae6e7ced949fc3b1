"""What is left of a flow goes: of a stage that nobody opened, and of one that has ended and is past its retention.

A part at a time. While any of it is left the flow's own record stands, and shuts what it shut before.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from outlast.machine import facts
from outlast.machine.changes import Changes, Delete, Guard, Matches, Patch, Write
from outlast.machine.decide_member import MemberView
from outlast.model.event import Event
from outlast.model.flow import Edge, Flow, decode_ids, dependency_key, member_key, summary_key, whole_of
from outlast.model.partition import partition_of
from outlast.model.payload import Role, payload_key
from outlast.model.record import Key, Now
from outlast.model.tag import tag_key

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine

PAGE = 100
LATER_MS = 60_000


async def purge_flow(engine: Engine, flow: Flow) -> bool:
    """True if all of it is gone, or will be with its members."""
    partition = partition_of(flow.namespace, flow.id, engine.store.partitions)
    if not await _closed(engine, flow, partition):
        return False
    open_members = False
    async for page in engine.flows.roster(flow.namespace, flow.id):
        views = await engine.flows.views(partition, flow.namespace, page)
        if flow.staged_at is not None:
            await asyncio.gather(*(_unstage(engine, view) for view in views))
        else:
            open_members = any(await asyncio.gather(*(_let_go(engine, view) for view in views))) or open_members
        if not open_members:
            gone = [dependency_key(flow.namespace, whole_of(flow.id), one) for one in page]
            await _delete(engine, partition, gone)
    if open_members:
        return False  # what still runs was told to end: later
    owner = (flow.namespace, whole_of(flow.id))
    while edges := await engine.store.scan(Edge.KIND, owner, limit=PAGE):
        await _delete(engine, partition, [edge.key for edge in edges])
    await _delete(engine, partition, [flow.key, summary_key(flow.namespace, flow.id)])
    return True


async def _closed(engine: Engine, flow: Flow, partition: int) -> bool:
    """Nobody may open it now; and if this process dies, somebody looks again."""
    fields: dict[str, object] = {"purge_at": Now(LATER_MS), "revision": flow.revision + 1}
    if flow.staged_at is not None:
        fields["change_id"] = engine.entropy.new_id()
    guard: Guard = Matches(flow.key, {"state": flow.state, "revision": flow.revision, "change_id": flow.change_id})
    verdict = await engine.commit(
        Changes(
            id=engine.entropy.new_id(),
            partition=partition,
            anchors=(flow.key,),
            guards=(guard,),
            writes=(Patch(flow.key, fields),),  # pyright: ignore[reportArgumentType]
        )
    )
    return verdict.applied


async def _unstage(engine: Engine, view: MemberView) -> None:
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
        *(dependency_key(e.namespace, upstream, e.id) for upstream in decode_ids(view.member.after)),
    ]
    await _delete(engine, view.partition, keys)


async def _let_go(engine: Engine, view: MemberView) -> bool:
    """Purged by its own retention, from now on; True if it must be ended first."""
    e = view.execution
    if not e.status.terminal:
        fact = facts.CancelRequested(change_id=engine.entropy.new_id(), reason="its flow is purged")
        await engine.tell(e.namespace, e.id, fact, seen=e)
        return True
    await engine.commit(
        Changes(
            id=engine.entropy.new_id(),
            partition=view.partition,
            anchors=(e.key,),
            guards=(Matches(e.key, {"status": e.status, "generation": e.generation}),),
            writes=(Patch(e.key, {"purge_at": Now()}),),
        )
    )
    return False


async def _delete(engine: Engine, partition: int, keys: list[Key]) -> None:
    for begin in range(0, len(keys), PAGE):
        some = keys[begin : begin + PAGE]
        writes: list[Write] = [Delete(key) for key in some]
        await engine.commit(
            Changes(id=engine.entropy.new_id(), partition=partition, anchors=(some[0],), writes=tuple(writes))
        )
