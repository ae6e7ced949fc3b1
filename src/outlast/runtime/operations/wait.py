"""A kind of operation that waits for something durable: for a time, or for a word from outside, up to a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from outlast.codec.failures import settle_failure
from outlast.errors import CodecError, CodecHookFailed
from outlast.runtime.attempts.operation import Kind, Operation, Outcome

if TYPE_CHECKING:
    from outlast.codec.values import Values
    from outlast.runtime.attempts.mail import Mail
    from outlast.runtime.parts import Parts


class After(Struct, frozen=True):
    """So long from when it begins, by the store's clock."""

    ms: int


class At(Struct, frozen=True):
    """At this time of the store's clock."""

    ms: int


Limit = After | At


class Wait(Kind):
    __slots__ = ()

    limit: Limit | None
    """When the wait is over by itself."""

    @property
    def reason(self) -> str | None:
        """What from outside ends it, as the execution's `waits` say it; None if only time does."""
        return None

    @property
    def what(self) -> str:
        """What comes from outside, for people."""
        return str(self.reason)

    def read(self, values: Values, operation: Operation, execution_id: str, data: bytes) -> Outcome:
        """What came, as the code will see it: if it is not of the type that the code asked for, that is a failure."""
        try:
            return Outcome(data, value=self.decode(values, data, self.what))
        except CodecHookFailed:
            raise
        except CodecError as error:
            failed, settled = settle_failure(error, execution_id=execution_id, what=str(operation))
            return Outcome(values.seal(failed), error=settled)

    @property
    def looks_first(self) -> bool:
        """Whether it must be looked for even if nobody has told this execution anything."""
        return False

    @property
    def timer(self) -> str | None:
        """The name under which its wake time is known in the whole execution; the first one given wins."""
        return None

    def early(self, mail: Mail, operation: Operation) -> Outcome | None:
        """What had come before the code went on, if that is known without a look."""
        return None

    async def look(self, mail: Mail, operation: Operation, until: int | None) -> Outcome | None:
        """What has come from outside, if it has, and not after `until`."""
        return None

    def over(self, parts: Parts, operation: Operation, execution_id: str) -> Outcome:
        """What becomes of it when its time is over."""
        raise NotImplementedError


def timed_out(parts: Parts, operation: Operation, execution_id: str, what: str) -> Outcome:
    """A timeout is an outcome like any other: a replay takes the same branch."""
    data, error = settle_failure(TimeoutError(what), execution_id=execution_id, what=str(operation))
    return Outcome(parts.values.seal(data), error=error)
