"""Parents and children: who is open, and what becomes of children when their parent ends.

A parent keeps one record for each open child that its end may concern; the child's end removes it. Closing is an errand
of the outbox: a part at a time, the children of one partition in one commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, structs

from outlast.machine import facts
from outlast.machine.changes import Changes, Delete, Refusal
from outlast.machine.decide import decide
from outlast.model.event import CHILD, Event
from outlast.model.execution import Execution, ParentClose, execution_key
from outlast.model.partition import partition_of
from outlast.model.record import Key

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine

TOGETHER_MAX = 50
"""So many children are cancelled in one commit."""
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


async def close_children(engine: Engine, namespace: str, parent: str, errand: facts.CloseChildren) -> None:
    """The parent has ended. What is done with a child is not done again: its record goes."""
    while True:
        children = await open_children(engine, namespace, parent, limit=TOGETHER_MAX)
        if not children:
            return
        current = await engine.look(namespace, parent)
        if current is not None and not current.status.terminal:
            return  # it was opened again, and its children are its own once more
        for child in children:
            fact = facts.CancelRequested(
                change_id=engine.entropy.new_id(), reason=f"its parent {parent!r} ended: {errand.reason}"[:500]
            )
            await engine.tell(namespace, child.id, fact)
        await engine.group.commit(
            Changes(
                id=engine.entropy.new_id(),
                partition=partition_of(namespace, parent, engine.store.partitions),
                anchors=(execution_key(namespace, parent),),
                writes=tuple(Delete(child.key) for child in children),
            )
        )


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
