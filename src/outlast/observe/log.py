"""The log of a process: the observer that is installed by default.

An execution that failed or expired leaves one WARNING. If many fail at once, the first ones leave a line each; then one
line every ten seconds counts the others by workflow and error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import ClassVar

from outlast.model.status import Status
from outlast.observe.events import ErrorSummary, Event, ExecutionEnded

_log = logging.getLogger("outlast.executions")

LINES_MAX = 10
"""More executions that end badly within `WINDOW_S` are counted."""
WINDOW_S = 10.0
MESSAGE_MAX_CHARS = 300
SHOWN_MAX = 10
"""So many pairs of a workflow and an error are named in the line that counts them."""


class LogObserver:
    hears: ClassVar = frozenset[type[Event]]({ExecutionEnded})
    ends: ClassVar = frozenset({Status.FAILED, Status.EXPIRED})

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._window: asyncio.TimerHandle | None = None
        self._window_began_s = 0.0
        self._lines = 0
        self._counted: Counter[tuple[str, str]] = Counter()
        self._expired = False
        """Whether some of those that are counted expired."""

    def hear(self, event: Event) -> None:
        if self._window is None:
            self._begin_window()
        if self._lines < LINES_MAX:
            self._lines += 1
            _log.warning(
                "execution %s of workflow %s %s: %s",
                event.execution,
                event.workflow,
                event.status,
                why(event),
                extra=labels(event),
            )
        else:
            self._counted[event.workflow, _error_name(event)] += 1
            self._expired = self._expired or event.status is Status.EXPIRED

    def close(self) -> None:
        if self._window is not None:
            self._window.cancel()
            self._window = None
            self._say_counted()

    def _begin_window(self) -> None:
        self._lines, self._window_began_s = 0, self._loop.time()
        self._window = self._loop.call_later(WINDOW_S, self._end_window)

    def _end_window(self) -> None:
        self._window = None
        if self._counted:
            self._say_counted()
            self._begin_window()
            self._lines = LINES_MAX  # it goes on: the next ones are counted too, until a window without any

    def _say_counted(self) -> None:
        counted, self._counted = self._counted, Counter()
        if counted:
            shown = [f"{workflow} {error} {number}" for (workflow, error), number in counted.most_common(SHOWN_MAX)]
            if len(counted) > SHOWN_MAX:
                shown.append(f"and {len(counted) - SHOWN_MAX} other kinds")
            _log.warning(
                "in the last %.0f s %d more executions %s: %s",
                self._loop.time() - self._window_began_s,
                counted.total(),
                "failed or expired" if self._expired else "failed",
                ", ".join(shown),
            )
        self._expired = False


def labels(event: ExecutionEnded) -> dict[str, object]:
    """What the line is about, as attributes of its log record."""
    known = {"execution": event.execution, "workflow": event.workflow, "attempt": event.attempt}
    return {name: value for name, value in known.items() if value is not None}


def why(event: ExecutionEnded) -> str:
    if event.error is not None:
        return described(event.error)
    match event.cause:
        case "crashes":
            return f"its worker died or lost its lease {event.crashes} times"
        case "attempt_timeout":
            return f"attempt {event.attempt} took longer than its timeout"
        case "deadline":
            return "its deadline passed"
        case cause:
            return cause or "no cause is known"


def described(error: ErrorSummary) -> str:
    """On one line."""
    message = " ".join(error.message.split())
    if len(message) > MESSAGE_MAX_CHARS:
        message = f"{message[:MESSAGE_MAX_CHARS]}…"
    said = f"{error.type}: {message}" if message else error.type
    return f"{said} ({error.line})" if error.line else said


def _error_name(event: ExecutionEnded) -> str:
    return event.cause or "expired" if event.error is None else event.error.type
