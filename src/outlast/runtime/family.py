"""Parents and children: who is open, and what becomes of children when their parent ends.

A parent keeps one record for each open child that its end may concern; the child's end removes it. Closing is an errand
of the outbox, a part at a time. A cancel that ends a parent takes its children along in its commit, if they are few.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from outlast import limits
from outlast.machine import facts
from outlast.machine.amendments import together
from outlast.machine.changes import Absent, Changes, Guard, Matches, Refusal
from outlast.machine.decide import decide
from outlast.machine.flow_parents import parent_ended
from outlast.machine.upkeep import gone, same_life
from outlast.model.event import CHILD, Event
from outlast.model.execution import Execution, ParentClose, execution_key
from outlast.model.flow import Flow, Summary, flow_key, summary_key
from outlast.model.partition import partition_of
from outlast.model.record import Key, Record
from outlast.model.status import Reason
from outlast.runtime.flows.subflows import is_flow, is_over, is_owed, stop_flow

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine

TOGETHER_MAX = 50
"""So many children are cancelled in one commit, or closed in one part."""
PAGE = 500


class OpenChild(Struct, frozen=True):
    id: str
    parent_close: ParentClose
    key: Key
    change_id: str
    partition: int
    """Where its parent keeps the record of it."""


async def open_children(
    engine: Engine, namespace: str, parent: str, *, after: Key | None = None, limit: int = PAGE
) -> list[OpenChild]:
    """The children that have not ended, as far as the parent has heard, oldest first."""
    records = await engine.store.scan(Event.KIND, (namespace, parent, CHILD), after=after, limit=limit)
    home = partition_of(namespace, parent, engine.store.partitions)
    return [
        OpenChild(record.dedup, ParentClose((record.value or b"cancel").decode()), record.key, record.change_id, home)
        for record in records
        if isinstance(record, Event)
    ]


async def waited_for(engine: Engine, parent: Execution) -> tuple[str, ...]:
    """The open children that the parent's code must wait for before it ends, as reasons. Without those that ended while
    the parent itself had ended: it did not hear of them, and its records of them are stale after a retry."""
    namespace, waits = parent.namespace, list[str]()
    children = await open_children(engine, namespace, parent.id, limit=limits.SCAN_MAX_RECORDS)
    waited = (child for child in children if child.parent_close is ParentClose.WAIT)
    while len(waits) < limits.WAITS_MAX and (some := list(islice(waited, limits.LOAD_MAX_KEYS))):
        heads = await engine.store.load([_end_of(namespace, child) for child in some])
        found = zip(some, heads, strict=True)
        waits += [Reason.child(child.id) for child, head in found if not _has_ended(head, parent.id, child)]
    return tuple(waits[: limits.WAITS_MAX])


def _end_of(namespace: str, child: OpenChild) -> Key:
    """Where it is written whether it has ended."""
    if is_flow(child.id):
        return summary_key(namespace, child.id.removesuffix("/"))
    return execution_key(namespace, child.id)


def _has_ended(head: Record | None, parent: str, child: OpenChild) -> bool:
    if isinstance(head, Summary):
        return head.outcome is not None
    return head.status.terminal if isinstance(head, Execution) else not _begins_later(parent, child)


def _begins_later(parent: str, child: OpenChild) -> bool:
    """Whether one that is not there may only not have begun yet. A child that is named under its parent begins in the
    commit that says so: if it is not there, it was purged."""
    return not child.id.startswith(f"{parent}/")


async def close_children(engine: Engine, namespace: str, parent: str, errand: facts.CloseChildren) -> None:
    """The parent has ended. What is done with a child is not done again: its record goes. Not so of one that has not
    begun: whoever carries its start looks after it, or the parent does, if it is opened again by then."""
    after: Key | None = None
    while True:
        children = await open_children(engine, namespace, parent, after=after, limit=TOGETHER_MAX)
        # The children first: those of now are not to be taken for those of a parent that is opened again later.
        seen = await engine.store.load([_head(namespace, child) for child in children]) if children else []
        current = await engine.look(namespace, parent)
        if not children or (current is not None and not current.status.terminal):
            return  # if it was opened again, its children are its own once more
        stands = _stands(namespace, parent, current)
        found = list(zip(children, seen, strict=True))
        reason = parent_ended(parent, f": {errand.reason}")
        begun = [(child, record) for child, record in found if record is not None]
        await asyncio.gather(*(_close(engine, stands, child, record, reason) for child, record in begun))
        later = [child for child, record in found if record is None and _begins_later(parent, child)]
        done = [child.key for child in children if child not in later]
        owner, home = execution_key(namespace, parent), children[0].partition
        verdict = await engine.group.commit(gone(home, owner, stands, done, engine.entropy.new_id()))
        if len(children) < TOGETHER_MAX or not verdict.applied:
            return
        after = later[-1].key if later else after


def _head(namespace: str, child: OpenChild) -> Key:
    if is_flow(child.id):
        return flow_key(namespace, child.id.removesuffix("/"))
    return execution_key(namespace, child.id)


def _stands(namespace: str, execution_id: str, seen: Execution | None) -> Guard:
    """An end, or that there is nobody: as it was seen, and not of another life."""
    if seen is None:
        return Absent(execution_key(namespace, execution_id))
    return Matches(seen.key, {"status": seen.status, "generation": seen.generation})


async def _close(engine: Engine, stands: Guard, child: OpenChild, seen: Record, reason: str) -> None:
    """Only what was seen before the parent was: if somebody else has closed it meanwhile, it may have been opened again
    since, and goes on."""
    namespace, parent = str(stands.key.values[0]), str(stands.key.values[1])
    if isinstance(seen, Flow):

        async def owed() -> bool:
            return await is_owed(engine.store, child) and await is_over(engine, namespace, parent)

        await stop_flow(engine, seen, parent, reason, owed)
        return
    assert isinstance(seen, Execution)
    near = partition_of(namespace, child.id, engine.store.partitions) == child.partition
    cancel = facts.CancelRequested(change_id=engine.entropy.new_id(), reason=reason)
    still = (same_life(seen), stands) if near else (same_life(seen),)
    await engine.tell(namespace, child.id, cancel, seen=seen, acks=child, only_if=still)


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
    theirs: list[Changes] = []
    for child in await engine.store.load(near):
        if not isinstance(child, Execution) or child.status.terminal:
            continue
        also = decide(engine.view(child.namespace, child.id, child), fact, now)
        if not isinstance(also, Refusal):
            theirs.append(also)
    return together(answer, theirs)
