"""A deferred's token: its expiry is journaled, the token itself is signed anew at each replay, and stored nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from outlast.model.execution import Execution
from outlast.runtime.attempts.operation import Operation, Outcome
from outlast.runtime.operations.performed import BackOff, Performed

if TYPE_CHECKING:
    from outlast.codec.values import Values
    from outlast.runtime.parts import Parts


class IssueToken(Performed):
    """Its outcome is the time at which the token expires."""

    __slots__ = ("deferred", "lasts_ms")

    OP: ClassVar = "token"

    def __init__(self, deferred: str, lasts_ms: int) -> None:
        self.deferred = deferred
        self.lasts_ms = lasts_ms

    @property
    def name(self) -> str:
        return self.deferred

    async def perform(self, parts: Parts, execution: Execution, operation: Operation, tries: int) -> Outcome | BackOff:
        expires_at = await parts.holder.time() + self.lasts_ms
        return Outcome(msgspec.json.encode(expires_at), value=expires_at)

    def decode(self, values: Values, data: bytes, what: object) -> Any:
        return msgspec.json.decode(data, type=int)
