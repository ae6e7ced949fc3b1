"""What happened to an execution, in order: its start, attempts, recorded operations, words from outside, end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import msgspec

from outlast.cli.documents import event_value, update_document
from outlast.cli.words import duration, failure_line, local, moment, plain, shown
from outlast.model import event as names
from outlast.model.attempt import Attempt
from outlast.model.event import Event
from outlast.model.execution import Execution
from outlast.model.journal import ORIGIN, PATCH, UNDO_SCOPE, UNWIND, UPDATE, JournalEntry, Origin
from outlast.model.names import INTERRUPT
from outlast.model.record import Time, settled
from outlast.model.status import Status
from outlast.runtime.outbox import Undelivered

ASKED = {
    names.CANCEL: "cancel asked for",
    names.HOLD: "hold asked for",
    names.RELEASE: "released",
    names.DEADLINE: "deadline passed: told to undo",
    names.RETRY: "retry asked for",
    names.RESTART: "started anew",
}


@dataclass(frozen=True)
class Line:
    time: str
    after: str
    what: str
    outcome: str
    style: str
    detail: str


@dataclass(frozen=True)
class _Moment:
    """`rank` orders what the store gave the same millisecond."""

    at: int
    rank: int
    what: str
    outcome: str = ""
    style: str = ""
    detail: str = ""


def timeline(
    e: Execution, attempts: list[Attempt], journal: list[JournalEntry], events: list[Event], now: int
) -> list[Line]:
    moments = [_Moment(_ms(e.created_at), 0, "started", detail=f"lane {e.lane}")]
    several = len({attempt.generation for attempt in attempts}) > 1
    begun = {_ms(attempt.started_at) for attempt in attempts}
    for attempt in attempts:
        name = f"attempt {label(attempt, several=several)}"
        moments.append(_Moment(_ms(attempt.started_at), 2, f"{name} on {attempt.worker}"))
        if attempt.ended_at is not None and attempt.outcome is not None:
            at, outcome, detail = _ms(attempt.ended_at), attempt.outcome, failure_line(attempt.failure)
            # One that lasted has ended before the next began; but one of no length began first.
            rank = 1 if at in begun and at > _ms(attempt.started_at) else 4
            moments.append(_Moment(at, rank, f"{name} ended", outcome, outcome, detail))
    moments += [_recorded(entry, now) for entry in journal]
    moments += [_heard(event) for event in events]
    if e.status.terminal:
        moments.append(_ended(e))
    moments.sort(key=lambda one: (one.at, one.rank))  # stable: the journal keeps its own order
    return _lines(moments)


def label(attempt: Attempt, *, several: bool) -> str:
    """Its number; after a retry or restart, with the generation before it."""
    return f"{attempt.generation}.{attempt.number}" if several else str(attempt.number)


def _lines(moments: list[_Moment]) -> list[Line]:
    one_day = local(moments[0].at).date() == local(moments[-1].at).date()
    lines: list[Line] = []
    before = moments[0].at
    for one in moments:
        at = local(one.at)
        time = f"{at:%H:%M:%S}.{one.at % 1_000:03}" if one_day else f"{at:%Y-%m-%d %H:%M:%S}"
        after = f"+{duration(max(0, one.at - before))}" if lines else ""
        lines.append(Line(time, after, one.what, one.outcome, one.style, one.detail))
        before = one.at
    return lines


def _recorded(entry: JournalEntry, now: int) -> _Moment:
    at = _ms(entry.recorded_at)
    if entry.op == "retry":
        # A failed try is journaled beside its step, under SCOPE~CALL, with the time of the next one.
        scope, _, call = entry.scope.rpartition("~")
        what = _named(f"step {entry.name}", int(call) if call.isdecimal() else 1, scope)
        return _Moment(at, 3, what, f"try {entry.occurrence} failed", "cancelled", _again(entry.value, now))
    if entry.op == "wait":
        # How long an operation may wait is written beside it.
        scope, _, call = entry.scope.rpartition("~")
        what = _named(f"wait {entry.name}", int(call) if call.isdecimal() else 1, scope)
        return _Moment(at, 3, what, "began", "quiet", _until(entry.value, now))
    if entry.op == "cancel":
        return _Moment(at, 3, "cancel told to the code")
    if entry.op == ORIGIN:
        return _Moment(at, 3, f"forked from {msgspec.json.decode(entry.value or b'', type=Origin).id}")
    if entry.op == UPDATE:
        return _Moment(at, 3, f"update {entry.name} told to the code")
    if entry.op == PATCH:
        return _Moment(at, 3, "patches of its code", "noted", "quiet", shown(entry.value))
    if entry.op == UNWIND:
        return _Moment(at, 3, "undoing began", "", "", failure_line(entry.value) if entry.value else "")
    if entry.scope == UNDO_SCOPE:
        what = _named(f"undo {entry.name}", entry.occurrence, "")
    else:
        called = "interrupt" if entry.name == INTERRUPT else f"{entry.op} {entry.name}"
        what = _named(called, entry.occurrence, entry.scope.rstrip("!"))
    failed = entry.outcome == "failed"
    value = failure_line(entry.value) if failed else "" if entry.value == b"null" else _value(entry)
    tries = f"try {entry.tries}: " if entry.tries > 1 else ""
    outcome = "given up" if entry.outcome == "cancelled" else entry.outcome
    return _Moment(at, 3, what, outcome, entry.outcome, f"{tries}{value}")


def _value(entry: JournalEntry) -> str:
    value = plain(entry.value)
    if entry.op == "start" and isinstance(value, dict) and "id" in value:
        return str(cast("dict[str, Any]", value)["id"])
    return shown(entry.value)


def _again(value: bytes | None, now: int) -> str:
    try:
        return f"again from {moment(msgspec.json.decode(value or b'', type=int), now=now)}"
    except msgspec.MsgspecError:
        return shown(value)


def _until(value: bytes | None, now: int) -> str:
    try:
        return f"until {moment(msgspec.json.decode(value or b'', type=int), now=now)}"
    except msgspec.MsgspecError:
        return shown(value)


def _named(what: str, occurrence: int, scope: str) -> str:
    call = f" #{occurrence}" if occurrence > 1 else ""
    branch = f" in branch {scope.rstrip('.')}" if scope else ""
    return f"{what}{call}{branch}"


def _heard(event: Event) -> _Moment:
    asked = ASKED.get(event.name)
    value = event_value(event)
    if asked is not None:
        return _Moment(_ms(event.sent_at), 1, asked, "", "", str(value or ""))
    if event.name == names.UPDATE and event.value is not None:
        told = update_document(event)
        outcome = told.get("outcome", "waits to be accepted")
        detail = told["failure"]["message"] if "failure" in told else shown(msgspec.json.encode(_said(told)))
        return _Moment(_ms(event.sent_at), 1, f"update {told['update']}", outcome, "quiet", detail)
    if event.name == names.UNDELIVERED:
        note = msgspec.json.decode(event.value or b"", type=Undelivered)
        return _Moment(_ms(event.sent_at), 1, f"word to {note.target}", "refused", "failed", note.message)
    if event.name.startswith(names.ended_name("")):
        child = event.name.removeprefix(names.ended_name(""))
        who = f"flow {child.removesuffix('/')}" if child.endswith("/") else f"child {child}"
        return _Moment(_ms(event.sent_at), 1, f"{who} ended")
    outcome = "received" if event.consumed else "waits to be received"
    return _Moment(_ms(event.sent_at), 1, f"event {event.name}", outcome, "quiet", shown(event.value))


def _said(told: dict[str, Any]) -> Any:
    return told.get("answer", told.get("value"))


def _ended(e: Execution) -> _Moment:
    detail = "" if e.status is Status.SUCCEEDED or e.cause in (None, e.status) else str(e.cause)
    return _Moment(_ms(e.finished_at), 5, "ended", e.status, e.status, detail)


def _ms(time: Time | None) -> int:
    return settled(time) or 0
