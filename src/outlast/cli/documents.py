"""What programs read with --json: stable keys, times as ISO 8601 in UTC."""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.cli.words import failure, plain
from outlast.client.info import Info, moment, moment_or_none
from outlast.model.attempt import Attempt
from outlast.model.event import UPDATE, Event
from outlast.model.journal import JournalEntry
from outlast.model.record import settled
from outlast.runtime.attempts.asked import ACCEPTED, answer_in, question_in


def execution_document(info: Info) -> dict[str, Any]:
    return msgspec.structs.asdict(info)


def attempt_document(attempt: Attempt) -> dict[str, Any]:
    return {
        "generation": attempt.generation,
        "number": attempt.number,
        "epoch": attempt.epoch,
        "worker": attempt.worker,
        "started_at": moment(settled(attempt.started_at)),
        "ended_at": moment_or_none(settled(attempt.ended_at)),
        "outcome": attempt.outcome,
        "failure": failure_document(attempt.failure),
    }


def journal_document(entry: JournalEntry) -> dict[str, Any]:
    return {
        "op": entry.op,
        "scope": entry.scope,
        "name": entry.name,
        "occurrence": entry.occurrence,
        "outcome": entry.outcome,
        "tries": entry.tries,
        "epoch": entry.epoch,
        "recorded_at": moment(settled(entry.recorded_at)),
        "value": plain(entry.value),
    }


def event_document(event: Event) -> dict[str, Any]:
    return {
        "name": event.name,
        "sent_at": moment(settled(event.sent_at)),
        "consumed": event.consumed,
        "value": event_value(event),
    }


def event_value(event: Event) -> Any:
    """The engine's own events carry plain text (a cancel's reason); a user's carry JSON."""
    if event.value is None or not event.name.startswith("outlast:"):
        return plain(event.value)
    if event.name == UPDATE:
        return update_document(event)
    return event.value.decode("utf-8", errors="replace")


def update_document(event: Event) -> dict[str, Any]:
    """What was asked; once it is taken, what was answered."""
    answer = answer_in(event)
    if answer is None:
        asked = question_in(event)
        return {"update": asked.name, "value": plain(asked.value)}
    if answer.outcome == ACCEPTED:
        return {"update": answer.name, "outcome": answer.outcome, "answer": plain(answer.value)}
    return {"update": answer.name, "outcome": answer.outcome, "failure": failure_document(answer.value)}


def failure_document(data: bytes | None) -> dict[str, Any] | None:
    if data is None:
        return None
    found = failure(data)
    if found is None:
        return {"type": None, "message": None, "traceback": None, "value": plain(data)}
    return {"type": found.type, "message": found.message, "traceback": found.traceback}
