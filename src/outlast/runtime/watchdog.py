"""Notices user code that blocks the event loop, and names the line: leases can't be renewed meanwhile."""

from __future__ import annotations

import asyncio
import logging
import selectors
import sys
import threading
import time
import traceback
from pathlib import Path

_log = logging.getLogger(__name__)

BLOCKED_S = 0.5
_BEAT_S = 0.1
_LIBRARY = (str(Path(__file__).parent.parent), selectors.__file__)
_LOOP = str(Path(asyncio.__file__).parent)


class Watchdog:
    """A thread that looks at the loop's pulse. One warning per blocking, not one per look."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._pulse_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="outlast watchdog", daemon=True)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self._pulse_s = time.monotonic()
        self._timer = self._loop.call_later(_BEAT_S, self._beat)

    def _watch(self) -> None:
        warned_of = 0.0
        while not self._stop.wait(_BEAT_S):
            pulse_s = self._pulse_s
            blocked_s = time.monotonic() - pulse_s
            if blocked_s > BLOCKED_S and pulse_s != warned_of:
                warned_of = pulse_s
                place = self._culprit()
                if place is not None:
                    _log.warning(
                        "the event loop is blocked for %.1f s by %s; move it into a def step, or use .aio",
                        blocked_s,
                        place,
                    )

    def _culprit(self) -> str | None:
        """The innermost line of user code under the loop; None if the loop itself waits (the machine is slow)."""
        frame = sys._current_frames().get(self._thread_id)  # pyright: ignore[reportPrivateUsage]
        for line in reversed(traceback.extract_stack(frame)):
            if line.filename.startswith(_LOOP):
                return None
            if not line.filename.startswith(_LIBRARY):
                return f"{line.filename}:{line.lineno} in {line.name}"
        return None
