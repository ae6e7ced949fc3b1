"""Every kind of record that a store keeps, by name."""

from __future__ import annotations

from outlast.model.attempt import Attempt
from outlast.model.completion import Completion
from outlast.model.deferred import Deferred
from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.flow import Edge, EdgeAnswer, Flow, Member, Summary
from outlast.model.journal import JournalEntry
from outlast.model.lane import Lane
from outlast.model.outbox import Delivery
from outlast.model.payload import Payload
from outlast.model.record import Record
from outlast.model.session import Session
from outlast.model.tag import Tag

KINDS: dict[str, type[Record]] = {
    kind.KIND: kind
    for kind in (
        Execution,
        Payload,
        Attempt,
        JournalEntry,
        Event,
        Deferred,
        Completion,
        Session,
        Delivery,
        Lane,
        Flow,
        Summary,
        Member,
        Edge,
        EdgeAnswer,
        Tag,
    )
}

OF_EXECUTION: tuple[type[Record], ...] = (
    Payload,
    Attempt,
    JournalEntry,
    Event,
    Deferred,
    Completion,
    Member,
    Edge,
    EdgeAnswer,
    Tag,
)
"""The kinds that belong to one execution and are purged with it: (namespace, execution) begins their key."""
