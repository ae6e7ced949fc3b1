"""A kind of operation that does something: it runs until it has an outcome, or must wait for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from outlast.runtime.attempts.operation import Kind, Operation, Outcome

if TYPE_CHECKING:
    from outlast.model.execution import Execution
    from outlast.runtime.parts import Parts


class BackOff(Struct, frozen=True):
    """Not now: try again at `wake_at`."""

    wake_at: int
    tries: int


class Performed(Kind):
    __slots__ = ()

    async def perform(self, parts: Parts, execution: Execution, operation: Operation, tries: int) -> Outcome | BackOff:
        """In a task of its own, in the context of the call. `tries` have failed before."""
        raise NotImplementedError

    def refusal(self, parts: Parts) -> Exception | None:
        """Why it cannot be performed here, however often it is tried."""
        return None
