"""A timer that asyncio sets in workflow code: `asyncio.sleep`, `asyncio.timeout`, `asyncio.wait_for`, `call_later`.

It is durable like a sleep: that it fired is journaled, so a replay takes the same way; its time is the store's. Most
are cancelled before they fire (timeouts), so one that does not fire leaves no trace. The loop's time is that of the
last outcome delivered, which a replay knows too; so a wake time need be written down only when nothing else keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from outlast.model.journal import TIMER
from outlast.runtime.attempts.operation import Operation, Outcome
from outlast.runtime.operations.wait import Wait

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from outlast.codec.values import Values
    from outlast.runtime.parts import Parts


class Timer(Wait):
    __slots__ = ("delay_ms", "wake_at")

    OP: ClassVar = TIMER
    NOTED: ClassVar = False

    def __init__(self, wake_at: int, delay_ms: int) -> None:
        self.wake_at = wake_at
        self.delay_ms = delay_ms
        """How long it was to last when it was set."""

    @property
    def name(self) -> str:
        return "asyncio"

    def over(self, parts: Parts, operation: Operation, execution_id: str) -> Outcome:
        return Outcome(None)

    def decode(self, values: Values, data: bytes, what: object) -> None:
        return None


def fires(fire: Callable[[], None]) -> Callable[[asyncio.Future[Any]], None]:
    """What to call when the timer is over. In a full journal that is a failure: its time has come all the same."""

    def over(timer: asyncio.Future[Any]) -> None:
        if not timer.cancelled():
            timer.exception()  # asked for, so that nobody complains that it was not
            fire()

    return over
