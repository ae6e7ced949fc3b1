"""What an execution that goes on as new leaves behind: old journals, inputs, attempts, deferreds and received events.

All of it is dropped in bounded parts, behind the execution's back: nothing reads it any more. A received event is kept
for a while, because it is what makes a repeated send the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.machine import facts
from outlast.machine.upkeep import gone, not_purged
from outlast.model.attempt import Attempt
from outlast.model.deferred import Deferred
from outlast.model.event import UPDATE, Event, ended_name
from outlast.model.execution import Execution, execution_key
from outlast.model.journal import JournalEntry
from outlast.model.outbox import SENT_BY_OUTBOX, delivery_key
from outlast.model.partition import partition_of
from outlast.model.payload import Payload
from outlast.model.record import Key, Record, settled

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine

PART = 500
PARTS_MAX = 4
"""So many parts of the events are looked through for each new generation, oldest first: the rest has its turn later."""
REPEATED_WITHIN_MS = 60_000
"""A send whose reply was lost is repeated no longer than half of this."""
KEY_KEPT_MS = 24 * 3_600 * 1_000
"""How long the key of a received event goes on deduplicating."""


async def forget(engine: Engine, namespace: str, execution_id: str, errand: facts.Forget) -> None:
    execution = await engine.look(namespace, execution_id)
    if execution is None or execution.generation < errand.before:
        return  # purged since, and perhaps started anew: it begins to count its generations again
    for kind in (JournalEntry.KIND, Deferred.KIND, Attempt.KIND, Payload.KIND):
        await _drop_old(engine, kind, execution, errand.before)
    await _drop_received(engine, execution)


async def _drop_old(engine: Engine, kind: str, execution: Execution, before: int) -> None:
    """Key order is by generation: the old ones come first."""
    while True:
        page = await engine.store.scan(kind, (execution.namespace, execution.id), limit=PART)
        old = [record for record in page if _generation(record) < before]
        if not await _delete(engine, execution, [record.key for record in old]) or len(old) < PART:
            return


def _generation(record: Record) -> int:
    generation = record.key.values[2]
    assert isinstance(generation, int)
    return generation


async def _drop_received(engine: Engine, execution: Execution) -> None:
    namespace, execution_id = execution.namespace, execution.id
    now = await engine.store.now()
    home = partition_of(namespace, execution_id, engine.store.partitions)
    after: Key | None = None
    for _ in range(PARTS_MAX):
        page = await engine.store.scan(Event.KIND, (namespace, execution_id), after=after, limit=PART)
        events = [record for record in page if isinstance(record, Event)]
        gone = [event.key for event in events if await _may_go(engine, event, now, home)]
        if not await _delete(engine, execution, gone) or len(page) < PART:
            return
        after = page[-1].key


async def _may_go(engine: Engine, event: Event, now: int, home: int) -> bool:
    age_ms = now - (settled(event.sent_at) or 0)
    if event.name.startswith(ended_name("")):
        child = event.name.removeprefix(ended_name(""))
        [known] = await engine.store.load([execution_key(event.namespace, child)])
        return age_ms > KEY_KEPT_MS or (known is not None and event.dedup.isdigit())
    if not event.consumed or (event.name == UPDATE and event.value is None):
        return False  # not received, or not answered yet
    if event.dedup != event.change_id:
        return age_ms > KEY_KEPT_MS
    debt, by_outbox, _ = event.change_id.partition(SENT_BY_OUTBOX)
    if by_outbox and debt.isdigit():
        if int(debt) == home:
            return True  # its debt was struck off in the commit that brought it
        [owed] = await engine.store.load([delivery_key(int(debt), event.change_id)])
        return owed is None and age_ms > REPEATED_WITHIN_MS
    return age_ms > REPEATED_WITHIN_MS


async def _delete(engine: Engine, execution: Execution, keys: list[Key]) -> bool:
    """False if it was purged meanwhile: then all of that is gone, and what is there belongs to another of that id."""
    if not keys:
        return True
    home = partition_of(execution.namespace, execution.id, engine.store.partitions)
    dropped = gone(home, execution.key, not_purged(execution), keys, engine.entropy.new_id())
    return (await engine.group.commit(dropped)).applied
