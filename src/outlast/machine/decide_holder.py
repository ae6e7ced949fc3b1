"""What the holder of the lease says: every answer is fenced by its epoch."""

from __future__ import annotations

from msgspec import structs

from outlast import limits
from outlast.machine import facts
from outlast.machine.backoff import delay_ms
from outlast.machine.changes import (
    ENDS,
    HOME,
    Changes,
    Code,
    Guard,
    Insert,
    Matches,
    Patch,
    Put,
    Refusal,
    Shape,
    View,
    Write,
)
from outlast.machine.claiming import attempt_begun, claim_fields
from outlast.machine.guards_and_writes import (
    LEASE_GONE,
    Fields,
    as_seen,
    attempt_ended,
    changes,
    crashes_after,
    ended,
    held_and_heard,
    held_by,
    held_to_the_end,
    joined,
    key_of,
    next_attempt,
    nothing_to_undo,
    owed,
    ran_so_far,
    rings_for,
    runnable,
    superseded,
)
from outlast.machine.start_records import REOPENED, new_execution
from outlast.model.attempt import Outcome
from outlast.model.deferred import Deferred, Resolution
from outlast.model.event import CHILD, UPDATE, Event, event_key
from outlast.model.execution import UNWINDING, Execution, ParentClose, execution_key, suspect_route
from outlast.model.journal import JournalEntry
from outlast.model.names import INTERRUPT
from outlast.model.payload import Payload, Role
from outlast.model.record import NOW
from outlast.model.status import Reason, Status

_SUCCEEDED = Status.SUCCEEDED
_ENDED_WELL = Outcome.SUCCEEDED
_ENDED = (ENDS,)
_END = Shape.END


def claim(view: View, execution: Execution, fact: facts.Claim) -> Changes:
    """The specification of the stores' native claim: they must write exactly this."""
    writes: list[Write] = [
        Patch(key_of(execution), claim_fields(execution, fact)),
        attempt_begun(execution, fact),
    ]
    return changes(view, execution, fact, [as_seen(execution)], writes)


def step_recorded(view: View, execution: Execution, fact: facts.StepRecorded) -> Changes | Refusal:
    """One insert: a step never rewrites the execution's row, but for the first undo that it registers, and for the
    first step after a crash, which resets the counter of crashes since the last progress."""
    if fact.entries >= limits.JOURNAL_MAX_ENTRIES:
        return Refusal(
            Code.LIMIT,
            f"its journal is full ({limits.JOURNAL_MAX_ENTRIES:,} entries): continue as new, or split the work",
        )
    entry = JournalEntry(
        namespace=execution.namespace,
        execution=execution.id,
        generation=execution.journal_generation,
        scope=fact.scope,
        name=fact.name,
        occurrence=fact.occurrence,
        op=fact.op,
        outcome=fact.outcome,
        value=fact.value,
        tries=fact.tries,
        epoch=fact.epoch,
        position=fact.entries,
        recorded_at=NOW,
        change_id=fact.change_id,
    )
    if fact.plain and not execution.crashes_since_progress:
        fence = held_by(execution)
        return Changes(
            id=fact.change_id,
            partition=view.partition,
            anchors=(fence.key,),
            guards=(fence,),
            writes=(Insert(entry),),
            shape=Shape.STEP,
        )
    return _step_and_more(view, execution, fact, entry)


def _step_and_more(view: View, execution: Execution, fact: facts.StepRecorded, entry: JournalEntry) -> Changes:
    """… with the event that it received, the undo that it registers, or what it does to others."""
    guards: list[Guard] = [held_by(execution)]
    writes: list[Write] = [Put(entry) if fact.corrects else Insert(entry)]
    fields: Fields = {}
    if fact.overtakes is not None:
        writes.append(Put(structs.replace(fact.overtakes, position=fact.entries + 1)))
    if fact.consumes is not None:
        received = event_key(execution.namespace, execution.id, *fact.consumes)
        guards.append(Matches(received, {"consumed": False}))
        # Kept, marked: it goes on deduplicating, its own send included if that is repeated after a lost reply.
        writes.append(Patch(received, {"consumed": True, "value": None}))
    if fact.unwinds and not execution.unwinds:
        fields["unwinds"] = True
    if execution.crashes_since_progress:
        fields["crashes_since_progress"] = 0
    if fact.adopts is not None:
        child, parent_close = fact.adopts
        writes.append(_adopted(execution, fact, child, parent_close))
        if not execution.has_children:
            fields["has_children"] = True
    if fields:
        writes.append(Patch(execution.key, fields))
    writes += [owed(view, execution, fact, tell.id, tell.target, tell.fact) for tell in fact.tells]
    if fact.starts is None:
        return changes(view, execution, fact, guards, writes)
    begun, rings = new_execution(fact.starts)
    return Changes(
        id=fact.change_id,
        partition=view.partition,
        anchors=(key_of(execution), execution_key(fact.starts.namespace, fact.starts.id)),
        guards=tuple(guards),
        writes=(*writes, *begun),
        rings=rings,
    )


def _adopted(execution: Execution, fact: facts.Fact, child: str, parent_close: ParentClose) -> Insert:
    return Insert(
        Event(
            namespace=execution.namespace,
            execution=execution.id,
            name=CHILD,
            dedup=child,
            value=parent_close.encode(),
            sent_at=NOW,
            change_id=fact.change_id,
        )
    )


def continue_as_new(view: View, execution: Execution, fact: facts.Continue) -> Changes | Refusal:
    """A new generation with a journal of its own, under the same id: events not yet received and open children stay,
    and so do an interrupt and the deadline, which are those of the whole. What the old generation leaves behind is
    dropped in the background, however much it is."""
    if fact.inbox is not None and fact.inbox < execution.inbox:
        return _look_again(execution, fact.inbox)
    fence: list[Guard] = [held_and_heard(execution, execution.inbox)]
    if execution.expires_for is not None:
        # Its time is over, and the code has nothing left to undo.
        writes = ended(view, execution, fact, Status.EXPIRED, cause=execution.expires_for, outcome=Outcome.CANCELLED)
        return changes(view, execution, fact, fence, writes, HOME)
    if execution.cancel_requested and not execution.unwinds:
        writes = ended(view, execution, fact, Status.CANCELLED, cause="cancelled", outcome=Outcome.CANCELLED)
        return changes(view, execution, fact, [*fence, nothing_to_undo(execution)], writes, HOME)
    generation = execution.generation + 1
    fields: Fields = {
        **runnable(execution),
        **REOPENED,
        "resumed": True,
        # Like a completion, it beats a cancel that the code has not observed; the next generation begins with it.
        "cancel_requested": execution.cancel_requested,
        "generation": generation,
        "journal_generation": generation,
        "route": suspect_route(execution.route, suspect=False),
        "change_id": fact.change_id,
    }
    begun = Payload(
        namespace=execution.namespace,
        execution=execution.id,
        generation=generation,
        role=Role.INPUT,
        value=fact.input,
        change_id=fact.change_id,
    )
    errand = facts.Forget(change_id=f"{fact.change_id}/forget", before=generation)
    writes: list[Write] = [
        Patch(execution.key, fields),
        Insert(begun),
        *attempt_ended(execution, fact, Outcome.SUCCEEDED),
        owed(view, execution, fact, errand.change_id, execution.id, facts.encode_fact(errand)),
    ]
    if fact.interrupt is not None:
        writes.append(_interrupted(execution, generation, fact, fact.interrupt))
    return changes(view, execution, fact, fence, writes, *rings_for(execution, fields["status"]))


def _interrupted(execution: Execution, generation: int, fact: facts.Fact, value: bytes) -> Insert:
    return Insert(
        Deferred(
            namespace=execution.namespace,
            execution=execution.id,
            generation=generation,
            name=INTERRUPT,
            resolution=Resolution.RESOLVED,
            value=value,
            resolved_at=NOW,
            change_id=fact.change_id,
        )
    )


def _look_again(execution: Execution, inbox: int) -> Refusal:
    return Refusal(Code.NOT_ALLOWED, f"has heard {execution.inbox} times from outside, not {inbox}: look again")


def answered(view: View, execution: Execution, fact: facts.Answered) -> Changes:
    """The answer takes the place of the question. Whoever waits for it may be anywhere: the partition rings."""
    asked = event_key(execution.namespace, execution.id, UPDATE, fact.dedup)
    guards: list[Guard] = [held_by(execution), Matches(asked, {"name": UPDATE})]
    writes: list[Write] = [Patch(asked, {"consumed": True, "value": fact.answer})]
    return changes(view, execution, fact, guards, writes, HOME)


def progressed(view: View, execution: Execution, fact: facts.Progressed) -> Changes:
    """A gauge beside the row, written over by the next one: there is nothing to repeat but the newest."""
    gauge = Payload(
        namespace=execution.namespace,
        execution=execution.id,
        generation=execution.generation,
        role=fact.role,
        value=fact.value,
        change_id=fact.change_id,
    )
    return changes(view, execution, fact, [held_by(execution)], [Put(gauge)])


def suspend(view: View, execution: Execution, fact: facts.Suspend, now: int) -> Changes | Refusal:
    """Guarded by `inbox`: what came from outside since the code last looked refuses it, so no wake-up is lost."""
    if fact.inbox < execution.inbox:
        return _look_again(execution, fact.inbox)
    fields: Fields = {
        **LEASE_GONE,
        "status": Status.SUSPENDED,
        "reason": fact.reason,
        "waits": joined(fact.waits),
        "wake_at": fact.wake_at,
        "ran_ms": ran_so_far(execution, now),
        "change_id": fact.change_id,
    }
    if execution.crashes_since_suspension:  # it got past the point at which it crashed
        fields["crashes_since_progress"] = fields["crashes_since_suspension"] = 0
        fields["route"] = suspect_route(execution.route, suspect=False)
    if fact.awaits is not None and fact.awaits.position < limits.JOURNAL_MAX_ENTRIES:
        fields["awaits"] = fact.awaits.encode()
    return changes(view, execution, fact, [held_and_heard(execution, fact.inbox)], [Patch(execution.key, fields)])


def complete(view: View, execution: Execution, fact: facts.Complete) -> Changes:
    """Not guarded by `inbox`: a completion beats a cancel that was not yet observed."""
    writes = ended(
        view, execution, fact, _SUCCEEDED, cause=None, outcome=_ENDED_WELL, value=fact.output, hands_on=fact.hands_on
    )
    fence = held_to_the_end(execution)
    return Changes(
        id=fact.change_id,
        partition=view.partition,
        anchors=(fence.key,),
        guards=(fence,),
        writes=tuple(writes),
        rings=_ENDED,
        shape=_END,
    )


def tries_again(execution: Execution, *, retryable: bool) -> bool:
    """Whether a failure of the attempt under way is followed by another attempt."""
    more = execution.failures + 1 < execution.retry_policy.max_attempts
    return retryable and more and execution.expires_for is None


def fail(view: View, execution: Execution, fact: facts.Fail) -> Changes:
    failures = execution.failures + 1
    expires_for = execution.expires_for
    if expires_for is not None:
        # Its time is over, and the code has answered with an error of its own: the undos have run.
        counted: Fields = {"failures": failures}
        writes = ended(
            view,
            execution,
            fact,
            Status.EXPIRED,
            cause=expires_for,
            outcome=Outcome.FAILED,
            counted=counted,
            value=fact.failure,
        )
        return changes(view, execution, fact, [held_and_heard(execution, execution.inbox)], writes, HOME)
    if tries_again(execution, retryable=fact.retryable):
        # What is cancelled is only tried again to undo what it did: that need not wait.
        wait_ms = 0 if execution.cancel_requested else delay_ms(execution.retry_policy, failures, fact.jitter)
        return try_again(view, execution, fact, Outcome.FAILED, wait_ms=wait_ms, failure=fact.failure)
    writes = ended(
        view,
        execution,
        fact,
        Status.FAILED,
        cause="failed",
        outcome=Outcome.FAILED,
        counted={"failures": failures},
        value=fact.failure,
    )
    return changes(view, execution, fact, [held_to_the_end(execution)], writes, ENDS)


def try_again(
    view: View,
    execution: Execution,
    fact: facts.Fail | facts.TimeOut | facts.LeaseLost,
    outcome: Outcome,
    *,
    wait_ms: int = 0,
    failure: bytes | None = None,
    guards: tuple[Guard, ...] = (),
) -> Changes:
    """The attempt ended, the execution goes on, unless somebody has asked to cancel it meanwhile."""
    crashed = outcome is Outcome.INTERRUPTED
    counted = next_attempt(execution, crashed=crashed)
    fence: list[Guard] = [held_and_heard(execution, execution.inbox), *guards]
    if execution.cancel_requested and not execution.unwinds:
        tally: Fields = crashes_after(execution) if crashed else {"failures": execution.failures + 1}
        writes = ended(
            view, execution, fact, Status.CANCELLED, cause="cancelled", outcome=outcome, counted=tally, value=failure
        )
        return changes(view, execution, fact, [*fence, nothing_to_undo(execution)], writes, HOME)
    cause = {Outcome.FAILED: "failed", Outcome.TIMED_OUT: "attempt_timeout"}.get(outcome, "lease_lost")
    fields: Fields = {
        **runnable(execution, after_ms=wait_ms, waits=Reason.RETRY),
        **counted,
        "cause": cause if execution.expires_for is None else execution.cause,
        "route": suspect_route(execution.route, suspect=_is_suspect(execution, crashed=crashed)),
        "change_id": fact.change_id,
    }
    writes = [Patch(execution.key, fields), *attempt_ended(execution, fact, outcome, failure)]
    if isinstance(fact, facts.Fail):
        writes += superseded(execution, fact.supersedes)
    return changes(view, execution, fact, fence, writes, *rings_for(execution, fields["status"]))


def unwind_first(
    view: View,
    execution: Execution,
    fact: facts.TimeOut | facts.LeaseLost,
    outcome: Outcome,
    *,
    cause: str,
    guards: tuple[Guard, ...],
) -> Changes:
    """It would end now, but has something to undo: one attempt more, whose code is told as by a cancel."""
    crashed = outcome is Outcome.INTERRUPTED
    fields: Fields = {
        **runnable(execution),
        **next_attempt(execution, crashed=crashed),
        **told_to_unwind(execution, cause),
        "route": suspect_route(execution.route, suspect=_is_suspect(execution, crashed=crashed)),
        "change_id": fact.change_id,
    }
    writes: list[Write] = [
        Patch(execution.key, fields),
        *attempt_ended(execution, fact, outcome),
    ]
    fence: list[Guard] = [held_and_heard(execution, execution.inbox), *guards]
    return changes(view, execution, fact, fence, writes, *rings_for(execution, fields["status"]))


def told_to_unwind(execution: Execution, cause: str) -> Fields:
    """Who was told first, by a person or by the clock, says how it ends."""
    if execution.cancel_requested:
        return {"cause": execution.cause}
    return {"cancel_requested": True, "cause": f"{UNWINDING}{cause}"}


def _is_suspect(execution: Execution, *, crashed: bool) -> bool:
    """It runs beside no other suspect until it is suspended. Recorded steps don't clear it: what records something in
    each attempt and then kills its process would take those along that run one long step meanwhile."""
    crashes = execution.crashes_since_suspension + int(crashed)
    return crashes * 2 > execution.crash_cap or crashes >= limits.SUSPECT_CRASHES


def cancelled(view: View, execution: Execution, fact: facts.Cancelled) -> Changes | Refusal:
    if not execution.cancel_requested:
        return Refusal(Code.NOT_ALLOWED, "nobody asked to cancel it")
    expires_for = execution.expires_for
    status, cause = (Status.CANCELLED, "cancelled") if expires_for is None else (Status.EXPIRED, expires_for)
    writes = ended(view, execution, fact, status, cause=cause, outcome=Outcome.CANCELLED)
    return changes(view, execution, fact, [held_to_the_end(execution)], writes, ENDS)


def hand_back(view: View, execution: Execution, fact: facts.HandBack, now: int) -> Changes:
    """The attempt stays open: whoever claims it next goes on with it."""
    fence: list[Guard] = [held_and_heard(execution, execution.inbox)]
    if execution.cancel_requested and not execution.unwinds:
        writes = ended(view, execution, fact, Status.CANCELLED, cause="cancelled", outcome=Outcome.CANCELLED)
        return changes(view, execution, fact, [*fence, nothing_to_undo(execution)], writes, HOME)
    fields: Fields = {
        **runnable(execution, after_ms=fact.wait_ms, waits=Reason.RETRY),
        "ran_ms": ran_so_far(execution, now),
        "change_id": fact.change_id,
    }
    if fact.wait_ms and execution.expires_for is None:
        fields["cause"] = "codec"
    return changes(
        view, execution, fact, fence, [Patch(execution.key, fields)], *rings_for(execution, fields["status"])
    )
