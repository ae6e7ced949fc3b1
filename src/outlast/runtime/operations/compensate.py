"""`compensate`: an undo is registered. The entry says that there is something to undo, and the execution's row too, so
that a cancel, a deadline or the last crash lets the code run once more. What to call with which arguments, a replay of
the code says again."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from outlast.runtime.attempts.operation import Operation, Outcome, failed_with
from outlast.runtime.operations.performed import Performed

if TYPE_CHECKING:
    from outlast.codec.values import Values
    from outlast.model.execution import Execution
    from outlast.runtime.parts import Parts


class Compensate(Performed):
    __slots__ = ("undo",)

    OP: ClassVar = "compensate"

    def __init__(self, undo: Performed) -> None:
        self.undo = undo

    @property
    def name(self) -> str:
        return self.undo.name

    def decode(self, values: Values, data: bytes, what: object) -> None:
        return None

    async def perform(self, parts: Parts, execution: Execution, operation: Operation, tries: int) -> Outcome:
        refused = self.undo.refusal(parts)
        return Outcome(b"null", unwinds=True) if refused is None else failed_with(parts.values, refused)
