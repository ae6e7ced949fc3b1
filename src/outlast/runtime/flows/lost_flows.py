"""Flows that were cancelled because the execution whose code started them ended.

A retry that waited for them again could never succeed. So it takes their starts out of the journal. The code starts the
same flow once more, and that opens it again (`subflows.py`): what has succeeded of it stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from outlast import limits
from outlast.codec.values import Values
from outlast.machine.flow_parents import was_closed
from outlast.model.execution import Execution
from outlast.model.flow import Flow, flow_key
from outlast.model.journal import JournalEntry
from outlast.runtime.operations.child import started_by
from outlast.store.port import Store


async def closed(
    store: Store, values: Values, parent: Execution, journal: Sequence[JournalEntry]
) -> list[JournalEntry]:
    """The starts of those that are closed now."""
    started = ((flow, entry) for entry in journal if (flow := _started(values, parent.id, entry)) is not None)
    lost: list[JournalEntry] = []
    while some := list(islice(started, limits.LOAD_MAX_KEYS)):
        heads = await store.load([flow_key(parent.namespace, flow) for flow, _ in some])
        lost += [entry for (_, entry), head in zip(some, heads, strict=True) if _is_closed(head, parent.id)]
    return lost


def _started(values: Values, parent: str, entry: JournalEntry) -> str | None:
    """What this execution has started and may be a flow: those are not named under it."""
    started = started_by(values, parent, entry)
    return started.id if started is not None and "/" not in started.id else None


def _is_closed(head: object, parent: str) -> bool:
    return isinstance(head, Flow) and head.parent == parent and was_closed(head)
