"""What came from outside: how far an attempt has heard of it, and the look at what is new. A cancel comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.errors import LeaseLost

if TYPE_CHECKING:
    from outlast.runtime.attempts.attempt import LiveAttempt


class Hearing:
    """Of one attempt. The newest number of its inbox is said with every commit, and with every renewal."""

    __slots__ = ("_attempt", "_looking", "heard", "told")

    def __init__(self, attempt: LiveAttempt) -> None:
        self._attempt = attempt
        self.heard = attempt.lease.claimed_inbox
        """How far everything was looked at."""
        self.told = self.heard
        """How far it has grown, by anybody's word: also by what is said while somebody looks."""
        self._looking = False

    def hear(self, inbox: int) -> None:
        """Something came; it counts as known once it was looked at."""
        if inbox > self.told:
            self.told = inbox
        if inbox > self.heard and not self._looking and self._attempt.machine.lives:
            self._looking = True
            self._attempt.errand(self.look())

    async def look(self) -> None:
        """A cancel first; then what the code waits for."""
        attempt = self._attempt
        try:
            while True:
                self._looking = True
                told = self.told
                fresh = await attempt.lease.look()
                if fresh.cancel_requested and not attempt.replay.cancelled:
                    attempt.replay.cancelled = True
                    attempt.arrives(await attempt.lease.record_cancel())
                await attempt.waits.look()
                attempt.asked.heard()
                self.heard = max(self.heard, fresh.inbox)
                # What was said before this look is answered by it, also if a server has lost what it said.
                if attempt.execution.inbox <= self.heard and self.told <= max(told, self.heard):
                    return
        except LeaseLost as lost:
            attempt.lose(str(lost))
        finally:
            self._looking = False

    def let_go(self) -> None:
        """The attempt has ended, and nothing of this is under way."""
        del self._attempt
