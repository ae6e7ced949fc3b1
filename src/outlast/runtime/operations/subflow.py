"""A flow that workflow code starts, and waits for. It starts through the outbox, and belongs to this execution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec import structs

from outlast import limits
from outlast.codec.failures import decode_failure, settle_failure
from outlast.errors import FlowCancelled, FlowConflict, FlowFailed, FlowNotFound, FlowRefused, LimitExceeded
from outlast.machine import facts
from outlast.machine.changes import Code
from outlast.machine.decide_flow import NewFlow, NewMember, encode_acceptance
from outlast.model.execution import ParentClose
from outlast.model.flow import whole_of
from outlast.model.journal import START
from outlast.model.status import Reason, Status
from outlast.runtime.attempts.effects import Effects
from outlast.runtime.attempts.operation import Operation, Outcome
from outlast.runtime.holder import EndOfFlow, FlowEnd, MemberEnd
from outlast.runtime.operations.child import Started
from outlast.runtime.operations.performed import BackOff, Performed
from outlast.runtime.operations.tell import debt_id
from outlast.runtime.operations.wait import Limit, Wait, timed_out

if TYPE_CHECKING:
    from outlast.codec.values import Values
    from outlast.model.execution import Execution
    from outlast.runtime.attempts.mail import Mail
    from outlast.runtime.parts import Parts


FAILURE_MAX_CHARS = 200
"""Of what a member raised, in the error that says how the flow ended."""


class StartFlow(Performed):
    __slots__ = ("members", "new", "parent", "parent_close")

    OP: ClassVar = START

    def __init__(self, new: NewFlow, members: list[NewMember], *, parent: str, parent_close: ParentClose) -> None:
        size, most = sum(len(m.start.input) + len(m.template or b"") for m in members), limits.PAYLOAD_MAX_BYTES
        if size > most:
            raise LimitExceeded(
                "the inputs of a flow that is started in a workflow", actual=size, limit=most, unit="bytes"
            )
        self.new = new
        self.members = members
        self.parent = parent
        self.parent_close = parent_close

    @property
    def name(self) -> str:
        return self.new.name

    async def perform(self, parts: Parts, execution: Execution, operation: Operation, tries: int) -> Outcome | BackOff:
        change_id, child = debt_id(parts, execution), whole_of(self.new.id)
        closes = self.parent_close is not ParentClose.ABANDON
        new = structs.replace(self.new, change_id=change_id, parent=execution.id)
        fact = facts.StartFlow(change_id=change_id, acceptance=encode_acceptance(new, self.members), closes=closes)
        started = Started(new.id, change_id, execution.id)
        data, _ = parts.values.settle(started, Started, str(operation))
        effects = Effects(
            tells=(facts.Tell(change_id, child, facts.encode_fact(fact)),),
            adopts=(child, self.parent_close) if closes else None,
        )
        return Outcome(data, value=started, effects=effects)

    def decode(self, values: Values, data: bytes, what: object) -> Started:
        started = values.decode(data, Started, what)
        return started if started.by == self.parent else structs.replace(started, start=None)  # a fork's


class AwaitFlow(Wait):
    """The outputs of a flow that this execution started; `annotations` are those that its code knows, by member."""

    __slots__ = ("annotations", "flow", "limit", "start")

    OP: ClassVar = "flow"

    def __init__(self, flow: str, annotations: Mapping[str, Any], *, start: str | None, limit: Limit | None) -> None:
        self.flow = flow
        self.annotations = annotations
        self.start = start
        self.limit = limit

    @property
    def name(self) -> str:
        return self.flow

    @property
    def reason(self) -> str:
        return Reason.child(whole_of(self.flow))

    @property
    def what(self) -> str:
        return f"result of flow {self.flow!r}"

    @property
    def looks_first(self) -> bool:
        return True

    async def look(self, mail: Mail, operation: Operation, until: int | None) -> Outcome | None:
        end = await mail.ask(EndOfFlow(self.flow, self.start, until))
        if end is None:
            return None
        if end.status is not Status.SUCCEEDED:
            return self._failed(mail, operation, self._error(mail, end))
        try:
            data = mail.values.seal(msgspec.json.encode(_outputs(mail.values, end.members)), self.what)
        except LimitExceeded as error:
            return self._failed(mail, operation, error)
        return self.read(mail.values, operation, mail.execution.id, data)

    def _failed(self, mail: Mail, operation: Operation, error: Exception) -> Outcome:
        data, settled = settle_failure(error, execution_id=mail.execution.id, what=str(operation))
        return Outcome(mail.values.seal(data), error=settled)

    def _error(self, mail: Mail, end: FlowEnd) -> Exception:
        if end.refused:
            return FlowConflict(self.flow, end.cause)
        if not end.ours:
            why = f"was not started by {mail.execution.id!r}: wait for it in a step"
            return FlowRefused(self.flow, Code.NOT_ALLOWED, why)
        if end.status is None:
            return FlowNotFound(mail.execution.namespace, self.flow)
        if end.status is Status.CANCELLED:
            return FlowCancelled(self.flow, end.cause)
        failed = [one for one in end.members if one.status is not Status.SUCCEEDED]
        return FlowFailed(self.flow, {one.name: _failure(mail.values, one) for one in failed})

    def over(self, parts: Parts, operation: Operation, execution_id: str) -> Outcome:
        return timed_out(parts, operation, execution_id, f"flow {self.flow!r} did not end in time; it goes on")

    def decode(self, values: Values, data: bytes, what: object) -> dict[str, Any]:
        raw = msgspec.json.decode(values.unseal(data, self.what), type=dict[str, msgspec.Raw])
        return {name: values.read(one, self.annotations.get(name, Any), what, name) for name, one in raw.items()}


def _outputs(values: Values, members: list[MemberEnd]) -> dict[str, msgspec.Raw]:
    """The results of those that succeeded, as JSON."""
    return {
        one.name: msgspec.Raw(values.unseal(one.value, f"result of {one.id!r}"))
        for one in members
        if one.status is Status.SUCCEEDED and one.value is not None
    }


def _failure(values: Values, member: MemberEnd) -> str:
    """How one ended that did not succeed, in words."""
    cause = member.cause
    if member.value is not None:
        failure = decode_failure(values.unseal(member.value, f"failure of {member.id!r}"))
        cause = f"{failure.type.rpartition(':')[2]}: {failure.message}"[:FAILURE_MAX_CHARS]
    return f"{member.status}: {cause}"
