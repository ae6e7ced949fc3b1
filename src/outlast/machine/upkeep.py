"""Changes that move no status: sessions, debts, records that go, indexes that are repaired, records that are copied.

Each is bounded, and harmless if it is repeated. None of them may touch the status of an execution or the state of a
flow: that is for `decide` and for the deciders of flows, and is checked here.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlast.errors import CorruptState
from outlast.machine.changes import Changes, Delete, GoneOrPast, Guard, Insert, Matches, Patch, Put, Write
from outlast.machine.invariants import check
from outlast.machine.transitions import STATE_OF
from outlast.model.event import UNDELIVERED, Event
from outlast.model.execution import Execution, execution_key
from outlast.model.outbox import Delivery
from outlast.model.record import Key, Now, Record, settled
from outlast.model.session import Session, session_key

_STATUS_OF = {**STATE_OF, Execution.KIND: "status"}


def _upkeep(
    change_id: str, partition: int, anchors: tuple[Key, ...], guards: Sequence[Guard], writes: Sequence[Write]
) -> Changes:
    for write in writes:
        if type(write) is Patch and _STATUS_OF.get(write.key.kind) in write.fields:
            raise CorruptState(f"upkeep would change the status of {write.key}")
    return Changes(id=change_id, partition=partition, anchors=anchors, guards=tuple(guards), writes=tuple(writes))


# ---- sessions -----------------------------------------------------------------------------------------------------


def session_offers(session: Session, change_id: str) -> Changes:
    """A worker says what it offers."""
    return _upkeep(change_id, session.partition, (session.key,), (), [Put(session)])


def session_ended(partition: int, worker: str, change_id: str) -> Changes:
    """A worker that drained says that it is gone."""
    key = session_key(partition, worker)
    return _upkeep(change_id, partition, (key,), (), [Delete(key)])


def session_lapsed(session: Session, change_id: str) -> Changes:
    """A session that lapsed goes. One that was renewed meanwhile refuses."""
    key = session.key
    return _upkeep(change_id, session.partition, (key,), [GoneOrPast(key, "expires_at")], [Delete(key)])


# ---- debts --------------------------------------------------------------------------------------------------------


def debt_postponed(debt: Delivery, change_id: str, *, error: str, delay_ms: int) -> Changes:
    """A delivery that failed is tried again later, and says why. Refused if somebody else has tried it since."""
    patch = Patch(debt.key, {"due_at": Now(delay_ms), "tries": debt.tries + 1, "error": error[:1_000]})
    return _upkeep(change_id, debt.partition, (debt.key,), [Matches(debt.key, {"tries": debt.tries})], [patch])


def debt_struck(debt: Delivery, change_id: str) -> Changes:
    """Nothing is owed any more."""
    return _upkeep(change_id, debt.partition, (debt.key,), (), [Delete(debt.key)])


def debt_refused(debt: Delivery, note: bytes) -> Changes:
    """Its target refuses it for good: it is struck off, and its sender keeps the note. Refused if the sender is gone,
    or somebody else has struck it off."""
    source = execution_key(debt.namespace, debt.source)
    event = Event(
        namespace=debt.namespace,
        execution=debt.source,
        name=UNDELIVERED,
        dedup=debt.id,
        value=note,
        consumed=True,
        sent_at=Now(),
        change_id=f"{debt.id}/undelivered",
    )
    guards = [Matches(source, {"id": debt.source}), Matches(debt.key, {"change_id": debt.change_id})]
    return _upkeep(event.change_id, debt.partition, (source, debt.key), guards, [Insert(event), Delete(debt.key)])


# ---- what goes ----------------------------------------------------------------------------------------------------


def same_life(seen: Execution) -> Guard:
    """It was neither opened again since it was seen, nor purged and started anew."""
    return Matches(seen.key, {"generation": seen.generation, "created_at": settled(seen.created_at)})


def not_purged(seen: Execution) -> Guard:
    """It was not purged since it was seen: what belongs to it is not of another execution of that id."""
    return Matches(seen.key, {"created_at": settled(seen.created_at)})


def gone(partition: int, anchor: Key, guard: Guard, keys: Sequence[Key], change_id: str) -> Changes:
    """Records that nobody needs any more go, as long as the guard says that they are those that were meant."""
    return _upkeep(change_id, partition, (anchor,), [guard], [Delete(key) for key in keys])


def purged_from_now(partition: int, seen: Execution, flow_as_seen: Guard, change_id: str) -> Changes:
    """A member that has ended goes by its own retention, which is over."""
    guards = [Matches(seen.key, {"status": seen.status, "generation": seen.generation}), flow_as_seen]
    return _upkeep(change_id, partition, (seen.key,), guards, [Patch(seen.key, {"purge_at": Now()})])


def update_withdrawn(partition: int, update: Event, change_id: str) -> Changes:
    """Nobody shall accept it later, should its execution be opened again. Refused if somebody has accepted it."""
    anchor = execution_key(update.namespace, update.execution)
    return _upkeep(change_id, partition, (anchor,), [Matches(update.key, {"consumed": False})], [Delete(update.key)])


# ---- repairs and copies -------------------------------------------------------------------------------------------


def repaired(partition: int, seen: Execution, writes: Sequence[Write], change_id: str) -> Changes:
    """The tags and the completion of an execution are written or deleted, as long as it is what was seen."""
    same = Matches(seen.key, {"change_id": seen.change_id, "epoch": seen.epoch})
    return _upkeep(change_id, partition, (seen.key,), [same], writes)


def copied(partition: int, anchor: Key, records: Sequence[Record], change_id: str) -> Changes:
    """Records of another store, as they are there: new here."""
    for record in records:
        if isinstance(record, Execution):
            check(record)
    return _upkeep(change_id, partition, (anchor,), (), [Insert(record) for record in records])


def copy_noted(partition: int, write: Put | Delete, change_id: str) -> Changes:
    """Where an unfinished copy stands, which is the copy's own."""
    key = write.key if isinstance(write, Delete) else write.record.key
    return _upkeep(change_id, partition, (key,), (), [write])


def copy_finished(partition: int, execution: Execution, copier: str, change_id: str) -> Changes:
    """An execution that the copy held while its frames came is what it is in the other store."""
    check(execution)
    fields = {name: getattr(execution, name) for name in execution.__struct_fields__ if name not in execution.KEY}
    return Changes(
        id=change_id,
        partition=partition,
        anchors=(execution.key,),
        guards=(Matches(execution.key, {"worker": copier}),),
        writes=(Patch(execution.key, fields),),
    )
