"""`receive`: the oldest event of a name that nobody received yet, or the next one, or a timeout.

Receiving marks the event and records the outcome in one commit. What was sent up to the timeout's time is received,
however late somebody looks; what is sent later stays for the next receive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import structs

from outlast.errors import CodecHookFailed
from outlast.model.journal import NOTHING, RECEIVE
from outlast.model.status import Reason
from outlast.runtime.attempts.operation import Operation, Outcome
from outlast.runtime.operations.wait import Limit, Wait, timed_out

if TYPE_CHECKING:
    from outlast.codec.values import Values
    from outlast.model.event import Event
    from outlast.runtime.attempts.mail import Mail
    from outlast.runtime.parts import Parts


class Receive(Wait):
    __slots__ = ("annotation", "event", "limit")

    OP: ClassVar = RECEIVE

    def __init__(self, event: str, annotation: Any, limit: Limit | None) -> None:
        self.event = event
        self.annotation = annotation
        self.limit = limit

    @property
    def name(self) -> str:
        return self.event

    @property
    def reason(self) -> str:
        return Reason.event(self.event)

    @property
    def what(self) -> str:
        return f"event {self.event!r}"

    def early(self, mail: Mail, operation: Operation) -> Outcome | None:
        event = mail.early(self.event, None)
        return None if event is None else self._outcome(mail, operation, event)

    async def look(self, mail: Mail, operation: Operation, until: int | None) -> Outcome | None:
        event = await mail.event(self.event, until)
        return None if event is None else self._outcome(mail, operation, event)

    def _outcome(self, mail: Mail, operation: Operation, event: Event) -> Outcome:
        """It is received whatever it is: it would stand in the way of all that come after it."""
        consumes = (event.name, event.dedup)
        try:
            read = self.read(mail.values, operation, mail.execution.id, event.value or NOTHING)
        except CodecHookFailed:
            mail.put_back(*consumes)
            raise
        return structs.replace(read, consumes=consumes)

    def over(self, parts: Parts, operation: Operation, execution_id: str) -> Outcome:
        return timed_out(parts, operation, execution_id, f"no event {self.event!r} came in time")

    def decode(self, values: Values, data: bytes, what: object) -> Any:
        return values.decode(data, self.annotation, what)
