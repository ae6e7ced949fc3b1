"""A store that is away, or refuses work because it is full, may only be read or is damaged: told once when it begins,
and once when it is over.

Every part that works meets it again and again, and asks again: that is no news each time, and no fault of the part.
"""

from __future__ import annotations

import logging
import time

from outlast.errors import IdHeld, OutlastError, StoreCorrupt, StoreFull, StoreReadOnly, StoreUnavailable
from outlast.observe.events import StoreAway, StoreBack
from outlast.observe.telemetry import Telemetry
from outlast.runtime.patience import TimeS

QUIET_S = 5.0
"""It is over when the store has answered, and nothing failed for so long: of several servers some answer all the time,
and what takes no room is not refused."""
REFUSALS = (StoreFull, StoreReadOnly, StoreCorrupt)


class Outages:
    def __init__(self, telemetry: Telemetry, time_s: TimeS = time.monotonic) -> None:
        self._telemetry = telemetry
        self._time_s = time_s
        self._away = _Span()
        self._refusing = _Span()

    @property
    def under_way(self) -> bool:
        return self._away.under_way or self._refusing.under_way

    def explain(self, error: BaseException) -> bool:
        """Whether an outage is why this failed. It is told by this, so nobody else need say anything."""
        refuses = isinstance(error, REFUSALS)
        if not refuses and (not isinstance(error, StoreUnavailable) or isinstance(error, IdHeld)):
            return False
        if (self._refusing if refuses else self._away).lasts(self._time_s()):
            self._telemetry.tell(StoreAway(str(error), refuses=refuses))
        return True

    def report(self, log: logging.Logger, what: str, error: BaseException) -> None:
        """Log that a call of the store failed, unless an outage is why."""
        if isinstance(error, TimeoutError):
            error = StoreUnavailable("no answer in time")
        if not self.explain(error):
            log.warning("%s: %s", what, error, exc_info=None if isinstance(error, OutlastError) else error)

    def answered(self, *, written: bool = False) -> None:
        """The store has answered a call; `written`: it was a commit."""
        now_s = self._time_s()
        for span, refuses in ((self._away, False), (self._refusing, True)):
            if span.under_way and (written or not refuses):
                span.answered_s = span.answered_s or now_s
                if now_s - span.failed_s > QUIET_S:
                    span.under_way = False
                    self._telemetry.tell(StoreBack(span.answered_s - span.since_s, refused=refuses))


class _Span:
    def __init__(self) -> None:
        self.under_way = False
        self.since_s = self.failed_s = 0.0
        """When it began, and when a call failed last."""
        self.answered_s: float | None = None
        """When a call was answered first after that."""

    def lasts(self, now_s: float) -> bool:
        """It goes on. True if it begins with this."""
        begins, self.under_way = not self.under_way, True
        self.failed_s, self.answered_s = now_s, None
        if begins:
            self.since_s = now_s
        return begins
