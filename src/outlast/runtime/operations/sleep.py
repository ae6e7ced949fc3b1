"""`sleep` and `sleep_until`: until a time of the store's clock, which is written down when the sleep begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from outlast.model.journal import NOTHING, SLEEP
from outlast.runtime.attempts.operation import Operation, Outcome
from outlast.runtime.operations.wait import Limit, Wait

if TYPE_CHECKING:
    from outlast.codec.values import Values
    from outlast.runtime.parts import Parts

UNNAMED = "sleep"


class Sleep(Wait):
    __slots__ = ("limit", "timer_name")

    OP: ClassVar = SLEEP

    def __init__(self, limit: Limit, timer: str | None) -> None:
        self.limit = limit
        self.timer_name = timer

    @property
    def name(self) -> str:
        return UNNAMED if self.timer_name is None else self.timer_name

    @property
    def timer(self) -> str | None:
        return self.timer_name

    def over(self, parts: Parts, operation: Operation, execution_id: str) -> Outcome:
        return Outcome(NOTHING)

    def decode(self, values: Values, data: bytes, what: object) -> None:
        return None
