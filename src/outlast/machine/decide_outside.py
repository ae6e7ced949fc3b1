"""What anybody may say at any time: each write leaves an inbox record and never touches the holder's fields."""

from __future__ import annotations

from outlast.machine import facts
from outlast.machine.changes import (
    HOME,
    Add,
    Changes,
    Code,
    Delete,
    Guard,
    Insert,
    Matches,
    Patch,
    Refusal,
    TimeAhead,
    View,
    Write,
)
from outlast.machine.guards_and_writes import (
    Fields,
    as_seen,
    changes,
    ended,
    ends_wait,
    hears_without_waking,
    inbox_record,
    rings_for,
    runnable,
    superseded,
)
from outlast.machine.start_records import REOPENED
from outlast.model import event
from outlast.model.attempt import Outcome
from outlast.model.child import ChildEnd
from outlast.model.deferred import Deferred, Resolution
from outlast.model.execution import Execution, suspect_route
from outlast.model.journal import CHILD, DEFERRED, FAILED, RECEIVE, SUCCEEDED
from outlast.model.payload import Payload, Role
from outlast.model.record import Now
from outlast.model.status import Reason, Status


def cancel_requested(view: View, execution: Execution, fact: facts.CancelRequested) -> Changes | Refusal:
    """At once if no code runs and nothing must be undone; otherwise the code is told, and unwinds.

    A cancel ends a hold, also of what was told before, by a deadline for example: otherwise nothing would be undone
    until an operator remembers it."""
    if fact.child_of not in (None, execution.parent):
        return Refusal(Code.NOT_ALLOWED, f"is not a child of {fact.child_of!r}")
    if execution.cancel_requested and not execution.held:
        return Refusal(Code.ALREADY, "its cancel was requested before")
    inbox = inbox_record(execution, fact, event.CANCEL, fact.reason.encode())
    if execution.status is Status.ACTIVE:
        fields: Fields = {"cancel_requested": True}
        if execution.held:
            fields["held"] = False
        writes: list[Write] = [Patch(execution.key, fields), *inbox]
        return changes(view, execution, fact, [as_seen(execution)], writes, HOME)
    if execution.unwinds:
        fields = {
            **runnable(execution, held=False),
            "cancel_requested": True,
            "change_id": fact.change_id,
        }
        writes = [Patch(execution.key, fields), *inbox]
        return changes(view, execution, fact, [as_seen(execution)], writes, *rings_for(execution, Status.READY))
    writes = ended(
        view,
        execution,
        fact,
        Status.CANCELLED,
        cause="cancelled",
        outcome=Outcome.CANCELLED,
        counted={"cancel_requested": True},
    )
    return changes(view, execution, fact, [as_seen(execution)], [*writes, *inbox], HOME)


def hold(view: View, execution: Execution, fact: facts.Hold) -> Changes | Refusal:
    if execution.held:
        return Refusal(Code.ALREADY, "is held")
    fields: Fields = {"held": True}
    if execution.status is Status.READY:
        fields |= {"status": Status.BLOCKED, "reason": Reason.OPERATOR, "ready_at": None}
    elif execution.status is Status.BLOCKED:
        fields |= {"reason": Reason.OPERATOR}
    writes: list[Write] = [Patch(execution.key, fields), *inbox_record(execution, fact, event.HOLD)]
    return changes(view, execution, fact, [as_seen(execution)], writes, HOME)


def release(view: View, execution: Execution, fact: facts.Release) -> Changes | Refusal:
    if not execution.held:
        return Refusal(Code.ALREADY, "is not held")
    fields: Fields = {"held": False}
    status = execution.status
    if status is Status.BLOCKED and execution.waits:
        fields |= {"reason": execution.waits}
    elif status is Status.BLOCKED:
        status = Status.READY
        fields |= {"status": status, "reason": None, "ready_at": Now()}
    writes: list[Write] = [Patch(execution.key, fields), *inbox_record(execution, fact, event.RELEASE)]
    return changes(view, execution, fact, [as_seen(execution)], writes, *rings_for(execution, status))


def retry(view: View, execution: Execution, fact: facts.Retry) -> Changes | Refusal:
    """A new generation on the same journal: what was recorded is not run again, but for the failure that escaped."""
    if execution.flow is not None and not fact.with_flow:
        return Refusal(Code.NOT_ALLOWED, f"is a member of flow {execution.flow!r}, and is retried with it")
    if fact.seen_epoch not in (None, execution.epoch):
        return Refusal(Code.CONFLICT, "has run again since it was looked at")
    has_begun = execution.unwinds and fact.anew is None
    waits = Reason.DEPENDENCIES if execution.status is Status.SKIPPED or (fact.waits_again and not has_begun) else ""
    fields: Fields = {
        **runnable(execution, waits=waits),
        **REOPENED,
        # The journal goes on, and with it the undo that its steps registered.
        "unwinds": execution.unwinds,
        "generation": execution.generation + 1,
        "route": suspect_route(execution.route, suspect=False),
        "deadline_at": None if execution.deadline_ms is None else Now(execution.deadline_ms),
        "change_id": fact.change_id,
    }
    if fact.anew is not None:
        # What it did is taken back: it begins as if it had never run.
        fields |= {"unwinds": False, "journal_generation": execution.generation + 1}
    writes: list[Write] = [Patch(execution.key, fields), *inbox_record(execution, fact, event.RETRY)]
    if fact.anew is not None:
        writes.append(_begins_with(execution, fact, fact.anew))
    writes += superseded(execution, fact.supersedes)
    return changes(view, execution, fact, [as_seen(execution)], writes, *rings_for(execution, fields["status"]))


def _begins_with(execution: Execution, fact: facts.Retry, value: bytes) -> Write:
    return Insert(
        Payload(
            namespace=execution.namespace,
            execution=execution.id,
            generation=execution.generation + 1,
            role=Role.INPUT,
            value=value,
            change_id=fact.change_id,
        )
    )


def supersede(view: View, execution: Execution, fact: facts.Supersede) -> Changes:
    """Nothing but the entries changes, and only while it is what the sender saw: nobody records any meanwhile."""
    same = Matches(
        execution.key,
        {"status": execution.status, "epoch": execution.epoch, "generation": execution.generation},
    )
    return changes(view, execution, fact, [same], superseded(execution, fact.entries))


def event_sent(view: View, execution: Execution, fact: facts.EventSent, now: int) -> Changes | Refusal:
    """An update that nobody would take is refused: code that sleeps without listening has no answer to it. An event
    that suspended code waits for, and nothing else, is received in the commit that sends it."""
    listens = {Reason.event(event.UPDATE), Reason.VERSION}.intersection(execution.waits_for)
    if fact.name == event.UPDATE and execution.status is Status.SUSPENDED and not listens:
        return Refusal(Code.NOT_ALLOWED, "takes no updates where it waits now")
    received = _meets(execution, fact, now, fact.name, RECEIVE, value=fact.value)
    if received:
        # Kept, marked: it goes on deduplicating.
        writes = inbox_record(execution, fact, fact.name, None, fact.dedup, consumed=True)
    else:
        writes = inbox_record(execution, fact, fact.name, fact.value, fact.dedup)
    return _message(view, execution, fact, Reason.event(fact.name), writes, received)


def deferred_resolved(view: View, execution: Execution, fact: facts.DeferredResolved, now: int) -> Changes:
    """First resolution wins: the record is insert-only, and the store's verdict shows the one that stands."""
    writes = _resolved(execution, fact, fact.name, fact.resolution, fact.value)
    outcome = FAILED if fact.resolution is Resolution.REJECTED else SUCCEEDED
    found = _meets(execution, fact, now, fact.name, DEFERRED, outcome=outcome, value=fact.value)
    return _message(view, execution, fact, Reason.deferred(fact.name), writes, found)


def child_completed(view: View, execution: Execution, fact: facts.ChildCompleted, now: int) -> Changes:
    """How it ended is an event, one for each of its generations that did: it outlives this execution's own. What is
    not a success may be tried again before anybody looks, and an answer to a start does not say what it came to: these
    are left to the holder."""
    end = ChildEnd(status=fact.status, cause=fact.cause, value=fact.value)
    dedup = str(fact.generation) if fact.generation else fact.change_id
    writes = inbox_record(execution, fact, event.ended_name(fact.child), end.encode(), dedup)
    writes.append(Delete(event.event_key(execution.namespace, execution.id, event.CHILD, fact.child)))
    found: list[Write] = []
    if fact.status is Status.SUCCEEDED and fact.value is not None:
        found = _meets(execution, fact, now, fact.child, CHILD, value=fact.value)
    return _message(view, execution, fact, Reason.child(fact.child), writes, found)


def _meets(
    execution: Execution, fact: facts.Fact, now: int, name: str, op: str, *, outcome: str = SUCCEEDED, value: bytes
) -> list[Write]:
    """The end of a wait, if this meets it. If the wait is over, and only nobody has said so, it does not: what comes
    now stays for the next one."""
    if isinstance(execution.wake_at, int) and execution.wake_at <= now:
        return []
    return ends_wait(execution, fact, name, (op,), outcome=outcome, value=value)


def _resolved(
    execution: Execution, fact: facts.Fact, name: str, resolution: Resolution, value: bytes | None
) -> list[Write]:
    deferred = Deferred(
        namespace=execution.namespace,
        execution=execution.id,
        generation=execution.journal_generation,
        name=name,
        resolution=resolution,
        value=value,
        resolved_at=Now(),
        change_id=fact.change_id,
    )
    return [Insert(deferred), Add(execution.key, "inbox", 1)]


def _message(
    view: View, execution: Execution, fact: facts.Fact, wait: str, writes: list[Write], found: list[Write]
) -> Changes:
    """The record, and the wake-up if this is what the code waits for, with its outcome if that is plain: one commit, so
    none is without the others. A message that wakes nobody commutes with all others, and with what the holder does."""
    if execution.status is not Status.SUSPENDED or wait not in execution.waits_for:
        return changes(view, execution, fact, [hears_without_waking(execution)], writes, HOME)
    guards: list[Guard] = [as_seen(execution)]
    fields = {**runnable(execution), "change_id": fact.change_id}
    writes = [*writes, Patch(execution.key, fields), *found]
    if found and execution.wake_at is not None:
        guards.append(TimeAhead(execution.key, "wake_at"))
    return changes(view, execution, fact, guards, writes, *rings_for(execution, fields["status"]))
