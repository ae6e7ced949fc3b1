"""Starting: a new execution, the same one again, or a new generation of one that has ended."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from outlast.machine import facts
from outlast.machine.changes import (
    Absent,
    Ahead,
    Changes,
    Code,
    Delete,
    Guard,
    Insert,
    Patch,
    Put,
    Refusal,
    View,
    Write,
    lane_channel,
)
from outlast.machine.decide_holder import attempt_begun, claim_fields
from outlast.machine.parts import Fields, as_seen, changes, inbox_record
from outlast.model import event
from outlast.model.execution import Execution, route_of
from outlast.model.lane import lane_key
from outlast.model.payload import Payload, Role
from outlast.model.record import Now
from outlast.model.retry import RetryPolicy
from outlast.model.session import session_key
from outlast.model.status import Reason, Status
from outlast.model.tag import Tag, tag_key

_encoder = msgspec.json.Encoder(order="sorted")
# The same few of every workflow, asked for with each of its starts.
_route = lru_cache(maxsize=10_000)(route_of)
_encoded = lru_cache(maxsize=10_000)(RetryPolicy.encode)

RESTARTED = (
    "workflow",
    "version",
    "signature",
    "lane",
    "route",
    "quota",
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
    "retention_ms",
)
"""What a restart takes from the new start; identity, epoch and inbox go on."""

REOPENED: Fields = {
    "cause": None,
    "finished_at": None,
    "purge_at": None,
    "attempt": 1,
    "attempt_open": False,
    "failures": 0,
    "crashes": 0,
    "ran_ms": 0,
    "cancel_requested": False,
    "unwinds": False,
    "resumed": False,
}
"""What every new generation begins with."""


def start(view: View, fact: facts.Start) -> Changes | Refusal:
    existing = view.execution
    if existing is None:
        return _new(view, fact)
    if fact.if_exists == "restart" and existing.status.terminal:
        return _restart(view, existing, fact)
    if fact.if_exists == "restart":
        return Refusal(Code.CONFLICT, f"is {existing.status}: it can be restarted once it has ended")
    same = existing.input_digest == fact.input_digest and existing.workflow == fact.workflow
    if same and fact.if_exists != "error":
        return Refusal(Code.ALREADY, f"was started before and is {existing.status}")
    if same:
        return Refusal(Code.CONFLICT, f"exists and is {existing.status}")
    return Refusal(Code.CONFLICT, f"exists with other arguments and is {existing.status}")


def _new(view: View, fact: facts.Start) -> Changes:
    execution = _execution(fact)
    writes: list[Write] = [Insert(execution), Insert(_input(fact, generation=1)), *_tags(fact)]
    if fact.worker is not None:
        return _claimed(view, execution, fact, fact.worker, writes)
    rings = (lane_channel(fact.namespace, fact.lane),) if execution.status is Status.READY else ()
    return changes(view, execution, fact, [], writes, *rings)


def _claimed(view: View, execution: Execution, fact: facts.Start, worker: str, writes: list[Write]) -> Changes:
    """Start and claim in one: the records of both, and the gates that a claim would ask, as guards. If one of them is
    shut, the start is made anew without the claim."""
    claim = facts.Claim(change_id=fact.change_id, worker=worker)
    held = msgspec.structs.replace(execution, **claim_fields(execution, claim))
    gates: list[Guard] = [
        Ahead(session_key(view.partition, worker), "expires_at"),
        Absent(lane_key(view.partition, fact.namespace, fact.lane)),
    ]
    return changes(view, execution, fact, gates, [Insert(held), *writes[1:], attempt_begun(execution, claim)])


def _restart(view: View, existing: Execution, fact: facts.Start) -> Changes:
    generation = existing.generation + 1
    fresh = _execution(fact)
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
        Insert(_input(fact, generation=generation)),
        *[Delete(tag_key(fact.namespace, fact.id, tag)) for tag in dropped],
        *_tags(fact),
        *inbox_record(existing, fact, event.RESTART),
    ]
    rings = (lane_channel(fact.namespace, fact.lane),) if fresh.status is Status.READY else ()
    return changes(view, existing, fact, [as_seen(existing)], writes, *rings)


def _execution(fact: facts.Start) -> Execution:
    blocked_on = Reason.DEPENDENCIES if fact.after_dependencies else Reason.DELAY if fact.delay_ms else None
    return Execution(
        namespace=fact.namespace,
        id=fact.id,
        workflow=fact.workflow,
        version=fact.version,
        signature=fact.signature,
        lane=fact.lane,
        route=_route(fact.workflow, fact.version, fact.requires, fact.quota),
        parent=fact.parent,
        flow=fact.flow,
        quota=fact.quota,
        tags=_encoder.encode(fact.tags).decode() if fact.tags else "{}",
        input_digest=fact.input_digest,
        status=Status.BLOCKED if blocked_on else Status.READY,
        reason=blocked_on,
        waits=blocked_on or "",
        epoch=fact.first_epoch,
        priority=fact.priority,
        ready_at=None if blocked_on else Now(),
        wake_at=Now(fact.delay_ms) if blocked_on == Reason.DELAY else None,
        deadline_at=None if fact.deadline_ms is None else Now(fact.deadline_ms),
        timeout_ms=fact.timeout_ms,
        deadline_ms=fact.deadline_ms,
        retry=_encoded(fact.retry),
        crash_cap=fact.crash_cap,
        retention_ms=fact.retention_ms,
        created_at=Now(),
        change_id=fact.change_id,
    )


def _input(fact: facts.Start, *, generation: int) -> Payload:
    return Payload(
        namespace=fact.namespace,
        execution=fact.id,
        generation=generation,
        role=Role.INPUT,
        value=fact.input,
        change_id=fact.change_id,
    )


def _tags(fact: facts.Start) -> list[Write]:
    return [
        Put(Tag(namespace=fact.namespace, execution=fact.id, tag=tag, value=value)) for tag, value in fact.tags.items()
    ]
