"""A running member adds members behind itself: in one commit of its own, fenced by its lease and the flow's revision.

The commit is named by the operation's place in the code: performed again after a crash, it meets its own records, and
the journal entry that was missing follows. A member that begins anew, since it was undone or went on as new, adds the
same by a commit of another name: what it added before is there, and stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from msgspec import Struct, structs

from outlast.codec.failures import settle_failure
from outlast.errors import FlowNotFound, FlowRefused, InvalidFlow
from outlast.machine import facts
from outlast.machine.amendments import together
from outlast.machine.changes import Absent, Changes, Code, Matches, Refusal
from outlast.machine.decide_flow import NewMember, grown, grown_before, growth_id
from outlast.machine.decide_member import MemberView, is_cancelled_with, widened
from outlast.machine.parts import held_by
from outlast.model.execution import Execution
from outlast.model.flow import Dependency, Flow, dependency_key, whole_of
from outlast.runtime.attempts.operation import Operation, Outcome
from outlast.runtime.operations.performed import BackOff, Performed

if TYPE_CHECKING:
    from outlast.codec.values import Values
    from outlast.runtime.engine import Engine
    from outlast.runtime.parts import Parts
    from outlast.store.port import Verdict

HEARS_MS = 100
"""What is told to end hears of it with its next commit. If it has not by then, it looks again."""


class Growing(Protocol):
    """What a member's code writes down to be added: `accepted` are the names of all that was."""

    accepted: set[str]

    def left_undone(self) -> Exception | None:
        """What to say if the code returns now, and something was written down in vain."""
        ...


class FanIn(Struct, frozen=True):
    """A member that is there already, and waits for what is added. With the last of it: all that it waits for besides,
    and how its input is made of them."""

    member: str
    upstreams: tuple[str, ...] = ()
    template: bytes | None = None


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
        try:
            wanted = await self._grow(parts, execution, operation)
        except (FlowRefused, FlowNotFound, InvalidFlow) as error:
            data, settled = settle_failure(error, execution_id=execution.id, what=str(operation))
            return Outcome(parts.values.seal(data), error=settled)
        if not wanted:
            return BackOff(await parts.engine.store.now() + HEARS_MS, tries + 1)
        data, _ = parts.values.settle(None, None, str(operation))
        return Outcome(data, value=None)

    async def _grow(self, parts: Parts, execution: Execution, operation: Operation) -> bool:
        """False if this execution is told to end: its flow is cancelled with all that runs, or who was to join all that
        is added has ended."""
        engine = parts.engine
        scope, name, occurrence = operation.key
        change_id = growth_id(execution, f"{scope}{name}/{occurrence}")
        members = [structs.replace(m, start=structs.replace(m.start, change_id=change_id)) for m in self.members]

        async def decided(refused: Verdict | None) -> Changes | bool:
            nonlocal members
            by = None if refused is None else refused.refused_by
            if by is not None and by.key == execution.key:
                return True  # the lease is gone: recording this will say so
            if isinstance(by, Absent) and by.key.kind == Execution.KIND:
                before = await self._grown_before(engine, execution, members)
                if by.key.values[1] not in before:
                    raise InvalidFlow(f"flow {self.flow!r} has a member {str(by.key.values[1])!r} already")
                members = [member for member in members if member.start.id not in before]
            view = await engine.flows.view(execution.namespace, self.flow)
            if view.flow is None or view.summary is None:
                raise FlowNotFound(execution.namespace, self.flow)
            joined_by = None if self.fan_in is None else self.fan_in.member
            answer = grown(view, execution, members, change_id, joined_by=joined_by)
            if isinstance(answer, Refusal):
                if is_cancelled_with(view.flow, execution):  # a refusal would only come first by chance
                    await _hears_of(engine, execution, view.flow)
                    return False
                raise FlowRefused(self.flow, answer.code, answer.message)
            if not members:
                return True  # all of it is there
            if self.fan_in is None:
                return answer
            joins = await self._joins(engine, view.partition, execution.namespace, self.fan_in)
            if not joins.execution.status.terminal:
                return self._widening(joins, self.fan_in, answer)
            return False if await _given_up(engine, execution, joins) else await decided(None)

        return await engine.settle(f"flow {self.flow!r}", decided) is not False

    async def _grown_before(self, engine: Engine, execution: Execution, members: list[NewMember]) -> set[str]:
        """The ids of those that this execution has added already, and that are the same."""
        if self.fan_in is not None:
            return set()
        new = {member.start.id: member for member in members}
        namespace, whole = execution.namespace, whole_of(self.flow)
        partition = engine.view(namespace, execution.id, execution).partition
        views = await engine.flows.views(partition, namespace, list(new))
        roster = await engine.store.load([dependency_key(namespace, whole, view.execution.id) for view in views])
        return {
            view.execution.id
            for view, entry in zip(views, roster, strict=True)
            if isinstance(entry, Dependency)
            and grown_before(new[view.execution.id], execution, (view.execution, view.member, entry))
        }

    async def _joins(self, engine: Engine, partition: int, namespace: str, fan_in: FanIn) -> MemberView:
        views = await engine.flows.views(partition, namespace, [fan_in.member])
        if not views:
            raise FlowRefused(self.flow, Code.UNKNOWN, f"has no member {fan_in.member!r} any more")
        return views[0]

    def _widening(self, joins: MemberView, fan_in: FanIn, changes: Changes) -> Changes:
        """With the last of what is added, the one that joins it waits for all."""
        if fan_in.template is None:
            return changes
        answer = widened(joins, fan_in.upstreams, fan_in.template, changes.id)
        if isinstance(answer, Refusal):
            raise FlowRefused(self.flow, answer.code, f"has a member {fan_in.member!r} that {answer.message}")
        return together(changes, [answer])

    def decode(self, values: Values, data: bytes, what: object) -> None:
        return None


async def _hears_of(engine: Engine, execution: Execution, flow: Flow) -> None:
    """Of the flow's cancel, without waiting for whoever carries it to the members."""
    assert flow.reason is not None
    fact = facts.CancelRequested(change_id=engine.entropy.new_id(), reason=flow.reason)
    still = Matches(flow.key, {"state": flow.state, "revision": flow.revision})
    await engine.tell(execution.namespace, execution.id, fact, while_=(still, held_by(execution)))


async def _given_up(engine: Engine, execution: Execution, joins: MemberView) -> bool:
    """Cancel who adds what nobody joins any more. Not if a retry has opened that one meanwhile: then False."""
    ended = joins.execution
    still = Matches(ended.key, {"status": ended.status, "generation": ended.generation})
    reason = f"{joins.member.name!r} no longer needs it"
    fact = facts.CancelRequested(change_id=engine.entropy.new_id(), reason=reason)
    told = await engine.tell(execution.namespace, execution.id, fact, while_=(still, held_by(execution)))
    return told.verdict is None or told.verdict.refused_by != still
