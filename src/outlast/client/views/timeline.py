"""What happened to an execution, in order: its start, attempts, recorded operations, messages from outside, its end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct

from outlast.client import info
from outlast.client.views.documents import AttemptDocument, end_document, event_value, update_document
from outlast.client.views.words import failure_line, line_of, moment, plain, shown
from outlast.machine import facts
from outlast.model import event as names
from outlast.model.attempt import Attempt
from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.journal import BEGAN, CANCELLED, FAILED, NOTHING, UNDO_SCOPE, JournalEntry, Origin
from outlast.model.names import INTERRUPT
from outlast.model.operation import OPERATIONS, Detail
from outlast.model.record import Time, settled
from outlast.model.status import Status
from outlast.runtime.outbox import Undelivered

ASKED = {
    names.CANCEL: "cancel asked for",
    names.HOLD: "hold asked for",
    names.RELEASE: "released",
    names.PRIORITY: "priority changed",
    names.DEADLINE: "deadline passed: told to undo",
    names.RETRY: "retry asked for",
    names.RESTART: "started anew",
}
SENT = {
    facts.EventSent.__name__: "event",
    facts.DeferredResolved.__name__: "resolution",
    facts.CancelRequested.__name__: "cancel",
}
"""What a refused message of the code was."""


class Row(Struct, frozen=True, kw_only=True):
    """One line of a timeline. `code` says what kind of thing happened, `what` says it in words; `tone` is the status
    or outcome that gives the line its colour, or `quiet`; `about` identifies the attempt, operation or event."""

    at: datetime
    code: str
    what: str
    outcome: str = ""
    tone: str = ""
    detail: str = ""
    about: dict[str, Any] = {}


class _Placed(NamedTuple):
    """`rank` orders the rows to which the store gave the same millisecond."""

    at: int
    rank: int
    row: Row


def _placed(at: Time | None, rank: int, code: str, what: str, **more: Any) -> _Placed:
    ms = settled(at) or 0
    return _Placed(ms, rank, Row(at=info.moment(ms), code=code, what=what, **more))


def timeline(
    e: Execution, attempts: list[Attempt], journal: list[JournalEntry], events: list[Event], now: int
) -> tuple[Row, ...]:
    several = len({attempt.generation for attempt in attempts}) > 1
    begun = {settled(attempt.started_at) for attempt in attempts}
    rows = [_placed(e.created_at, 0, "started", "started", detail=f"lane {e.lane}", about={"lane": e.lane})]
    for attempt in attempts:
        rows += _attempt(attempt, begun, several=several)
    rows += [_recorded(entry, now) for entry in journal]
    rows += [_heard(event) for event in events]
    if e.status.terminal:
        detail = "" if e.status is Status.SUCCEEDED or e.cause in (None, e.status) else str(e.cause)
        about = {"cause": e.cause}
        ended = {"outcome": e.status, "tone": e.status, "detail": detail, "about": about}
        rows.append(_placed(e.finished_at, 5, "ended", "ended", **ended))
    rows.sort(key=lambda one: (one.at, one.rank))  # stable: the journal keeps its own order
    return tuple(one.row for one in rows)


def label(attempt: Attempt | AttemptDocument, *, several: bool) -> str:
    """The number of an attempt; after a retry or restart, with the generation before it."""
    return f"{attempt.generation}.{attempt.number}" if several else str(attempt.number)


def _attempt(attempt: Attempt, begun: set[int | None], *, several: bool) -> list[_Placed]:
    name, started = f"attempt {label(attempt, several=several)}", settled(attempt.started_at) or 0
    about = {"generation": attempt.generation, "number": attempt.number, "worker": attempt.worker}
    rows = [_placed(started, 2, "attempt", f"{name} on {attempt.worker}", about=about)]
    if attempt.ended_at is not None and attempt.outcome is not None:
        at, outcome = settled(attempt.ended_at) or 0, attempt.outcome
        # One that lasted has ended before the next began; but one of no length began first.
        rank = 1 if at in begun and at > started else 4
        how = {"outcome": outcome, "tone": outcome, "detail": failure_line(attempt.failure), "about": about}
        rows.append(_placed(at, rank, "attempt_ended", f"{name} ended", **how))
    return rows


# ---- the journal --------------------------------------------------------------------------------------------------


def _recorded(entry: JournalEntry, now: int) -> _Placed:
    """What the table of operations says about its word."""
    about = {"scope": entry.scope, "name": entry.name, "occurrence": entry.occurrence, "tries": entry.tries}
    operation = OPERATIONS[entry.op]
    title = operation.title.format(name=entry.name)
    if operation.beside:
        what = _named(title, *_call_beside(entry))
    elif entry.scope == UNDO_SCOPE:
        what = _named(f"undo {entry.name}", entry.occurrence, "")
    elif operation.called and not operation.unbidden:
        what = _named("interrupt" if entry.name == INTERRUPT else title, entry.occurrence, entry.scope.rstrip("!"))
    else:
        what = title
    return _placed(entry.recorded_at, 3, entry.op, what, about=about, **_DETAILS[operation.detail](entry, now))


_Said: TypeAlias = dict[str, str]
"""The outcome, tone and detail of a row."""


def _outcome(entry: JournalEntry, now: int) -> _Said:
    if entry.outcome == FAILED:
        value = failure_line(entry.value)
    elif entry.value == NOTHING:
        value = ""
    else:
        value = shown(entry.value)
    tries = f"try {entry.tries}: " if entry.tries > 1 else ""
    outcome = "given up" if entry.outcome == CANCELLED else entry.outcome
    return {"outcome": outcome, "tone": entry.outcome, "detail": f"{tries}{value}"}


def _started(entry: JournalEntry, now: int) -> _Said:
    """With the id of the child or flow, if it was started."""
    value = plain(entry.value)
    said = _outcome(entry, now)
    return (
        said | {"detail": str(cast("dict[str, Any]", value)["id"])}
        if isinstance(value, dict) and "id" in value
        else said
    )


def _next_try(entry: JournalEntry, now: int) -> _Said:
    """A failed try stands beside its step, with the time of the next one."""
    again = f"again from {_time_in(entry, now)}"
    return {"outcome": f"try {entry.occurrence} failed", "tone": CANCELLED, "detail": again}


def _limit(entry: JournalEntry, now: int) -> _Said:
    return {"outcome": BEGAN, "tone": "quiet", "detail": f"until {_time_in(entry, now)}"}


def _noted(entry: JournalEntry, now: int) -> _Said:
    return {"outcome": "noted", "tone": "quiet", "detail": shown(entry.value)}


def _failure(entry: JournalEntry, now: int) -> _Said:
    return {"detail": failure_line(entry.value)}


def _source(entry: JournalEntry, now: int) -> _Said:
    return {"detail": f"from {msgspec.json.decode(entry.value or b'', type=Origin).id}"}


def _nothing(entry: JournalEntry, now: int) -> _Said:
    return {}


_DETAILS: dict[Detail, Callable[[JournalEntry, int], _Said]] = {
    Detail.OUTCOME: _outcome,
    Detail.STARTED: _started,
    Detail.NEXT_TRY: _next_try,
    Detail.LIMIT: _limit,
    Detail.NOTED: _noted,
    Detail.FAILURE: _failure,
    Detail.SOURCE: _source,
    Detail.NOTHING: _nothing,
}


def _call_beside(entry: JournalEntry) -> tuple[int, str]:
    """The occurrence and the scope of the call beside which an entry stands."""
    scope, _, call = entry.scope.rpartition("~")
    return int(call) if call.isdecimal() else 1, scope


def _time_in(entry: JournalEntry, now: int) -> str:
    try:
        return moment(msgspec.json.decode(entry.value or b"", type=int), now=now)
    except msgspec.MsgspecError:
        return shown(entry.value)


def _named(what: str, occurrence: int, scope: str) -> str:
    call = f" #{occurrence}" if occurrence > 1 else ""
    branch = f" in branch {scope.rstrip('.')}" if scope else ""
    return f"{what}{call}{branch}"


# ---- events -------------------------------------------------------------------------------------------------------


def _heard(event: Event) -> _Placed:
    what, code, more = _event(event)
    return _placed(event.sent_at, 1, code, what, about={"name": event.name, "consumed": event.consumed}, **more)


def _event(event: Event) -> tuple[str, str, dict[str, str]]:
    """The words and the code of an event, and its outcome, tone and detail."""
    if event.name in ASKED:
        return ASKED[event.name], "asked", {"detail": str(event_value(event) or "")}
    if event.name == names.UPDATE and event.value is not None:
        told = update_document(event)
        outcome = "waits to be accepted" if told.outcome is UNSET else told.outcome
        said = told.value if told.answer is UNSET else told.answer
        detail = str(told.failure.message) if told.failure else line_of(said)
        return f"update {told.update}", "update_asked", {"outcome": outcome, "tone": "quiet", "detail": detail}
    if event.name == names.UNDELIVERED:
        note = msgspec.json.decode(event.value or b"", type=Undelivered)
        how = {"outcome": "refused", "tone": "failed", "detail": note.message}
        return f"{SENT.get(note.fact, note.fact)} to {note.target}", "undelivered", how
    if event.name.startswith(names.ended_name("")):
        return _end_of_child(event)
    outcome = "received" if event.consumed else "waits to be received"
    return f"event {event.name}", "event", {"outcome": outcome, "tone": "quiet", "detail": shown(event.value)}


def _end_of_child(event: Event) -> tuple[str, str, dict[str, str]]:
    child = event.name.removeprefix(names.ended_name(""))
    is_flow, child = child.endswith("/"), child.removesuffix("/")
    if names.answers_start(event):
        how = {"outcome": "not started", "tone": "failed", "detail": f"it {end_document(event).cause}"}
        return f"start of {'flow ' if is_flow else ''}{child}", "not_started", how
    return f"{'flow' if is_flow else 'child'} {child} ended", "child_ended", {}
