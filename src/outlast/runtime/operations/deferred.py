"""`deferred`: a named value that is resolved at most once, from outside, before, during or after the wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from outlast.codec.failures import decode_failure, raised_again
from outlast.model.deferred import Resolution
from outlast.model.journal import DEFERRED, NOTHING
from outlast.model.status import Reason
from outlast.runtime.attempts.operation import Operation, Outcome
from outlast.runtime.holder import ReadDeferred
from outlast.runtime.operations.wait import Limit, Wait, timed_out

if TYPE_CHECKING:
    from outlast.codec.values import Values
    from outlast.runtime.attempts.mail import Mail
    from outlast.runtime.parts import Parts


class AwaitDeferred(Wait):
    __slots__ = ("annotation", "deferred", "limit")

    OP: ClassVar = DEFERRED

    def __init__(self, deferred: str, annotation: Any, limit: Limit | None) -> None:
        self.deferred = deferred
        self.annotation = annotation
        self.limit = limit

    @property
    def name(self) -> str:
        return self.deferred

    @property
    def reason(self) -> str:
        return Reason.deferred(self.deferred)

    @property
    def what(self) -> str:
        return f"deferred {self.deferred!r}"

    async def look(self, mail: Mail, operation: Operation, until: int | None) -> Outcome | None:
        record = await mail.ask(ReadDeferred(self.deferred, until))
        if record is None:
            return None
        data = record.value or NOTHING
        if record.resolution is Resolution.REJECTED:
            failure = decode_failure(mail.values.unseal(data))
            return Outcome(data, error=raised_again(failure, execution_id=mail.execution.id, what=str(operation)))
        return self.read(mail.values, operation, mail.execution.id, data)

    def over(self, parts: Parts, operation: Operation, execution_id: str) -> Outcome:
        return timed_out(parts, operation, execution_id, f"deferred {self.deferred!r} was not resolved in time")

    def decode(self, values: Values, data: bytes, what: object) -> Any:
        return values.decode(data, self.annotation, what)
