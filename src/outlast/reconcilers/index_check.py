"""Walk all executions, a page per cycle, and repair records that contradict each other. Each repair is logged.

In a healthy store it finds nothing: everything that it checks is written in one commit. It is here because stores are
edited by hand, restored in parts, and copied.
"""

from __future__ import annotations

import logging

from outlast.machine.changes import Delete, Insert, Put, Write
from outlast.machine.upkeep import repaired
from outlast.model.completion import Completion, completion_key
from outlast.model.execution import Execution
from outlast.model.record import Key, Record, settled
from outlast.model.tag import Tag
from outlast.runtime.engine import Engine
from outlast.store.port import Due, DueItem, Filter

_log = logging.getLogger(__name__)


async def look_at_next(engine: Engine, limit: int, filter: Filter) -> Due:
    """The page behind the last one; from the beginning again at the end. The place is kept by the engine."""
    prefix = () if filter.namespace is None else (filter.namespace,)
    after = engine.places.get(_PLACE)
    records = await engine.store.scan(Execution.KIND, prefix, after=after, limit=limit)
    engine.places[_PLACE] = records[-1].key if len(records) == limit else None
    now = await engine.store.now()
    wanted = [record for record in records if _matches(record, filter)]
    return Due(now, [DueItem(now, record) for record in wanted], 0)


_PLACE = "index_check"


def _matches(record: Record, filter: Filter) -> bool:
    assert isinstance(record, Execution)
    return filter.tag is None or record.tag_map.get(filter.tag[0]) == filter.tag[1]


async def repair_indexes(engine: Engine, record: Record) -> bool:
    """Compare an execution with its tags and its completion; write what is missing, delete what is too much."""
    assert isinstance(record, Execution)
    writes, findings = await _contradictions(engine, record)
    if not writes:
        return False
    home = engine.view(record.namespace, record.id, record).partition
    verdict = await engine.group.commit(repaired(home, record, writes, engine.entropy.new_id()))
    if verdict.applied:
        _log.warning("index_check repaired execution %s: %s", record.id, "; ".join(findings))
    return verdict.applied


async def _contradictions(engine: Engine, execution: Execution) -> tuple[list[Write], list[str]]:
    writes: list[Write] = []
    findings: list[str] = []
    owner = (execution.namespace, execution.id)
    found = {tag.tag: tag.value for tag in await engine.store.scan(Tag.KIND, owner) if isinstance(tag, Tag)}
    for tag, value in execution.tag_map.items():
        if found.get(tag) != value:
            writes.append(Put(Tag(namespace=execution.namespace, execution=execution.id, tag=tag, value=value)))
            findings.append(f"tag {tag!r} was not indexed")
    for tag in found.keys() - execution.tag_map.keys():
        writes.append(Delete(Key(Tag.KIND, (*owner, tag))))
        findings.append(f"tag {tag!r} was indexed but is not there")
    if execution.status.terminal and not await _completion(engine, execution):
        writes.append(Insert(_missing_completion(execution)))
        findings.append(f"it is {execution.status} without a completion")
    return writes, findings


async def _completion(engine: Engine, execution: Execution) -> Record | None:
    [found] = await engine.store.load([completion_key(execution.namespace, execution.id, execution.generation)])
    return found


def _missing_completion(execution: Execution) -> Completion:
    finished_at = settled(execution.finished_at)
    assert finished_at is not None
    return Completion(
        namespace=execution.namespace,
        execution=execution.id,
        generation=execution.generation,
        status=execution.status,
        cause=execution.cause,
        workflow=execution.workflow,
        tags=execution.tags,
        finished_at=finished_at,
        change_id=execution.change_id,
    )
