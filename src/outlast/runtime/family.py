"""Parents and children: who is open, and what becomes of children when their parent ends.

A parent keeps one record for each open child that its end may concern; the child's end removes it. Closing is an errand
of the outbox, a part at a time. A cancel that ends a parent takes its children along in its commit, if they are few.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from outlast import limits
from outlast.machine import facts
from outlast.machine.changes import Changes, Delete, Refusal
from outlast.machine.decide import decide
from outlast.model.event import CHILD, Event
from outlast.model.execution import Execution, ParentClose, execution_key
from outlast.model.partition import partition_of
from outlast.model.record import Key
from outlast.model.status import Reason
from outlast.runtime.subflows import is_flow, stop_flow

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine
    from outlast.runtime.lease import Lease

TOGETHER_MAX = 50
"""So many children are cancelled in one commit, or closed in one part."""
PAGE = 500


class OpenChild(Struct, frozen=True):
    id: str
    parent_close: ParentClose
    key: Key


async def open_children(engine: Engine, namespace: str, parent: str, *, limit: int = PAGE) -> list[OpenChild]:
    """The children that have not ended, as far as the parent has heard, oldest first."""
    records = await engine.store.scan(Event.KIND, (namespace, parent, CHILD), limit=limit)
    return [
        OpenChild(record.dedup, ParentClose((record.value or b"cancel").decode()), record.key)
        for record in records
        if isinstance(record, Event)
    ]


async def suspended_for_children(engine: Engine, lease: Lease) -> bool:
    """The parent's code has ended by itself. If it must wait for children, suspend it until one of them ends: then the
    code is replayed to its end, and this is asked again. False if there is nothing to wait for."""
    while not lease.execution.cancel_requested:
        inbox = lease.execution.inbox
        waits = await _waited_for(engine, lease.execution)
        if not waits:
            return False
        change_id, epoch = lease.new_id(), lease.execution.epoch
        verdict = await lease.tell(
            facts.Suspend(change_id=change_id, epoch=epoch, inbox=inbox, reason=waits[0], waits=waits)
        )
        if verdict is not None and verdict.applied:
            return True
    return False


async def _waited_for(engine: Engine, parent: Execution) -> tuple[str, ...]:
    """The open children that the parent's code must wait for before it ends, as reasons."""
    children = await open_children(engine, parent.namespace, parent.id, limit=limits.SCAN_MAX_RECORDS)
    waits = (Reason.child(child.id) for child in children if child.parent_close is ParentClose.WAIT)
    return tuple(islice(waits, limits.WAITS_MAX))


async def close_children(engine: Engine, namespace: str, parent: str, errand: facts.CloseChildren) -> None:
    """The parent has ended. What is done with a child is not done again: its record goes."""
    while True:
        children = await open_children(engine, namespace, parent, limit=TOGETHER_MAX)
        if not children:
            return
        current = await engine.look(namespace, parent)
        if current is not None and not current.status.terminal:
            return  # it was opened again, and its children are its own once more
        reason = f"its parent {parent!r} ended: {errand.reason}"
        await asyncio.gather(*(_close(engine, namespace, parent, child, reason) for child in children))
        await engine.group.commit(
            Changes(
                id=engine.entropy.new_id(),
                partition=partition_of(namespace, parent, engine.store.partitions),
                anchors=(execution_key(namespace, parent),),
                writes=tuple(Delete(child.key) for child in children),
            )
        )


async def _close(engine: Engine, namespace: str, parent: str, child: OpenChild, reason: str) -> None:
    if is_flow(child.id):
        await stop_flow(engine, namespace, child.id.removesuffix("/"), parent, reason)
    else:
        cancel = facts.CancelRequested(change_id=engine.entropy.new_id(), reason=reason)
        await engine.tell(namespace, child.id, cancel)


async def with_children(
    engine: Engine, parent: Execution, fact: facts.CancelRequested, answer: Changes, now: int
) -> Changes:
    """A cancel that ends a parent at once ends its children in the same commit, as far as they live in its partition
    and are not too many. The others follow through the outbox."""
    children = await open_children(engine, parent.namespace, parent.id, limit=TOGETHER_MAX + 1)
    partitions = engine.store.partitions
    near = [
        execution_key(parent.namespace, child.id)
        for child in children
        if partition_of(parent.namespace, child.id, partitions) == answer.partition
    ]
    if not near or len(children) > TOGETHER_MAX:
        return answer
    for child in await engine.store.load(near):
        if not isinstance(child, Execution) or child.status.terminal:
            continue
        also = decide(engine.view(child.namespace, child.id, child), fact, now)
        if not isinstance(also, Refusal):
            answer = structs.replace(
                answer,
                anchors=(*answer.anchors, *also.anchors),
                guards=(*answer.guards, *also.guards),
                writes=(*answer.writes, *also.writes),
                rings=tuple(dict.fromkeys((*answer.rings, *also.rings))),
            )
    return answer
