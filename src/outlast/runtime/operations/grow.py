"""A running member adds members behind itself: performed again after a crash, it adds the same, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from outlast.codec.failures import settle_failure
from outlast.errors import FlowNotFound, FlowRefused, InvalidFlow
from outlast.machine.decide_flow import NewMember
from outlast.runtime.attempts.operation import Operation, Outcome
from outlast.runtime.holder import FanIn, NewMembers
from outlast.runtime.operations.performed import BackOff, Performed

if TYPE_CHECKING:
    from outlast.codec.values import Values
    from outlast.model.execution import Execution
    from outlast.runtime.parts import Parts

HEARS_MS = 100
"""What is told to end hears of it with its next commit. If it has not by then, it looks again."""


class Growing(Protocol):
    """What a member's code writes down to be added: `accepted` are the names of all that was."""

    accepted: set[str]

    def left_undone(self) -> Exception | None:
        """What to say if the code returns now, and something was written down in vain."""
        ...


class Grow(Performed):
    __slots__ = ("fan_in", "flow", "members", "named")

    OP: ClassVar = "flow"

    def __init__(self, flow: str, members: list[NewMember], fan_in: FanIn | None = None, named: str = "flow") -> None:
        self.flow = flow
        self.members = members
        self.fan_in = fan_in
        self.named = named

    @property
    def name(self) -> str:
        return self.named

    async def perform(self, parts: Parts, execution: Execution, operation: Operation, tries: int) -> Outcome | BackOff:
        scope, name, occurrence = operation.key
        new = NewMembers(self.flow, f"{scope}{name}/{occurrence}", self.members, self.fan_in)
        try:
            wanted = await parts.holder.grow(execution, new)
        except (FlowRefused, FlowNotFound, InvalidFlow) as error:
            data, settled = settle_failure(error, execution_id=execution.id, what=str(operation))
            return Outcome(parts.values.seal(data), error=settled)
        if not wanted:
            return BackOff(await parts.holder.time() + HEARS_MS, tries + 1)
        data, _ = parts.values.settle(None, None, str(operation))
        return Outcome(data, value=None)

    def decode(self, values: Values, data: bytes, what: object) -> None:
        return None
