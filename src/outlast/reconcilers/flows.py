"""Repairs of flows. In a healthy process they find nothing to do: the commit of an end owes what they look for.

Each looks at a bounded part of a flow and goes on from there in its next cycle; a flow in which nothing was found is
left alone for longer and longer, up to a bound.
"""

from __future__ import annotations

import asyncio
import logging

from outlast.errors import CorruptState
from outlast.machine.decide_flow import CHECK_MS, DEPEND_MS, looked_through
from outlast.machine.decide_member import answered_edge, recounted, waits
from outlast.model.flow import (
    Edge,
    EdgeAnswer,
    Flow,
    Member,
    Summary,
    decode_ids,
    whole_of,
)
from outlast.model.partition import home_of
from outlast.model.record import Record
from outlast.runtime.engine import Engine
from outlast.runtime.flows.purging import purge_flow
from outlast.runtime.flows.stopping import CYCLE_MAX, cancel_members
from outlast.store.port import Filter

_log = logging.getLogger(__name__)

PAGE = 500


async def resolve_dependencies(engine: Engine, record: Record) -> bool:
    """The safety net of edges: whose upstream has ended is answered, and counted. A page of members per cycle."""
    assert isinstance(record, Summary)
    place = f"dependency {record.namespace} {record.id}"
    ids, more = await _next_page(engine, record, place)
    partition = home_of(record, engine.store.partitions)
    found = False
    for view in await engine.flows.views(partition, record.namespace, ids):
        if not waits(view):
            continue
        missing = await engine.flows.unanswered(record.namespace, view.execution.id, decode_ids(view.member.after))
        answers = [answered_edge(partition, end, view.execution.id) for end in missing]
        await asyncio.gather(*(engine.group.commit(answer) for answer in answers))
        advanced = await engine.flows.advance(record.namespace, view.execution.id)
        if missing or advanced.changes is not None:
            # On a busy store they may only be on their way.
            _log.info("dependency: member %s was not told of %d ends", view.execution.id, len(missing))
            found = True
    await _look_again(engine, record, "depend_at", DEPEND_MS, at_once=more, found=found)
    return found


async def summarize(engine: Engine, record: Record) -> bool:
    """The safety net of a flow's end: members that have ended are counted. A page of members per cycle."""
    assert isinstance(record, Summary)
    place = f"summary {record.namespace} {record.id}"
    ids, more = await _next_page(engine, record, place)
    partition, whole = home_of(record, engine.store.partitions), whole_of(record.id)
    missing = await engine.flows.unanswered(record.namespace, whole, tuple(ids))
    answers = [answered_edge(partition, end, whole) for end in missing]
    await asyncio.gather(*(engine.group.commit(answer) for answer in answers))
    before = await _summary(engine, record)
    await engine.flows.tally(record.namespace, record.id)
    after = await _summary(engine, record)
    found = bool(missing) or (before is not None and after is not None and before.ended != after.ended)
    if missing:
        _log.info("flow_summary: flow %s was not told of %d ends", record.id, len(missing))
    if after is not None and after.outcome is None and not more:
        members, ended = await _count(engine, after, Edge.KIND), await _count(engine, after, EdgeAnswer.KIND)
        if (after.members, after.ended) != (members, ended):
            # Its numbers are not those of its roster and its edges: edited by hand, or restored in parts.
            await engine.commit(recounted(partition, after, engine.entropy.new_id(), members=members))
            await engine.flows.tally(record.namespace, record.id)
            found = True
    await _look_again(engine, record, "check_at", CHECK_MS, at_once=more, found=found)
    return found


async def spare_siblings(engine: Engine, record: Record) -> bool:
    """A join was settled, and whoever settled it died before it cancelled what is no longer needed."""
    assert isinstance(record, Member)
    return await engine.flows.spare_siblings(record.namespace, record.execution)


async def finish_cancels(engine: Engine, record: Record, filter: Filter) -> bool:
    """The cancels that a stopped flow owes, when the grace of whoever stopped it is over."""
    assert isinstance(record, Flow)
    if record.reason is None:
        raise CorruptState(f"flow {record.id!r} was cancelled, but why cannot be read: its members wait for the reason")
    done = await cancel_members(engine, record.namespace, record.id, most=CYCLE_MAX, filter=filter)
    return done.acknowledged > 0 or done.dropped > 0 or done.put_off


async def purge(engine: Engine, record: Record) -> bool:
    """An abandoned stage, or a flow past its retention."""
    assert isinstance(record, Flow)
    return await purge_flow(engine, record)


# ---- parts --------------------------------------------------------------------------------------------------------


async def _next_page(engine: Engine, summary: Summary, place: str) -> tuple[list[str], bool]:
    """The members behind those of the last cycle, and whether there are more."""
    owner = (summary.namespace, whole_of(summary.id))
    page = await engine.store.scan(Edge.KIND, owner, after=engine.places.get(place), limit=PAGE)
    more = len(page) == PAGE
    if more:
        engine.places[place] = page[-1].key
    else:
        engine.places.pop(place, None)
    return [one.downstream for one in page if isinstance(one, Edge)], more


async def _summary(engine: Engine, record: Summary) -> Summary | None:
    return (await engine.flows.heads(record.namespace, record.id))[1]


async def _count(engine: Engine, summary: Summary, kind: str) -> int:
    """How many members the flow has by its roster, or of how many ends it was told."""
    owner, count, after = (summary.namespace, whole_of(summary.id)), 0, None
    while True:
        page = await engine.store.scan(kind, owner, after=after, limit=PAGE)
        count += len(page)
        if len(page) < PAGE:
            return count
        after = page[-1].key


async def _look_again(
    engine: Engine, summary: Summary, field: str, interval_ms: int, *, at_once: bool, found: bool
) -> None:
    partition, change_id = home_of(summary, engine.store.partitions), engine.entropy.new_id()
    await engine.group.commit(
        looked_through(partition, summary, field, change_id, interval_ms=interval_ms, more=at_once, found=found)
    )
