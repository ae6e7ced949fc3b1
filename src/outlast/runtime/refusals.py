"""A store that refuses, because it is full, may only be read or is damaged: said once when it begins and once when it
is over.

Whoever works meets it again and again, and asks again: that is no news each time, and no fault of theirs.
"""

from __future__ import annotations

import logging
import time

from outlast.errors import StoreCorrupt, StoreFull, StoreReadOnly
from outlast.runtime.patience import TimeS

_log = logging.getLogger(__name__)

QUIET_S = 5.0
"""It is over when a commit is made, and nothing was refused for so long: what takes no room is not refused."""


class Refusals:
    def __init__(self, time_s: TimeS = time.monotonic) -> None:
        self._time_s = time_s
        self._said: set[type[BaseException]] = set()
        self._since_s = self._last_s = 0.0

    @property
    def under_way(self) -> bool:
        return bool(self._said)

    def explain(self, error: BaseException) -> bool:
        """Whether this is why, and so has been said."""
        if not isinstance(error, StoreFull | StoreReadOnly | StoreCorrupt):
            return False
        self._last_s = self._time_s()
        self._since_s = self._since_s if self._said else self._last_s
        if type(error) not in self._said:
            self._said.add(type(error))
            _log.warning("the store refuses work, and is asked again until it takes it: %s", error)
        return True

    def commit_made(self) -> None:
        now_s = self._time_s()
        if self._said and now_s - self._last_s > QUIET_S:
            _log.warning("the store takes work again, after %.0f s", now_s - self._since_s)
            self._said.clear()
