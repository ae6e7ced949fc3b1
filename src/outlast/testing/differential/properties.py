"""What must hold whatever happens, checked on all records after each operation.

The oracle shares the machine with the engine, so it cannot notice a rule that the machine itself breaks. These can:
they know nothing of decisions, only what a user was promised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from outlast.machine import facts
from outlast.machine.changes import Changes
from outlast.model.attempt import Attempt, attempt_key
from outlast.model.completion import Completion, completion_key
from outlast.model.deferred import Deferred
from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.journal import JournalEntry
from outlast.model.record import Key, Record, Time, settled
from outlast.model.session import Session, session_key
from outlast.model.status import TIMED_REASONS, Reason, Status

Records = Mapping[Key, Record]
RAW = "raw"
"""Names records that the test itself wrote, past the machine: nothing was promised about them."""
R = TypeVar("R", bound=Record)


class Broken(AssertionError):
    """A promise of the engine does not hold."""


def check_promises(records: Records) -> None:
    """The promises about one moment."""
    broken = [
        *_ends(records),
        *_attempts(records),
        *_waits(records),
    ]
    if broken:
        raise Broken("; ".join(broken))


def check_step(before: Records, after: Records) -> None:
    """The promises about what one operation may do to what was there."""
    broken = [text for e in _all(before, Execution) for text in _moved(e, after.get(e.key))]
    for key, record in before.items():
        insert_only = isinstance(record, JournalEntry | Completion | Deferred) and RAW not in key.values
        if insert_only and after.get(key, record) != record:
            broken.append(f"{key} is insert-only and was changed")
    if broken:
        raise Broken("; ".join(broken))


def check_due(fact: facts.AnyFact, changes: Changes, before: Records, now: int) -> None:
    """What a fact says that time made true was true when it was applied."""
    e = before.get(changes.anchors[0])
    if not isinstance(e, Execution):
        return
    session = before.get(session_key(changes.partition, e.worker or ""))
    lives = isinstance(session, Session) and _later(session.expires_at, now)
    match fact:
        case facts.LeaseLost() if lives:
            raise Broken(f"{e.key} was taken from {e.worker}, whose session lives")
        case facts.TimeOut() if not lives or _later(e.attempt_deadline_at, now):
            raise Broken(f"{e.key} timed out at {now}, due at {e.attempt_deadline_at}, its session alive: {lives}")
        case facts.DeadlinePassed() if _later(e.deadline_at, now):
            raise Broken(f"{e.key} passed its deadline {e.deadline_at} at {now}")
        case facts.Wake(cause=cause) if cause in TIMED_REASONS and _later(e.wake_at, now):
            raise Broken(f"{e.key} woke at {now}, before {e.wake_at}")
        case _:
            pass


def check_cause(fact: facts.AnyFact, before: Record | None, after: Records) -> None:
    """A hold ends by a release, a cancel or an end, a cancel by an end: nothing else may undo what somebody asked."""
    e = None if before is None else after.get(before.key)
    if not isinstance(before, Execution) or not isinstance(e, Execution) or e.status.terminal:
        return
    if before.held and not e.held and not isinstance(fact, facts.Release | facts.CancelRequested):
        raise Broken(f"{type(fact).__name__} ended the hold of {e.key}")
    if before.cancel_requested and not e.cancel_requested and not before.status.terminal:
        raise Broken(f"{type(fact).__name__} undid the cancel of {e.key}")


def check_leases(records: Records, claims: Sequence[tuple[Key, int, str]]) -> None:
    """Nobody holds what they never claimed: (execution, epoch, worker)."""
    for e in _all(records, Execution):
        if e.worker is not None and (e.key, e.epoch, e.worker) not in claims:
            raise Broken(f"{e.key} is held by {e.worker} at epoch {e.epoch}, which never claimed it")


def _ends(records: Records) -> Iterator[str]:
    """Exactly the ended have a completion of their generation, and it says the same; the others have a reason."""
    for e in _all(records, Execution):
        completion = records.get(completion_key(e.namespace, e.id, e.generation))
        if e.status.terminal:
            if not isinstance(completion, Completion) or completion.status is not e.status:
                yield f"{e.key} is {e.status}, its completion is {completion}"
        elif completion is not None:
            yield f"{e.key} is {e.status} and has a completion: {completion}"
        elif e.reason is None and e.status not in (Status.READY, Status.ACTIVE):
            yield f"{e.key} is {e.status} without a reason"


def _attempts(records: Records) -> Iterator[str]:
    """At most one attempt is open: the one that the execution says. Each ended one has its outcome."""
    for attempt in _all(records, Attempt):
        if (attempt.ended_at is None) != (attempt.outcome is None):
            yield f"{attempt.key} ended at {attempt.ended_at} as {attempt.outcome}"
    ending = {a.key for a in _all(records, Attempt) if a.ended_at is None}
    for e in _all(records, Execution):
        if e.attempt_open:
            key = attempt_key(e.namespace, e.id, e.generation, e.attempt)
            if key not in ending:
                yield f"{e.key} has attempt {e.attempt} under way, but {key} is {records.get(key)}"
            ending.discard(key)
    yield from (f"{key} is open, but its execution does not run it" for key in ending)


def _waits(records: Records) -> Iterator[str]:
    """No lost wake-up: nobody sleeps on what has come, nobody sleeps through a cancel."""
    for e in _all(records, Execution):
        if e.cancel_requested and not e.status.terminal and e.status is not Status.ACTIVE and not e.unwinds:
            yield f"{e.key} is {e.status} although its cancel was requested and it has nothing to undo"
        if e.status is Status.SUSPENDED:
            come = arrived(records, e).intersection(e.waits_for)
            if come:
                yield f"{e.key} waits for {sorted(come)}, which came before"


def arrived(records: Records, e: Execution) -> frozenset[str]:
    """All that an execution could be waiting for and that has come: events not yet received, values resolved."""
    events = {
        Reason.event(event.name)
        for event in _all(records, Event)
        if (event.namespace, event.execution) == (e.namespace, e.id) and not event.consumed
    }
    resolved = [
        d.name
        for d in _all(records, Deferred)
        if (d.namespace, d.execution, d.generation) == (e.namespace, e.id, e.journal_generation)
    ]
    return frozenset(events | {Reason.deferred(name) for name in resolved})


def _moved(before: Execution, after: Record | None) -> Iterator[str]:
    """Fences and counters only grow, and an end stays an end, until a new generation opens."""
    if not isinstance(after, Execution):
        return
    if after.created_at != before.created_at:
        yield f"{before.key} was created at {before.created_at}, not at {after.created_at}"
    for field in ("epoch", "inbox", "generation"):
        if getattr(after, field) < getattr(before, field):
            yield f"{before.key}: {field} went back from {getattr(before, field)} to {getattr(after, field)}"
    if after.generation != before.generation:
        if not before.status.terminal:
            yield f"{before.key} opened a new generation while it was {before.status}"
        return
    if _begun(after) < _begun(before):
        yield f"{before.key}: {_begun(before)} attempts had begun, now {_begun(after)}"
    for field in ("failures", "crashes"):
        if getattr(after, field) < getattr(before, field):
            yield f"{before.key}: {field} went back from {getattr(before, field)} to {getattr(after, field)}"
    if before.status.terminal and (after.status, after.finished_at) != (before.status, before.finished_at):
        yield f"{before.key} was {before.status} and became {after.status} in the same generation"
    if after.epoch != before.epoch and after.status is before.status is Status.ACTIVE:
        yield f"{before.key} changed hands from epoch {before.epoch} to {after.epoch} without an end of the lease"


def _begun(e: Execution) -> int:
    return e.attempt if e.attempt_open or e.status.terminal else e.attempt - 1


def _later(time: Time | None, now: int) -> bool:
    return (settled(time) or 0) > now


def _all(records: Records, kind: type[R]) -> list[R]:
    return [record for record in records.values() if isinstance(record, kind)]
