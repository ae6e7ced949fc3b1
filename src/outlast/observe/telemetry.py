"""The telemetry seam: the engine and its parts tell a `Telemetry` what happened, and it tells the observers.

An observer declares the kinds of events that it hears. A part asks `telemetry.hears` (or `telemetry.ends`) before it
makes a record, so an event that nobody hears costs one look at an attribute.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar, Protocol

from outlast.model.status import Status
from outlast.observe.events import AttemptEnded, Event, ExecutionEnded

_log = logging.getLogger(__name__)


class Observer(Protocol):
    """Called in the event loop of the engine, right after what it is told of: it must not block."""

    hears: ClassVar[frozenset[type[Event]]]
    ends: ClassVar[frozenset[Status]]
    """Of `ExecutionEnded`, those with these statuses: most executions succeed, and not everybody wants to know."""

    def hear(self, event: Event) -> None: ...

    def close(self) -> None:
        """Nothing more is told."""
        ...


class Telemetry:
    """`telemetry.tell(event)`: the observers that hear events of this kind hear it."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)
        self.hears = frozenset[type[Event]]().union(*(observer.hears for observer in observers))
        self.ends = frozenset[Status]().union(*(observer.ends for observer in observers))
        self.reads_commits = bool(self.ends) or AttemptEnded in self.hears
        """Whether somebody hears what is read from the changes that were committed."""
        self.hears_of_success = Status.SUCCEEDED in self.ends

    def tell(self, event: Event) -> None:
        for observer in self._observers:
            if type(event) in observer.hears and (type(event) is not ExecutionEnded or event.status in observer.ends):
                try:
                    observer.hear(event)
                except Exception:  # what is observed must not fail with its observer
                    _log.exception("an observer failed: %r was told of %s", observer, type(event).__name__)

    def close(self) -> None:
        for observer in self._observers:
            observer.close()
