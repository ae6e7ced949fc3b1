"""Records as programs read them: stable keys, times as ISO 8601 in UTC, values as JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from outlast.client.info import moment, moment_or_none
from outlast.client.views.words import failure, plain
from outlast.model import event as names
from outlast.model.attempt import Attempt
from outlast.model.child import ChildEnd
from outlast.model.event import Event, answers_start
from outlast.model.journal import JournalEntry
from outlast.model.names import RESERVED_PREFIX
from outlast.model.record import settled
from outlast.runtime.attempts.asked import ACCEPTED, answer_in, question_in


class FailureDocument(Struct, frozen=True, kw_only=True):
    """A stored failure. One that the app's codec sealed has no type; `value` says how long it is."""

    type: str | None
    message: str | None
    traceback: str | None
    value: Any = UNSET


class AttemptDocument(Struct, frozen=True, kw_only=True):
    generation: int
    number: int
    epoch: int
    worker: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    failure: FailureDocument | None


class JournalDocument(Struct, frozen=True, kw_only=True):
    op: str
    scope: str
    name: str
    occurrence: int
    outcome: str
    tries: int
    epoch: int
    recorded_at: datetime
    value: Any


class EventDocument(Struct, frozen=True, kw_only=True):
    name: str
    sent_at: datetime
    consumed: bool
    value: Any


class UpdateDocument(Struct, frozen=True, kw_only=True):
    """The value of an update: what was asked; once it is taken, what was answered."""

    update: str
    value: Any = UNSET
    outcome: str | UnsetType = UNSET
    answer: Any = UNSET
    failure: FailureDocument | UnsetType | None = UNSET


class EndDocument(Struct, frozen=True, kw_only=True):
    """The value of the event that tells a parent how its child ended. `started` is false of the answer to a start that
    started nothing, because the id was taken: then `cause` says by whom."""

    started: bool
    status: str | None
    cause: str | None
    value: Any


def failure_document(data: bytes | None) -> FailureDocument | None:
    if data is None:
        return None
    found = failure(data)
    if found is None:
        return FailureDocument(type=None, message=None, traceback=None, value=plain(data))
    return FailureDocument(type=found.type, message=found.message, traceback=found.traceback)


def attempt_document(attempt: Attempt) -> AttemptDocument:
    return AttemptDocument(
        generation=attempt.generation,
        number=attempt.number,
        epoch=attempt.epoch,
        worker=attempt.worker,
        started_at=moment(settled(attempt.started_at)),
        ended_at=moment_or_none(settled(attempt.ended_at)),
        outcome=attempt.outcome,
        failure=failure_document(attempt.failure),
    )


def journal_document(entry: JournalEntry) -> JournalDocument:
    return JournalDocument(
        op=entry.op,
        scope=entry.scope,
        name=entry.name,
        occurrence=entry.occurrence,
        outcome=entry.outcome,
        tries=entry.tries,
        epoch=entry.epoch,
        recorded_at=moment(settled(entry.recorded_at)),
        value=plain(entry.value),
    )


def event_document(event: Event) -> EventDocument:
    return EventDocument(
        name=event.name, sent_at=moment(settled(event.sent_at)), consumed=event.consumed, value=event_value(event)
    )


def event_value(event: Event) -> Any:
    """A user's event carries JSON. The engine's own carry an update, the end of a child, the refusal of a message, or
    plain text: the reason of a cancel, for example."""
    if event.value is None or not event.name.startswith(RESERVED_PREFIX) or event.name == names.UNDELIVERED:
        return plain(event.value)
    if event.name == names.UPDATE:
        return update_document(event)
    if event.name.startswith(names.ended_name("")):
        return end_document(event)
    return event.value.decode("utf-8", errors="replace")


def update_document(event: Event) -> UpdateDocument:
    answer = answer_in(event)
    if answer is None:
        asked = question_in(event)
        return UpdateDocument(update=asked.name, value=plain(asked.value))
    if answer.outcome == ACCEPTED:
        return UpdateDocument(update=answer.name, outcome=answer.outcome, answer=plain(answer.value))
    return UpdateDocument(update=answer.name, outcome=answer.outcome, failure=failure_document(answer.value))


def end_document(event: Event) -> EndDocument:
    end = ChildEnd.decode(event.value or b"")
    if answers_start(event):
        return EndDocument(started=False, status=None, cause=end.cause, value=None)
    return EndDocument(started=True, status=end.status, cause=end.cause, value=plain(end.value))
