"""A running member adds members behind itself: in one commit of its own, fenced by its lease and the flow's revision.

The commit is named by the operation's place in the code: performed again after a crash, it meets its own records, and
the journal entry that was missing follows. A member that begins anew, since it was undone or went on as new, adds the
same by a commit of another name: what it added before is there, and stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from outlast.errors import FlowNotFound, FlowRefused, InvalidFlow
from outlast.machine import facts
from outlast.machine.amendments import together
from outlast.machine.changes import Absent, Changes, Code, Matches, Refusal
from outlast.machine.decide_flow import NewMember, grown, grown_before, growth_id
from outlast.machine.decide_member import MemberView, is_cancelled_with, widened
from outlast.machine.guards_and_writes import held_by
from outlast.model.execution import Execution
from outlast.model.flow import Edge, Flow, edge_key, whole_of
from outlast.runtime.holder import FanIn, NewMembers

if TYPE_CHECKING:
    from outlast.runtime.engine import Engine
    from outlast.store.port import Verdict


async def grow(engine: Engine, execution: Execution, new: NewMembers) -> bool:
    """False if this execution is told to end: its flow is cancelled with all that runs, or who was to join all that
    is added has ended."""
    change_id = growth_id(execution, new.place)
    members = [structs.replace(m, start=structs.replace(m.start, change_id=change_id)) for m in new.members]

    async def decided(refused: Verdict | None) -> Changes | bool:
        nonlocal members
        by = None if refused is None else refused.refused_by
        if by is not None and by.key == execution.key:
            return True  # the lease is gone: recording this will say so
        if isinstance(by, Absent) and by.key.kind == Execution.KIND:
            before = await _grown_before(new, engine, execution, members)
            if by.key.values[1] not in before:
                raise InvalidFlow(f"flow {new.flow!r} has a member {str(by.key.values[1])!r} already")
            members = [member for member in members if member.start.id not in before]
        while True:
            view = await engine.flows.view(execution.namespace, new.flow)
            if view.flow is None or view.summary is None:
                raise FlowNotFound(execution.namespace, new.flow)
            joined_by = None if new.fan_in is None else new.fan_in.member
            answer = grown(view, execution, members, change_id, joined_by=joined_by)
            if isinstance(answer, Refusal):
                if is_cancelled_with(view.flow, execution):  # a refusal would only come first by chance
                    await _hears_of(engine, execution, view.flow)
                    return False
                raise FlowRefused(new.flow, answer.code, answer.message)
            if not members:
                return True  # all of it is there
            if new.fan_in is None:
                return answer
            joins = await _joins(new, engine, view.partition, execution.namespace, new.fan_in)
            if not joins.execution.status.terminal:
                return _widening(new, joins, new.fan_in, answer)
            if await _given_up(engine, execution, joins):
                return False

    return await engine.settle(f"flow {new.flow!r}", decided) is not False


async def _grown_before(new: NewMembers, engine: Engine, execution: Execution, members: list[NewMember]) -> set[str]:
    """The ids of those that this execution has added already, and that are the same."""
    if new.fan_in is not None:
        return set()
    mine = {member.start.id: member for member in members}
    namespace, whole = execution.namespace, whole_of(new.flow)
    partition = engine.view(namespace, execution.id, execution).partition
    views = await engine.flows.views(partition, namespace, list(mine))
    roster = await engine.store.load([edge_key(namespace, whole, view.execution.id) for view in views])
    return {
        view.execution.id
        for view, entry in zip(views, roster, strict=True)
        if isinstance(entry, Edge)
        and grown_before(mine[view.execution.id], execution, (view.execution, view.member, entry))
    }


async def _joins(new: NewMembers, engine: Engine, partition: int, namespace: str, fan_in: FanIn) -> MemberView:
    views = await engine.flows.views(partition, namespace, [fan_in.member])
    if not views:
        raise FlowRefused(new.flow, Code.UNKNOWN, f"has no member {fan_in.member!r} any more")
    return views[0]


def _widening(new: NewMembers, joins: MemberView, fan_in: FanIn, changes: Changes) -> Changes:
    """With the last of what is added, the one that joins it waits for all."""
    if fan_in.template is None:
        return changes
    answer = widened(joins, fan_in.upstreams, fan_in.template, changes.id)
    if isinstance(answer, Refusal):
        raise FlowRefused(new.flow, answer.code, f"has a member {fan_in.member!r} that {answer.message}")
    return together(changes, [answer])


async def _hears_of(engine: Engine, execution: Execution, flow: Flow) -> None:
    """Of the flow's cancel, without waiting for whoever carries it to the members."""
    assert flow.reason is not None
    fact = facts.CancelRequested(change_id=engine.entropy.new_id(), reason=flow.reason)
    still = Matches(flow.key, {"state": flow.state, "revision": flow.revision})
    await engine.tell(execution.namespace, execution.id, fact, only_if=(still, held_by(execution)))


async def _given_up(engine: Engine, execution: Execution, joins: MemberView) -> bool:
    """Cancel who adds what nobody joins any more. Not if a retry has opened that one meanwhile: then False."""
    ended = joins.execution
    still = Matches(ended.key, {"status": ended.status, "generation": ended.generation})
    reason = f"{joins.member.name!r} no longer needs it"
    fact = facts.CancelRequested(change_id=engine.entropy.new_id(), reason=reason)
    told = await engine.tell(execution.namespace, execution.id, fact, only_if=(still, held_by(execution)))
    return told.verdict is None or told.verdict.refused_by != still
