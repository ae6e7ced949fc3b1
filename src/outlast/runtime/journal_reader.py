"""Reading a journal: all of it, in the order in which it was recorded.

Its holder reads what nobody else may change. Anybody else looks at the execution first and at its journal afterwards:
what began anew in between has its old journal, and its input, forgotten part by part. So they look once more behind it.
"""

from __future__ import annotations

from outlast.errors import ExecutionNotFound
from outlast.model.execution import Execution, execution_key
from outlast.model.journal import JournalEntry
from outlast.model.record import settled
from outlast.store.port import Store

PAGE = 10_000


async def journal_of(store: Store, e: Execution) -> list[JournalEntry]:
    prefix = (e.namespace, e.id, e.journal_generation)
    entries: list[JournalEntry] = []
    while True:
        after = entries[-1].key if entries else None
        page = await store.scan(JournalEntry.KIND, prefix, after=after, limit=PAGE)
        entries += [entry for entry in page if isinstance(entry, JournalEntry)]
        if len(page) < PAGE:
            return in_order(entries)


async def whole_journal(store: Store, seen: Execution) -> tuple[Execution, list[JournalEntry]]:
    """The journal as one who does not hold it reads it, and the execution whose it is."""
    execution = seen
    while True:
        entries = await journal_of(store, execution)
        anew = await begun_anew(store, execution)
        if anew is None:
            return execution, entries
        execution = anew


async def begun_anew(store: Store, seen: Execution) -> Execution | None:
    """The execution as it is now, if it has begun anew since it was seen: what was read since may not be whole.
    `ExecutionNotFound` if it is gone."""
    [now] = await store.load([execution_key(seen.namespace, seen.id)])
    if not isinstance(now, Execution):
        raise ExecutionNotFound(seen.namespace, seen.id)
    return None if _life(now) == _life(seen) else now


def _life(e: Execution) -> tuple[int, int | None]:
    return e.journal_generation, settled(e.created_at)


def in_order(entries: list[JournalEntry]) -> list[JournalEntry]:
    return sorted(entries, key=lambda entry: entry.position)
