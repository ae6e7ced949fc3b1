"""What a start writes, wherever it is decided: by itself, with the journal of the parent that starts a child, or as a
new generation of what has ended."""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import structs

from outlast.machine import facts
from outlast.machine.changes import Insert, Put, Write, lane_channel
from outlast.machine.claiming import claim_fields
from outlast.machine.guards_and_writes import Fields
from outlast.model.event import Event
from outlast.model.execution import Execution, route_of
from outlast.model.payload import Payload, Role
from outlast.model.record import NOW, Now
from outlast.model.status import Reason, Status
from outlast.model.tag import Tag

_encoder = msgspec.json.Encoder(order="sorted")
_READY, _INPUT = Status.READY, Role.INPUT

_ALIKE = (
    "namespace",
    "workflow",
    "version",
    "signature",
    "lane",
    "requires",
    "timeout_ms",
    "retry",
    "crash_cap",
    "life_crash_cap",
)
"""What the starts of one workflow have in common."""
_alike = attrgetter(*_ALIKE)

REOPENED: Fields = {
    "cause": None,
    "finished_at": None,
    "purge_at": None,
    "attempt": 1,
    "attempt_open": False,
    "failures": 0,
    "crashes": 0,
    "crashes_since_progress": 0,
    "crashes_since_suspension": 0,
    "ran_ms": 0,
    "cancel_requested": False,
    "unwinds": False,
    "resumed": False,
}
"""What every new generation begins with."""


def new_execution(fact: facts.Start) -> tuple[list[Write], tuple[str, ...]]:
    """The records of an execution that did not exist, itself first, and who may want to look."""
    execution = execution_of(fact)
    return [Insert(execution), *beside(fact)], rings_of(execution)


def beside(fact: facts.Start) -> list[Write]:
    """What is new with a new execution."""
    writes: list[Write] = [Insert(input_of(fact, generation=1))]
    if fact.tags:
        writes += tags_of(fact)
    if fact.sends:
        writes += events_of(fact)
    return writes


def rings_of(execution: Execution) -> tuple[str, ...]:
    return (lane_channel(execution.namespace, execution.lane),) if execution.status is _READY else ()


def events_of(fact: facts.Start) -> list[Write]:
    """What is sent with the start."""
    return [
        Insert(
            Event(
                namespace=fact.namespace,
                execution=fact.id,
                name=sent.name,
                dedup=fact.change_id,
                value=sent.value,
                sent_at=NOW,
                change_id=fact.change_id,
            )
        )
        for sent in fact.sends
    ]


def execution_of(fact: facts.Start) -> Execution:
    """The execution as it begins, ready or blocked."""
    return _made(fact, _like(None, fact.blocked_on, *_alike(fact)))


def held_of(fact: facts.Start, worker: str) -> Execution:
    """… or held by the worker that starts it."""
    return _made(fact, _like(worker, None, *_alike(fact)))


def _made(fact: facts.Start, like: Execution) -> Execution:
    return structs.replace(
        like,
        id=fact.id,
        parent=fact.parent,
        flow=fact.flow,
        tags=_encoder.encode(fact.tags).decode() if fact.tags else "{}",
        input_digest=fact.input_digest,
        epoch=like.epoch + fact.first_epoch,
        inbox=len(fact.sends),
        priority=fact.priority,
        wake_at=Now(fact.delay_ms) if like.waits == Reason.DELAY else None,
        deadline_at=None if fact.deadline_ms is None else Now(fact.deadline_ms),
        deadline_ms=fact.deadline_ms,
        retention_ms=fact.retention_ms,
        claim_id=None if like.worker is None else fact.change_id,
        change_id=fact.change_id,
    )


@lru_cache(maxsize=1_000)
def _like(worker: str | None, blocked_on: str | None, *alike: Any) -> Execution:
    """What the executions that are started so have in common. Remembered: a workflow is started so again and again."""
    fact = facts.Start(change_id="", id="any", input=b"", input_digest="", **dict(zip(_ALIKE, alike, strict=True)))
    execution = Execution(
        namespace=fact.namespace,
        id=fact.id,
        workflow=fact.workflow,
        version=fact.version,
        signature=fact.signature,
        lane=fact.lane,
        route=route_of(fact.workflow, fact.version, fact.requires),
        input_digest=fact.input_digest,
        status=Status.BLOCKED if blocked_on else Status.READY,
        reason=blocked_on,
        waits=blocked_on or "",
        ready_at=None if blocked_on else NOW,
        timeout_ms=fact.timeout_ms,
        retry=fact.retry.encode(),
        crash_cap=fact.crash_cap,
        life_crash_cap=fact.life_crash_cap,
        created_at=NOW,
    )
    if worker is None:
        return execution
    return structs.replace(execution, **claim_fields(execution, facts.Claim(change_id="", worker=worker)))


def input_of(fact: facts.Start, *, generation: int) -> Payload:
    return Payload(
        namespace=fact.namespace,
        execution=fact.id,
        generation=generation,
        role=_INPUT,
        value=fact.input,
        change_id=fact.change_id,
    )


def tags_of(fact: facts.Start) -> list[Write]:
    return [
        Put(Tag(namespace=fact.namespace, execution=fact.id, tag=tag, value=value)) for tag, value in fact.tags.items()
    ]
