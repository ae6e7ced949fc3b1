"""What a retry of something that has ended runs again: for its own retry, and for that of its flow.

It only reads. What leaves the journal, and in which order, is the machine's to say (`machine/retry_cut.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from outlast import limits
from outlast.codec.failures import decode_failure
from outlast.codec.values import Values
from outlast.errors import ExecutionNotFound
from outlast.machine import retry_cut
from outlast.machine.replay import key_of, note_of
from outlast.model.execution import Execution, execution_key
from outlast.model.journal import CANCELLED, CHILD, START, UNWIND, JournalEntry
from outlast.model.payload import Payload, Role, payload_key
from outlast.model.status import Status
from outlast.runtime.attempts.lost_children import called_by
from outlast.runtime.flows import lost_flows
from outlast.runtime.journal_reader import journal_of
from outlast.store.port import Store


async def was_undone(store: Store, execution: Execution) -> bool:
    """Whether its undos have run: then what it did is taken back, and its journal is of no use any more."""
    return execution.unwinds and any(entry.op == UNWIND for entry in await journal_of(store, execution))


async def runs_again(store: Store, values: Values, execution: Execution) -> list[JournalEntry]:
    """The failure that ended it, what a cancel cut short (it is open again, and nobody cancels it), what still waited,
    and the starts of called children and of flows that were cancelled with it. `ExecutionNotFound` if it was purged
    meanwhile."""
    again = await _escaped_or_cut_short(store, values, execution)
    journal = await journal_of(store, execution)
    lost = await _cancelled_children(store, values, execution, journal)
    lost += await lost_flows.closed(store, values, execution, journal)
    return retry_cut.in_order([*again, *(start for start in lost if start not in again)])


async def _escaped_or_cut_short(store: Store, values: Values, execution: Execution) -> list[JournalEntry]:
    e, places = execution, frozenset[int]()
    if e.status not in (Status.FAILED, Status.CANCELLED, Status.EXPIRED):
        return []
    if e.status is Status.FAILED:
        [failure] = await store.load([payload_key(e.namespace, e.id, e.generation, Role.FAILURE)])
        if not isinstance(failure, Payload):
            raise ExecutionNotFound(e.namespace, e.id)
        places = retry_cut.places_in(decode_failure(values.unseal(failure.value)).again)
    journal = await journal_of(store, e)
    cut_short = (*retry_cut.cut_short(journal), *retry_cut.still_waiting(journal))
    return retry_cut.at_places(journal, places.union(entry.position for entry in cut_short))


async def _cancelled_children(
    store: Store, values: Values, parent: Execution, journal: Sequence[JournalEntry]
) -> list[JournalEntry]:
    """The starts of those whose end the code of one that has ended never saw, and the notes of starts."""
    notes = {key_of(entry): entry for entry in journal if entry.op == START and entry.outcome == CANCELLED}
    noted = {entry.name for entry in journal if entry.op == CHILD and entry.outcome == CANCELLED}
    seen = {entry.name for entry in journal if entry.op == CHILD and entry.outcome != CANCELLED}
    called = ((called_by(values, parent.id, entry), entry) for entry in journal)
    unseen = ((child, entry) for child, entry in called if child is not None and child not in seen)
    lost = list(notes.values())
    while some := list(islice(unseen, limits.LOAD_MAX_KEYS)):
        heads = await store.load([execution_key(parent.namespace, child) for child, _ in some])
        found = zip(some, heads, strict=True)
        lost += [
            entry
            for (child, entry), head in found
            if child in noted or note_of(key_of(entry)) in notes or _is_cancelled(head)
        ]
    return lost


def _is_cancelled(head: object) -> bool:
    return isinstance(head, Execution) and head.status is Status.CANCELLED
