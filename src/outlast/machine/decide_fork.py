"""Forking: a new execution whose journal begins with what another one recorded."""

from __future__ import annotations

import msgspec
from msgspec import structs

from outlast.machine import facts
from outlast.machine.changes import Changes, Code, Insert, Put, Refusal, View, Write, lane_channel
from outlast.machine.decide_start import REOPENED
from outlast.machine.guards_and_writes import LEASE_GONE, Fields, changes
from outlast.model.execution import Execution, suspect_route
from outlast.model.journal import ORIGIN, PATCH, SUCCEEDED, JournalEntry, Origin
from outlast.model.payload import Payload, Role
from outlast.model.record import Now
from outlast.model.status import Status
from outlast.model.tag import Tag


def fork(view: View, fact: facts.Fork) -> Changes | Refusal:
    """All in one commit: nobody can claim it before its journal is complete."""
    existing = view.execution
    if existing is not None:
        return Refusal(Code.CONFLICT, f"exists and is {existing.status}: fork into another id")
    execution = _execution(fact)
    writes: list[Write] = [Insert(execution), Insert(_input(fact))]
    for entry in fact.journal:
        writes.append(Insert(structs.replace(entry, execution=fact.id, generation=1, change_id=fact.change_id)))
    seen = [entry for entry in fact.journal if entry.op != PATCH]
    if seen and seen[-1].op != ORIGIN:
        writes.append(Insert(_origin(fact)))
    writes += [
        Put(Tag(namespace=execution.namespace, execution=fact.id, tag=tag, value=value))
        for tag, value in execution.tag_map.items()
    ]
    return changes(view, execution, fact, [], writes, lane_channel(execution.namespace, execution.lane))


def _execution(fact: facts.Fork) -> Execution:
    """As it was started, on its own: it is nobody's child. Its second generation reads the journal of the first."""
    source = fact.source
    fields: Fields = {
        **LEASE_GONE,
        **REOPENED,
        "id": fact.id,
        "parent": None,
        "flow": None,
        "route": suspect_route(source.route, suspect=False),
        "status": Status.READY,
        "reason": None,
        "waits": "",
        "awaits": "",
        "held": False,
        # The journal goes on, and with it the undo that its steps registered.
        "unwinds": source.unwinds,
        "generation": 2,
        "journal_generation": 1,
        "epoch": 0,
        "inbox": 0,
        "ready_at": Now(),
        "wake_at": None,
        "deadline_at": None if source.deadline_ms is None else Now(source.deadline_ms),
        "created_at": Now(),
        "change_id": fact.change_id,
    }
    return structs.replace(source, **fields)


def _origin(fact: facts.Fork) -> JournalEntry:
    """Behind what the source recorded. What it had kept itself, if it is a fork, is another one's."""
    source = fact.source
    return JournalEntry(
        namespace=source.namespace,
        execution=fact.id,
        generation=1,
        scope="",
        name="outlast:origin",
        occurrence=1 + sum(entry.op == ORIGIN for entry in fact.journal),
        op=ORIGIN,
        outcome=SUCCEEDED,
        value=msgspec.json.encode(Origin(source.id, source.journal_generation, fact.began_at)),
        epoch=0,
        position=fact.journal[-1].position + 1,
        recorded_at=Now(),
        change_id=fact.change_id,
    )


def _input(fact: facts.Fork) -> Payload:
    return Payload(
        namespace=fact.source.namespace,
        execution=fact.id,
        generation=1,
        role=Role.INPUT,
        value=fact.input,
        change_id=fact.change_id,
    )
