"""`compensate`: an undo is registered. The entry says that there is something to undo, and the execution's row too, so
that a cancel, a deadline or the last crash lets the code run once more. What to call with which arguments, a replay of
the code says again."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from outlast.runtime.operation import Operation, Outcome
from outlast.runtime.operations.performed import Performed

if TYPE_CHECKING:
    from outlast.codec.values import Values
    from outlast.model.execution import Execution
    from outlast.runtime.parts import Parts


class Compensate(Performed):
    __slots__ = ("step",)

    OP: ClassVar = "compensate"

    def __init__(self, step: str) -> None:
        self.step = step

    @property
    def name(self) -> str:
        return self.step

    def decode(self, values: Values, data: bytes, what: object) -> None:
        return None

    async def perform(self, parts: Parts, execution: Execution, operation: Operation, tries: int) -> Outcome:
        return Outcome(b"null", unwinds=True)
