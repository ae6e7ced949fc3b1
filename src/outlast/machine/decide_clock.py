"""What time made true. Each answer re-checks its time under the lock: a reconciler's stale list harms nothing.

A lost lease and a timed-out attempt can't race: one is guarded by "the session lapsed", the other by "it lives".
"""

from __future__ import annotations

from msgspec import structs

from outlast import limits
from outlast.machine import facts
from outlast.machine.backoff import delay_ms
from outlast.machine.changes import (
    HOME,
    Changes,
    Code,
    GoneOrPast,
    Guard,
    Matches,
    Patch,
    Refusal,
    TimeAhead,
    TimeReached,
    View,
    Write,
)
from outlast.machine.claiming import attempt_begun, claim_fields
from outlast.machine.decide_holder import told_to_unwind, try_again, unwind_first
from outlast.machine.guards_and_writes import (
    Fields,
    as_seen,
    changes,
    claim_gates,
    crashes_after,
    ended,
    ends_wait,
    held_and_heard,
    inbox_record,
    key_of,
    nothing_to_undo,
    rings_for,
    runnable,
)
from outlast.model import event
from outlast.model.attempt import Outcome
from outlast.model.execution import Execution
from outlast.model.journal import NOTHING
from outlast.model.operation import ENDED_BY_TIME
from outlast.model.record import Key
from outlast.model.session import session_key
from outlast.model.status import TIMED_REASONS, Reason, Status


def wake(view: View, execution: Execution, fact: facts.Wake) -> Changes | Refusal:
    """A timed cause must be due by the store's clock; any other must be one that it waits for."""
    waits = execution.waits_for
    timed = fact.cause in TIMED_REASONS and execution.wake_at is not None
    if not timed and fact.cause not in waits:
        awaited = ", ".join(waits) or execution.reason
        return Refusal(Code.NOT_DUE, f"waits for {awaited}, not for {fact.cause}")
    guards: list[Guard] = [as_seen(execution)]
    if timed:
        guards.append(TimeReached(key_of(execution), "wake_at"))
    fields: Fields = {**runnable(execution), "change_id": fact.change_id}
    writes: list[Write] = [Patch(key_of(execution), fields)]
    if timed:
        writes += ends_wait(execution, fact, None, ENDED_BY_TIME, value=NOTHING)
    if fact.worker is not None and fields["status"] is Status.READY:
        return _wake_claimed(view, execution, fact, fact.worker, guards, fields)
    return changes(view, execution, fact, guards, writes, *rings_for(execution, fields["status"]))


def _wake_claimed(
    view: View, execution: Execution, fact: facts.Wake, worker: str, guards: list[Guard], woken: Fields
) -> Changes:
    """Wake and claim in one commit: the records of both, and the gates of a claim as guards."""
    ready = structs.replace(execution, **woken)
    claim = facts.Claim(change_id=fact.change_id, worker=worker)
    writes = [Patch(key_of(execution), {**woken, **claim_fields(ready, claim)}), attempt_begun(ready, claim)]
    return changes(view, execution, fact, [*guards, *claim_gates(view, ready, worker)], writes)


def time_out(view: View, execution: Execution, fact: facts.TimeOut) -> Changes | Refusal:
    if execution.attempt_deadline_at is None:
        return Refusal(Code.NOT_DUE, "its attempts have no timeout")
    guards: tuple[Guard, ...] = (
        TimeReached(execution.key, "attempt_deadline_at"),
        TimeAhead(_session(view, execution), "expires_at"),
    )
    failures = execution.failures + 1
    policy = execution.retry_policy
    if failures < policy.max_attempts:
        wait_ms = delay_ms(policy, failures, fact.jitter)
        return try_again(view, execution, fact, Outcome.TIMED_OUT, wait_ms=wait_ms, guards=guards)
    if execution.unwinds and failures < policy.max_attempts + limits.UNWIND_FAILURES_MAX:
        return unwind_first(view, execution, fact, Outcome.TIMED_OUT, cause="attempt_timeout", guards=guards)
    writes = ended(
        view,
        execution,
        fact,
        Status.EXPIRED,
        cause=execution.expires_for or "attempt_timeout",
        outcome=Outcome.TIMED_OUT,
        counted={"failures": failures},
    )
    fence = [held_and_heard(execution, execution.inbox), *guards, *_no_undo_since(execution)]
    return changes(view, execution, fact, fence, writes, HOME)


def _no_undo_since(execution: Execution) -> tuple[Guard, ...]:
    """Its holder may register one until the moment that it is taken from it."""
    return () if execution.unwinds else (nothing_to_undo(execution),)


def _no_progress_since(execution: Execution) -> tuple[Guard, ...]:
    """The first step after a crash resets the counter, and moves neither the epoch nor the inbox."""
    crashes = execution.crashes_since_progress
    return (Matches(key_of(execution), {"crashes_since_progress": crashes}),) if crashes else ()


def lease_lost(view: View, execution: Execution, fact: facts.LeaseLost) -> Changes:
    """A crash is no failure of the user's code. It is counted apart, since the last progress and in all, each up to a
    cap of its own."""
    guards: tuple[Guard, ...] = (GoneOrPast(_session(view, execution), "expires_at"), *_no_progress_since(execution))
    past_cap = execution.crashes_since_progress + 1 - execution.crash_cap
    past_life_cap = execution.crashes + 1 - execution.life_crash_cap
    past = max(past_cap, past_life_cap)
    if past < 0:
        return try_again(view, execution, fact, Outcome.INTERRUPTED, guards=guards)
    cause = "crashes" if past_cap >= 0 else "crashes_in_life"
    if execution.unwinds and past < limits.UNWIND_CRASHES_MAX:
        return unwind_first(view, execution, fact, Outcome.INTERRUPTED, cause=cause, guards=guards)
    writes = ended(
        view,
        execution,
        fact,
        Status.EXPIRED,
        cause=execution.expires_for or cause,
        outcome=Outcome.INTERRUPTED,
        counted=crashes_after(execution),
    )
    fence = [held_and_heard(execution, execution.inbox), *guards, *_no_undo_since(execution)]
    return changes(view, execution, fact, fence, writes, HOME)


def deadline_passed(view: View, execution: Execution, fact: facts.DeadlinePassed) -> Changes | Refusal:
    if execution.deadline_at is None:
        return Refusal(Code.NOT_DUE, "has no deadline")
    if execution.unwinds:
        return _unwind_at_deadline(view, execution, fact)
    writes = ended(view, execution, fact, Status.EXPIRED, cause="deadline", outcome=Outcome.TIMED_OUT)
    guards: list[Guard] = [as_seen(execution), TimeReached(execution.key, "deadline_at")]
    return changes(view, execution, fact, guards, writes, HOME)


def _unwind_at_deadline(view: View, execution: Execution, fact: facts.DeadlinePassed) -> Changes:
    """Its code may still run to undo what it did: it is told as by a cancel, and expires when that is done."""
    fields: Fields = {**told_to_unwind(execution, "deadline"), "deadline_at": None}
    status: object = execution.status
    if status is not Status.ACTIVE and not execution.cancel_requested:
        fields = {**runnable(execution), **fields, "change_id": fact.change_id}
        status = fields["status"]
    writes: list[Write] = [Patch(execution.key, fields), *inbox_record(execution, fact, event.DEADLINE)]
    guards: list[Guard] = [as_seen(execution), TimeReached(execution.key, "deadline_at")]
    return changes(view, execution, fact, guards, writes, *rings_for(execution, status))


def skip(view: View, execution: Execution, fact: facts.Skip) -> Changes | Refusal:
    if Reason.DEPENDENCIES not in execution.waits_for:
        return Refusal(Code.NOT_ALLOWED, f"waits for {execution.reason}, not for dependencies")
    writes = ended(view, execution, fact, Status.SKIPPED, cause=fact.cause, outcome=Outcome.CANCELLED)
    return changes(view, execution, fact, [as_seen(execution)], writes, HOME)


def _session(view: View, execution: Execution) -> Key:
    assert execution.worker is not None
    return session_key(view.partition, execution.worker)
