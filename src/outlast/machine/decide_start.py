"""Starting: a new execution, the same one again, or a new generation of one that has ended."""

from __future__ import annotations

from outlast.errors import ExecutionConflict
from outlast.machine import facts
from outlast.machine.changes import (
    HOME,
    Add,
    Changes,
    Code,
    Delete,
    Insert,
    Patch,
    Refusal,
    Shape,
    View,
    Write,
)
from outlast.machine.claiming import new_attempt
from outlast.machine.guards_and_writes import (
    as_seen,
    changes,
    claim_gates,
    hears_without_waking,
    inbox_record,
    key_of,
    rings_for,
    runnable,
)
from outlast.machine.start_records import (
    REOPENED,
    beside,
    events_of,
    execution_of,
    held_of,
    input_of,
    rings_of,
    tags_of,
)
from outlast.model import event
from outlast.model.execution import Execution
from outlast.model.status import Reason, Status
from outlast.model.tag import tag_key

RESTARTED = (
    "workflow",
    "version",
    "signature",
    "lane",
    "route",
    "tags",
    "input_digest",
    "status",
    "reason",
    "waits",
    "wake_at",
    "ready_at",
    "deadline_at",
    "priority",
    "timeout_ms",
    "deadline_ms",
    "retry",
    "crash_cap",
    "life_crash_cap",
    "retention_ms",
)
"""What a restart takes from the new start; identity, epoch and inbox go on."""


def start(view: View, fact: facts.Start) -> Changes | Refusal:
    existing = view.execution
    if existing is None:
        return _new(view, fact)
    if fact.if_exists == "restart" and existing.status.terminal:
        return _restart(view, existing, fact)
    if fact.if_exists == "restart":
        return Refusal(Code.CONFLICT, f"is {existing.status}: it can be restarted once it has ended")
    same = existing.input_digest == fact.input_digest and existing.workflow == fact.workflow
    if same and fact.if_exists != "error" and fact.sends:
        return _sent_again(view, existing, fact)
    if same and fact.if_exists != "error":
        return Refusal(Code.ALREADY, f"was started before and is {existing.status}")
    if same:
        return Refusal(Code.CONFLICT, f"exists and is {existing.status}")
    return Refusal(Code.CONFLICT, f"exists with other arguments and is {existing.status}")


def conflict_with(existing: Execution, fact: facts.Start) -> ExecutionConflict | None:
    """What code is told that starts a child where another one is; None if it is the same one."""
    answer = start(View(0, existing), fact)
    if not isinstance(answer, Refusal) or answer.code is not Code.CONFLICT:
        return None
    there = f"{existing.workflow} ({existing.status})"
    return ExecutionConflict(fact.id, existing=there, given=f"{fact.workflow} here")


def _new(view: View, fact: facts.Start) -> Changes:
    if fact.worker is not None:
        return _claimed(view, fact, fact.worker)
    execution = execution_of(fact)
    return Changes(
        id=fact.change_id,
        partition=view.partition,
        anchors=(execution.key,),  # not remembered (`key_of`): nobody here decides about it soon
        writes=(Insert(execution), *beside(fact)),
        rings=rings_of(execution),
        shape=Shape.START,
    )


def _claimed(view: View, fact: facts.Start, worker: str) -> Changes:
    """Start and claim in one: the records of both, and the gates that a claim would ask, as guards. If one of them is
    shut, the start is made anew without the claim."""
    held = held_of(fact, worker)
    gates, attempt = claim_gates(view, held, worker), new_attempt(held, held.epoch, worker, fact.change_id)
    return Changes(
        id=fact.change_id,
        partition=view.partition,
        anchors=(key_of(held),),
        guards=gates,
        writes=(Insert(held), *beside(fact), attempt),
        shape=Shape.START,
    )


def _restart(view: View, existing: Execution, fact: facts.Start) -> Changes:
    generation = existing.generation + 1
    fresh = execution_of(fact)
    fields = {name: getattr(fresh, name) for name in RESTARTED}
    patch = Patch(
        existing.key,
        {
            **fields,
            **REOPENED,
            "generation": generation,
            "journal_generation": generation,
            "change_id": fact.change_id,
        },
    )
    dropped = [tag for tag in existing.tag_map if tag not in fact.tags]
    writes: list[Write] = [
        patch,
        Insert(input_of(fact, generation=generation)),
        *[Delete(tag_key(fact.namespace, fact.id, tag)) for tag in dropped],
        *tags_of(fact),
        *inbox_record(existing, fact, event.RESTART),
        *_sent(existing, fact),
    ]
    return changes(view, existing, fact, [as_seen(existing)], writes, *rings_of(fresh))


def _sent_again(view: View, existing: Execution, fact: facts.Start) -> Changes | Refusal:
    """It was started before: it only hears what is sent with this start, and is woken if it waits for that."""
    if existing.status.terminal:
        return Refusal(Code.TERMINAL, f"has ended: it is {existing.status}")
    wakes = [sent.name for sent in fact.sends if Reason.event(sent.name) in existing.waits_for]
    writes = _sent(existing, fact)
    if existing.status is not Status.SUSPENDED or not wakes:
        return changes(view, existing, fact, [hears_without_waking(existing)], writes, HOME)
    fields = {**runnable(existing), "change_id": fact.change_id}
    writes.append(Patch(existing.key, fields))
    return changes(view, existing, fact, [as_seen(existing)], writes, *rings_for(existing, fields["status"]))


def _sent(existing: Execution, fact: facts.Start) -> list[Write]:
    if not fact.sends:
        return []
    return [*events_of(fact), Add(existing.key, "inbox", len(fact.sends))]
