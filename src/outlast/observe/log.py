"""The log of a process: the observer that is installed by default.

An execution that failed or expired leaves one WARNING. A retry, an execution that is taken from a worker that died, and
the start and the end of a worker leave one INFO each. A store that is away leaves one WARNING when it goes away and one
when it is back. If much happens at once, the first events of a kind leave a line each; then one line every ten seconds
counts the others by workflow and error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import ClassVar, assert_never

from outlast.model.attempt import Outcome
from outlast.model.status import Status
from outlast.observe.events import (
    AttemptEnded,
    ErrorSummary,
    Event,
    ExecutionEnded,
    StepRetried,
    StoreAway,
    StoreBack,
    WorkerDrained,
    WorkerDrains,
    WorkerStarted,
)

_executions = logging.getLogger("outlast.executions")
_worker = logging.getLogger("outlast.worker")
_store = logging.getLogger("outlast.store")
_AWAY = "is away, and is asked again until it answers"

LINES_MAX = 10
"""More events of a kind within `WINDOW_S` are counted."""
WINDOW_S = 10.0
MESSAGE_MAX_CHARS = 300
SHOWN_MAX = 10
"""So many names are in one line at most."""


class LogObserver:
    hears: ClassVar = frozenset[type[Event]](
        {ExecutionEnded, AttemptEnded, StepRetried, WorkerStarted, WorkerDrains, WorkerDrained, StoreAway, StoreBack}
    )
    ends: ClassVar = frozenset({Status.FAILED, Status.EXPIRED})

    def __init__(self) -> None:
        self._ended = Lines(logging.WARNING, "executions failed or expired")
        self._retried = Lines(logging.INFO, "attempts and steps failed and are tried again")
        self._taken_over = Lines(logging.INFO, "executions were taken from workers that died or lost their lease")

    def hear(self, event: Event) -> None:
        match event:
            case ExecutionEnded():
                what = f"{event.workflow} {event.cause or 'expired' if event.error is None else event.error.type}"
                self._ended.add(what, f"{_subject(event)} {event.status}: {_why(event)}", labels(event))
            case AttemptEnded(outcome=Outcome.INTERRUPTED):
                self._taken_over.add(event.workflow, f"{_subject(event)} {_taken_over(event)}", labels(event))
            case AttemptEnded():
                error = event.outcome if event.error is None else event.error.type
                self._retried.add(f"{event.workflow} {error}", f"{_subject(event)}: {_again(event)}", labels(event))
            case StepRetried():
                what = f"{event.workflow} {event.step} {event.error.type}"
                self._retried.add(what, f"{_subject(event)}: {_step_again(event)}", labels(event))
            case WorkerStarted() | WorkerDrains() | WorkerDrained():
                _worker.info("worker %s %s", event.worker, _life(event))
            case StoreAway():
                what = "refuses work, and is asked again until it takes it" if event.refuses else _AWAY
                _store.warning("the store %s: %s", what, event.why)
            case StoreBack():
                what = "takes work again" if event.refused else "is back"
                _store.warning("the store %s, after %.0f s", what, event.after_s)
            case _:
                assert_never(event)

    def close(self) -> None:
        for lines in (self._ended, self._retried, self._taken_over):
            lines.close()


class Lines:
    """The lines about one kind of event. Of many within a window the first ones are logged, the others counted."""

    def __init__(self, level: int, what: str) -> None:
        self._level = level
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._window: asyncio.TimerHandle | None = None
        self._began_s = 0.0
        self._logged = 0
        self._counted: Counter[str] = Counter()

    def add(self, name: str, line: str, labels: dict[str, object]) -> None:
        """`name` is what it is counted by."""
        if not _executions.isEnabledFor(self._level):
            return
        if self._window is None:
            self._begin_window()
        if self._logged < LINES_MAX:
            self._logged += 1
            _executions.log(self._level, "%s", line, extra=labels)
        else:
            self._counted[name] += 1

    def close(self) -> None:
        if self._window is not None:
            self._window.cancel()
            self._window = None
            self._count()

    def _begin_window(self) -> None:
        self._logged, self._began_s = 0, self._loop.time()
        self._window = self._loop.call_later(WINDOW_S, self._end_window)

    def _end_window(self) -> None:
        self._window = None
        if self._counted:
            self._count()
            self._begin_window()
            self._logged = LINES_MAX  # it goes on: the next ones are counted too, until a window without any

    def _count(self) -> None:
        counted, self._counted = self._counted, Counter()
        if counted:
            names = [f"{name} {number}" for name, number in counted.most_common(SHOWN_MAX)]
            if len(counted) > SHOWN_MAX:
                names.append(f"and {len(counted) - SHOWN_MAX} other kinds")
            seconds, number = self._loop.time() - self._began_s, counted.total()
            _executions.log(
                self._level, "in the last %.0f s %d more %s: %s", seconds, number, self._what, ", ".join(names)
            )


def labels(event: ExecutionEnded | AttemptEnded | StepRetried) -> dict[str, object]:
    """What the line is about, as attributes of its log record."""
    known: dict[str, object] = {"execution": event.execution, "workflow": event.workflow}
    if isinstance(event, StepRetried):
        known["step"] = event.step
    return known if event.attempt is None else {**known, "attempt": event.attempt}


def _subject(event: ExecutionEnded | AttemptEnded | StepRetried) -> str:
    return f"execution {event.execution} of workflow {event.workflow}"


def _why(event: ExecutionEnded) -> str:
    match event.cause:
        case "crashes":
            cause = f"its worker died or lost its lease too often without any progress ({event.crashes} times in all)"
        case "crashes_in_life":
            cause = f"its worker died or lost its lease {event.crashes} times in all, which is its bound"
        case "attempt_timeout":
            cause = f"attempt {event.attempt} took longer than its timeout"
        case "deadline":
            cause = "its deadline passed"
        case _:
            return _described(event.error) if event.error is not None else event.cause or "no cause is known"
    return cause if event.error is None else f"{cause}, and its code ended with {_described(event.error)}"


def _taken_over(event: AttemptEnded) -> str:
    next_one = "it undoes what it did" if event.unwinds else f"attempt {event.attempt + 1} follows"
    return f"was taken from worker {event.worker}, which died or lost its lease: {next_one}"


def _again(event: AttemptEnded) -> str:
    failed = "took longer than its timeout" if event.outcome is Outcome.TIMED_OUT else "failed"
    next_one = "undoes what it did" if event.unwinds else "follows"
    said = f"attempt {event.attempt} {failed}, and attempt {event.attempt + 1} {next_one} {_in(event.wait_ms)}"
    return said if event.error is None else f"{said}: {_described(event.error)}"


def _step_again(event: StepRetried) -> str:
    return (
        f"try {event.tries} of step {event.step} failed, and the next one follows {_in(event.wait_ms)}: "
        f"{_described(event.error)}"
    )


def _in(wait_ms: int) -> str:
    return f"in {wait_ms / 1_000:g} s" if wait_ms else "at once"


def _life(event: WorkerStarted | WorkerDrains | WorkerDrained) -> str:
    match event:
        case WorkerStarted():
            offers = f", offers {', '.join(sorted(event.capabilities))}" if event.capabilities else ""
            lanes = f"{'lane' if len(event.lanes) == 1 else 'lanes'} {', '.join(event.lanes)}"
            return f"has started: it runs up to {event.concurrency} executions at a time from {lanes}{offers}"
        case WorkerDrains():
            if not event.running:
                return "stops: it runs nothing"
            return (
                f"drains: it claims nothing more, waits up to {event.drain_ms / 1_000:g} s for "
                f"{_named(event.running)}, and hands back what still runs then"
            )
        case WorkerDrained():
            handed_back = f", and handed back {_named(event.handed_back)}" if event.handed_back else ""
            return f"has stopped{handed_back}"


def _named(executions: tuple[str, ...]) -> str:
    number = f"{len(executions)} execution{'' if len(executions) == 1 else 's'}"
    more = ", …" if len(executions) > SHOWN_MAX else ""
    return f"{number} ({', '.join(executions[:SHOWN_MAX])}{more})"


def _described(error: ErrorSummary) -> str:
    """On one line."""
    message = " ".join(error.message.split())
    if len(message) > MESSAGE_MAX_CHARS:
        message = f"{message[:MESSAGE_MAX_CHARS]}…"
    said = f"{error.type}: {message}" if message else error.type
    return f"{said} ({error.line})" if error.line else said
