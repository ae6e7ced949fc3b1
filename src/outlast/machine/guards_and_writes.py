"""The pieces that decisions are made of: guards that pin what was decided upon, and the writes that belong together."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import lru_cache

from outlast.machine import facts
from outlast.machine.changes import (
    HOME,
    Absent,
    Add,
    Changes,
    Delete,
    Guard,
    Insert,
    Matches,
    Patch,
    TimeAhead,
    View,
    Write,
    lane_channel,
)
from outlast.model.attempt import Outcome, attempt_key
from outlast.model.completion import Completion
from outlast.model.event import Event
from outlast.model.execution import WAITS_SEPARATOR, Execution, execution_key
from outlast.model.journal import SUCCEEDED, Awaited, JournalEntry
from outlast.model.lane import lane_key
from outlast.model.outbox import Delivery
from outlast.model.payload import Payload, Role
from outlast.model.record import NOW, Key, Now, Plain, settled
from outlast.model.session import session_key
from outlast.model.status import Reason, Status

Fields = dict[str, Plain | Now]

_ACTIVE, _SUCCEEDED = Status.ACTIVE, Status.SUCCEEDED
_OUTPUT, _FAILURE = Role.OUTPUT, Role.FAILURE


def changes(
    view: View,
    execution: Execution,
    fact: facts.Fact,
    guards: Sequence[Guard],
    writes: Sequence[Write],
    *rings: str,
) -> Changes:
    """The answer: one change anchored at the execution."""
    return Changes(
        id=fact.change_id,
        partition=view.partition,
        anchors=(key_of(execution),),
        guards=tuple(guards),
        writes=tuple(writes),
        rings=rings,
    )


_key = lru_cache(maxsize=1_000)(execution_key)


def key_of(execution: Execution) -> Key:
    """`execution.key`, remembered: every decision about an execution asks for it again, some of them often."""
    return _key(execution.namespace, execution.id)


# ---- guards -------------------------------------------------------------------------------------------------------


def as_seen(execution: Execution) -> Matches:
    """Everything that a decision from outside may depend on; `inbox` is not among it, so outside writes commute."""
    return Matches(
        key_of(execution),
        {
            "status": execution.status,
            "epoch": execution.epoch,
            "generation": execution.generation,
            "waits": execution.waits,
            "held": execution.held,
            "unwinds": execution.unwinds,
            "has_children": execution.has_children,
            "cancel_requested": execution.cancel_requested,
        },
    )


def hears_without_waking(execution: Execution) -> Matches:
    """All that a message depends on which wakes nobody: its target has not ended, waits for what it waited for, and is
    in the same journal. Neither the epoch nor the status is among it: others may claim and suspend meanwhile."""
    return Matches(
        key_of(execution),
        {"waits": execution.waits, "journal_generation": execution.journal_generation, "finished_at": None},
    )


def held_by(execution: Execution) -> Matches:
    """The fence of every write by a holder: same epoch, still active. A zombie's write is refused here."""
    return _fence(execution.namespace, execution.id, execution.epoch)


@lru_cache(maxsize=1_000)
def _fence(namespace: str, execution_id: str, epoch: int) -> Matches:
    """One for all that an attempt writes."""
    return Matches(_key(namespace, execution_id), {"status": _ACTIVE, "epoch": epoch})


def held_to_the_end(execution: Execution) -> Matches:
    """The fence of an end by its holder: nobody may be left behind."""
    return Matches(
        key_of(execution),
        {"status": _ACTIVE, "epoch": execution.epoch, "has_children": execution.has_children},
    )


def held_and_heard(execution: Execution, inbox: int) -> Matches:
    """… and nothing came from outside that the decision has not taken into account: no wake-up and no child is lost."""
    return Matches(
        key_of(execution),
        {
            "status": Status.ACTIVE,
            "epoch": execution.epoch,
            "inbox": inbox,
            "has_children": execution.has_children,
        },
    )


def claim_gates(view: View, execution: Execution, worker: str) -> tuple[Guard, ...]:
    """What a claim would ask beside the execution itself, of one that is claimed in the commit that makes it ready."""
    return _gates(view.partition, execution.namespace, execution.lane, worker)


@lru_cache(maxsize=10_000)
def _gates(partition: int, namespace: str, lane: str, worker: str) -> tuple[Guard, ...]:
    return (
        TimeAhead(session_key(partition, worker), "expires_at"),
        Absent(lane_key(partition, namespace, lane)),
    )


def nothing_to_undo(execution: Execution) -> Matches:
    """A cancel may end it at once: no step has registered an undo (steps do not move `inbox`)."""
    return Matches(key_of(execution), {"unwinds": False})


# ---- writes -------------------------------------------------------------------------------------------------------


def ran_so_far(execution: Execution, now: int) -> int:
    """How long the attempt has run in all, suspensions excluded."""
    claimed_at = settled(execution.claimed_at)
    return execution.ran_ms + (max(0, now - claimed_at) if claimed_at is not None else 0)


LEASE_GONE: Fields = {"worker": None, "claim_id": None, "claimed_at": None, "attempt_deadline_at": None}
WAIT_GONE: Fields = {"reason": None, "waits": "", "awaits": "", "wake_at": None, "ready_at": None}
"""An active execution has a lease and waits for nothing, all others have none: an end takes away what there is."""
_OVER: Fields = {"deadline_at": None, "resumed": False, "held": False, "attempt_open": False}
_OVER_HELD: Fields = {**LEASE_GONE, **_OVER}
_OVER_WAITING: Fields = {**WAIT_GONE, **_OVER}


def runnable(execution: Execution, *, after_ms: int = 0, waits: str = "", held: bool | None = None) -> Fields:
    """The fields of an execution that may run again: at once, after a delay, or when its hold ends."""
    held = execution.held if held is None else held
    blocked_on = waits if after_ms or waits == Reason.DEPENDENCIES else ""
    fields: Fields = {
        # Claimed before, in this generation: epochs do not begin at zero.
        "resumed": execution.attempt_open or execution.attempt > 1,
        "held": held,
    }
    # What it does not have is not written: every index that it names costs.
    active = execution.status is Status.ACTIVE
    if active:
        fields |= LEASE_GONE
    if not active or blocked_on:
        fields["waits"] = blocked_on
    if execution.wake_at is not None or after_ms:
        fields["wake_at"] = Now(after_ms) if after_ms else None
    if execution.awaits:
        fields["awaits"] = ""
    if held or blocked_on:
        reason = Reason.OPERATOR if held else blocked_on
        return {**fields, "status": Status.BLOCKED, "reason": reason, "ready_at": None}
    return {**fields, "status": Status.READY, "reason": None, "ready_at": NOW}


def ends_wait(
    execution: Execution,
    fact: facts.Fact,
    name: str | None,
    ops: Container[str],
    *,
    outcome: str = SUCCEEDED,
    value: bytes | None,
) -> list[Write]:
    """The outcome of the one operation that suspended code awaits, recorded by what ends the wait: whoever claims it
    finds it in the journal, and need not write it down before the code goes on. Nothing, if the code awaits something
    else (any name, if None), or more than one thing: which one it takes then is for its holder to see."""
    if not execution.awaits:
        return []
    awaited = Awaited.decode(execution.awaits)
    if awaited.op not in ops or name not in (None, awaited.name):
        return []
    entry = JournalEntry(
        namespace=execution.namespace,
        execution=execution.id,
        generation=execution.journal_generation,
        scope=awaited.scope,
        name=awaited.name,
        occurrence=awaited.occurrence,
        op=awaited.op,
        outcome=outcome,
        value=value,
        epoch=execution.epoch,
        position=awaited.position,
        recorded_at=NOW,
        change_id=fact.change_id,
    )
    return [Insert(entry)]


def next_attempt(execution: Execution, *, crashed: bool) -> Fields:
    """The counters after an attempt that ended without ending the execution."""
    counted: Fields = crashes_after(execution) if crashed else {"failures": execution.failures + 1}
    return {**counted, "attempt": execution.attempt + 1, "attempt_open": False, "ran_ms": 0}


def crashes_after(execution: Execution) -> Fields:
    """The counters of crashes after one more."""
    return {
        "crashes": execution.crashes + 1,
        "crashes_since_progress": execution.crashes_since_progress + 1,
        "crashes_since_suspension": execution.crashes_since_suspension + 1,
    }


def attempt_ended(
    execution: Execution, fact: facts.Fact, outcome: Outcome, failure: bytes | None = None
) -> list[Write]:
    """The end of the attempt's record, if one is open."""
    if not execution.attempt_open:
        return []
    key = attempt_key(execution.namespace, execution.id, execution.generation, execution.attempt)
    return [
        Patch(key, {"ended_at": NOW, "outcome": outcome, "failure": failure, "change_id": fact.change_id}),
    ]


def inbox_record(
    execution: Execution,
    fact: facts.Fact,
    name: str,
    value: bytes | None = None,
    dedup: str | None = None,
    *,
    consumed: bool = False,
) -> list[Write]:
    """What every outside write leaves: a record that makes it idempotent, and the bell on the doorstep."""
    event = Event(
        namespace=execution.namespace,
        execution=execution.id,
        name=name,
        dedup=fact.change_id if dedup is None else dedup,
        value=value,
        consumed=consumed,
        sent_at=NOW,
        change_id=fact.change_id,
    )
    return [Insert(event), Add(execution.key, "inbox", 1)]


def payload(execution: Execution, fact: facts.Fact, role: Role, value: bytes) -> Insert:
    return Insert(
        Payload(
            namespace=execution.namespace,
            execution=execution.id,
            generation=execution.generation,
            role=role,
            value=value,
            change_id=fact.change_id,
        )
    )


def ended(
    view: View,
    execution: Execution,
    fact: facts.Fact,
    status: Status,
    *,
    cause: str | None,
    outcome: Outcome,
    counted: Fields | None = None,
    value: bytes | None = None,
    hands_on: bool = False,
) -> list[Write]:
    """All that belongs to an end, in one commit: status, completion, output or failure, attempt, the word to the
    parent, and what is owed to the children and to the flow, unless it `hands_on` by itself."""
    fields = (_OVER_HELD if execution.status is _ACTIVE else _OVER_WAITING).copy()
    fields["status"] = status
    fields["cause"] = cause
    fields["attempt"] = execution.attempt if execution.attempt_open else execution.attempt - 1
    fields["finished_at"] = NOW
    fields["change_id"] = fact.change_id
    if counted:
        fields.update(counted)
    if execution.retention_ms is not None:
        fields["purge_at"] = Now(execution.retention_ms)
    completion = Completion(
        namespace=execution.namespace,
        execution=execution.id,
        generation=execution.generation,
        status=status,
        cause=cause,
        workflow=execution.workflow,
        tags=execution.tags,
        finished_at=NOW,
        change_id=fact.change_id,
    )
    writes: list[Write] = [Patch(key_of(execution), fields), Insert(completion)]
    succeeded = status is _SUCCEEDED
    writes += attempt_ended(execution, fact, outcome, None if succeeded else value)
    if value is not None:
        writes.append(payload(execution, fact, _OUTPUT if succeeded else _FAILURE, value))
    if execution.parent is not None:
        writes.append(word_to_parent(view, execution, fact, execution.parent, status, value, cause))
    if execution.flow is not None and not hands_on:
        ended_member = facts.MemberEnded(
            change_id=f"{fact.change_id}/{execution.id}/flow", status=status, generation=execution.generation
        )
        debt = owed(view, execution, fact, ended_member.change_id, execution.id, facts.encode_fact(ended_member))
        writes.append(debt)
    if execution.has_children:
        errand = facts.CloseChildren(change_id=f"{fact.change_id}/{execution.id}/children", reason=cause or status)
        writes.append(owed(view, execution, fact, errand.change_id, execution.id, facts.encode_fact(errand)))
    return writes


def word_to_parent(
    view: View,
    execution: Execution,
    fact: facts.Fact,
    parent: str,
    status: Status,
    value: bytes | None,
    cause: str | None,
) -> Insert:
    """The parent may live in another partition, so it learns of the end through the outbox."""
    told = facts.ChildCompleted(
        change_id=f"{fact.change_id}/{execution.id}/parent",
        child=execution.id,
        status=status,
        value=value,
        generation=execution.generation,
        cause=cause,
    )
    return owed(view, execution, fact, told.change_id, parent, facts.encode_fact(told))


def owed(view: View, execution: Execution, fact: facts.Fact, delivery_id: str, target: str, told: bytes) -> Insert:
    """What this commit owes to an execution, perhaps in another partition."""
    return Insert(
        Delivery(
            partition=view.partition,
            id=delivery_id,
            namespace=execution.namespace,
            target=target,
            source=execution.id,
            fact=told,
            due_at=NOW,
            created_at=NOW,
            change_id=fact.change_id,
        )
    )


# ---- rings --------------------------------------------------------------------------------------------------------


def rings_for(execution: Execution, status: object) -> tuple[str, ...]:
    """Who may want to look: workers of the lane when work becomes ready, everyone at home when anything ends."""
    if status is Status.READY:
        return (lane_channel(execution.namespace, execution.lane),)
    return (HOME,)


def joined(waits: tuple[str, ...]) -> str:
    return WAITS_SEPARATOR.join(waits)


def superseded(execution: Execution, entries: tuple[tuple[str, str, int], ...]) -> list[Write]:
    """Without its journal entry a step runs again; what it failed with stays in the attempt's record."""
    journal = (execution.namespace, execution.id, execution.journal_generation)
    return [Delete(Key("journal", (*journal, *entry))) for entry in entries]
