"""Reading a journal: all of it, in the order in which it was recorded."""

from __future__ import annotations

from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
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


def in_order(entries: list[JournalEntry]) -> list[JournalEntry]:
    return sorted(entries, key=lambda entry: entry.position)
