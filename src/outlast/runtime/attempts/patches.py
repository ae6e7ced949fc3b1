"""Which patches (`patched(name)`) an execution has: those that its code had when it began."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from outlast.model.journal import PATCH, SUCCEEDED

if TYPE_CHECKING:
    from outlast.runtime.attempts.attempt import LiveAttempt


class Patches:
    def __init__(self, attempt: LiveAttempt) -> None:
        self._attempt = attempt
        self._replay = attempt.replay
        self._real = attempt.real
        self._begins_here = attempt.begins_here

    async def begin(self, names: tuple[str, ...]) -> None:
        """Nothing is recorded yet: it begins with the code of today, and keeps what that has of patches."""
        self._replay.patches |= set(names)
        await self._note("outlast:patches", names)

    def has(self, name: str) -> bool:
        """What is found out late (in a function of another module) is written down before anything that follows."""
        if name not in self._replay.patches and self._begins_here:
            self._replay.patches |= {name}
            self._real.call_soon_threadsafe(self._found, name)  # `def` code asks in its own thread
        return name in self._replay.patches

    def _found(self, name: str) -> None:
        if self._begins_here and not self._attempt.over:
            self._attempt.errand(self._note(f"outlast:patch {name}", (name,)))

    async def _note(self, key: str, names: tuple[str, ...]) -> None:
        await self._attempt.lease.record(("", key, 1), PATCH, SUCCEEDED, msgspec.json.encode(names))

    def let_go(self) -> None:
        """The attempt has ended; what code that is still being stopped finds is of no use any more."""
        self._begins_here = False
        del self._attempt
