"""A process of its own that runs a waiting workflow, until a SIGKILL at the n-th crash point of its store.

`main` is called in a process of its own (`tests.forks`).
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from outlast.testing import CrashPoints, ManualClock
from tests.acceptance.crashing import Process
from tests.acceptance.waiting_workflows import SCENARIOS


class SharedClock(ManualClock):
    """A clock that several processes see: its time is in a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        if not file.exists():
            self.advance(0)

    def now_ms(self) -> int:
        self._now_ms = max(self._now_ms, int(self._file.read_text() or 0))
        return self._now_ms

    def advance(self, duration: object) -> int:
        if self._file.exists():
            self.now_ms()
        super().advance(duration)  # type: ignore[arg-type]
        self._file.write_text(str(self._now_ms))
        return self._now_ms


def main(store: str, clock: str, scenario: str, nth: str) -> None:
    points = CrashPoints()
    points.kill_at("*:reply", nth=int(nth))
    process = Process(store, SCENARIOS[scenario].build, SharedClock(Path(clock)), points)
    outcome = asyncio.run(process.start_and_finish(()))
    sys.stdout.write(repr(outcome))
