"""Crash points: stop a store before or after any statement or reply, or lose a reply.

A store calls the points that it passes by name: `commit:begin`, `commit:statement`, `commit:statement done`,
`commit:commit`, `commit:reply`, and the same for `claim`, `renew`, `append`, `purge` and `migrate`.
"""

from __future__ import annotations

import os
import signal
from fnmatch import fnmatchcase

from outlast.errors import ReplyLost


class Crash(BaseException):
    """The process died here, as far as the store can tell."""


class CrashPoints:
    """`points = CrashPoints(); store = …(points=points); points.crash_at("commit:statement", nth=2)`."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.crashed: str | None = None
        """The point where the crash was."""
        self._plans: list[tuple[str, int, str]] = []

    def __call__(self, name: str) -> None:
        self.passed.append(name)
        for plan in list(self._plans):
            point, nth, what = plan
            if not fnmatchcase(name, point):
                continue
            if nth > 1:
                self._plans[self._plans.index(plan)] = (point, nth - 1, what)
                continue
            self._plans.remove(plan)
            self._do(name, what)

    def crash_at(self, name: str = "*", *, nth: int = 1) -> None:
        """Die at the nth point of that name from now. `*` is any name, `*:reply` the reply of any operation."""
        self._plans.append((name, nth, "crash"))

    def lose_reply(self, operation: str = "commit", *, nth: int = 1) -> None:
        """Let the operation be done, and its answer be lost."""
        self._plans.append((f"{operation}:reply", nth, "lose"))

    def kill_at(self, name: str = "*", *, nth: int = 1) -> None:
        """SIGKILL this very process there: for tests that run the store in a process of its own."""
        self._plans.append((name, nth, "kill"))

    def forget(self) -> None:
        """No plan stands any more."""
        self._plans.clear()

    def _do(self, name: str, what: str) -> None:
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "lose":
            raise ReplyLost(f"the answer of {name} was lost")
        self.crashed = name
        raise Crash(name)
